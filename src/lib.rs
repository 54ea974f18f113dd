//! Trainyard: drop a job file, train in containers, browse the result.
//!
//! A job file flows down this list; `docs/ARCHITECTURE.md` has the whole picture and the table of who may use whom.
//!
//! - [`ids`]: names and quantities, checked at birth.
//! - [`journal`]: where it is said what is done.
//! - [`sys`]: the machine below us; the only unsafe code and the only child processes.
//! - [`secrets`]: what workspaces log in with.
//! - [`spec`]: job files → [`spec::JobSpec`] or diagnostics.
//! - [`status`]: states, ends, and the rules by which an attempt ends.
//! - [`config`]: the appliance's own file, and where everything lies.
//! - [`gpu`]: graphics cards, and which of them to hand out.
//! - [`remote`]: copies from and to stores of other machines.
//! - [`images`]: where images come from, how they lie on disk.
//! - [`logs`]: log files of a task, with a time index.
//! - [`contract`]: what a container sees.
//! - [`import`]: jobs of other platforms → job files, and back.
//! - [`transfer`]: files on their way into or out of a task.
//! - [`rundir`]: the directory that daemon and shim share.
//! - [`scalars`]: numbers that a training tells of itself.
//! - [`store`]: what must survive a crash.
//! - [`backup`]: a copy of the state and the job files, and back.
//! - [`assets`]: the directories of workspaces, and what users put into them.
//! - [`intake`]: watches `jobs.d`.
//! - [`report`]: what people and programs read of a job.
//! - [`plan`]: what to do next; pure.
//! - [`shim`]: one process a task; the only user of libcontainer.
//! - [`engine`]: carries steps out; the only door between plan and the world.
//! - [`workspace`]: what the mount shows.
//! - [`reconcile`]: the one place where state changes.
//! - [`alerts`]: tells others of what happens.
//! - [`api`]: HTTP over a unix socket, both ends.
//! - [`doctor`]: what this machine can do for us.
//! - [`cli`]: the command line.
//! - [`mounting`]: the process that serves the mount.
//! - [`daemon`]: the composition root.

pub mod alerts;
pub mod api;
pub mod assets;
pub mod backup;
pub mod cli;
pub mod config;
pub mod contract;
pub mod daemon;
pub mod doctor;
pub mod engine;
pub mod gpu;
pub mod ids;
pub mod images;
pub mod import;
pub mod intake;
pub mod journal;
pub mod logs;
pub mod mounting;
pub mod plan;
pub mod reconcile;
pub mod remote;
pub mod report;
pub mod rundir;
pub mod scalars;
pub mod secrets;
pub mod shim;
pub mod spec;
pub mod status;
pub mod store;
pub mod sys;
pub mod transfer;
pub mod workspace;
