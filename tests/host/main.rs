//! The whole of it on this machine's kernel: real mounts, containers, networks, crashes. Needs root.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests drive processes and may panic")]

#[path = "../support/nvml.rs"]
mod nvml;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/terminal.rs"]
mod terminal;

mod api;
mod backups;
mod bad_input;
mod complaints;
mod conformance;
mod contracts;
mod crash;
mod datasets;
mod delegation;
mod desk;
mod direct;
mod exec;
mod frozen;
mod full_disk;
mod git;
mod gpu_images;
mod gpu_process;
mod gpus;
mod hanging;
mod host_image;
mod images;
mod incoming;
mod jobs;
mod kills;
mod logs;
mod models;
mod mount;
mod moving;
mod mpi;
mod network;
mod older;
mod policies;
mod processes;
mod public;
mod python;
mod queue;
mod quickstart;
mod quotas;
mod refused;
mod remote;
mod requirements;
mod rights;
mod roles;
mod screens;
mod service;
mod shown;
mod store;
mod sweeps;
mod tasks;
mod templates;
mod torch;
mod tutorial;
mod upgrade;
mod whose;
