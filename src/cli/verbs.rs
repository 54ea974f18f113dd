//! What may be typed: the verbs with their arguments, and the words of `--help`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::complete::Named;
use super::listing::{Listed, Watch};
use super::output;
use super::{dataset, generate, image, model, ps, secret, spec, template, token};
use crate::ids::{HomeName, JobKey};

/// Longer lines are hard to read, however wide a terminal is.
const WIDEST_HELP: usize = 100;

/// Where in `--help` what every verb takes stands: a verb has fewer options than this.
const BEHIND_ITS_OWN: usize = 100;

/// As the manual says it as well.
pub(super) const EXIT_CODES: &str = "0 done; 1 refused or failed, the reason is on standard error; 2 wrong arguments; 3 the daemon does not answer; 4 no such job, \
                                     image or workspace. `wait`: 5 the job failed, 6 it was stopped; of several jobs the highest, with --any that of the first that \
                                     ended. `exec`: the command's own, 128 and the signal's number, 126 and 127 as in a shell, 125 where it could not be run or its \
                                     end is not known.";

/// What holds for all verbs. Lines are folded where the terminal ends.
fn after_help() -> String {
    format!(
        "\
Begin with: move NAME.toml into /etc/trainyard/jobs.d; then `trainyard ps`, `logs -f NAME`, `status NAME`. `trainyard VERB --help` tells \
         all of a verb, `trainyard explain` all keys of a job file.

A JOB is NAME, or WORKSPACE/NAME; of one that has several tasks, a TASK is ROLE-INDEX, as in worker-0.

Exit codes: {EXIT_CODES}

Tasks outlive the daemon, its restart and its upgrade; `trainyard stop --all` ends them, and `drain` lets them end.

NO_COLOR takes colours away, COLUMNS says how wide tables may be, TRAINYARD_ROOT is --root. Names of what there is are completed in bash by
  source <(COMPLETE=bash trainyard)"
    )
}

/// Shells complete it by what the daemon knows.
fn job_names() -> ArgValueCompleter {
    Named::Jobs.completer()
}

#[derive(Debug, Parser)]
#[command(
    name = "trainyard",
    version,
    about = "Drop a job file, train in containers, browse the result",
    term_width = output::columns().unwrap_or(WIDEST_HELP).min(WIDEST_HELP),
    after_help = after_help()
)]
pub struct Cli {
    /// The directory that holds this installation: etc/, var/, run/ and srv/ lie below it
    #[arg(long, global = true, default_value = "/", env = "TRAINYARD_ROOT", display_order = BEHIND_ITS_OWN)]
    pub root: PathBuf,
    /// Print JSON, one value or one line of JSON for each line of output
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN)]
    pub json: bool,
    /// Print no colours, as with NO_COLOR
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN)]
    pub no_color: bool,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum ContractVerb {
    /// List contracts with the platforms that they serve
    Ls {
        #[command(flatten)]
        listed: Listed,
    },
    /// Show what a script finds under a contract, what is certain, and what is our reading
    Show {
        /// As in `contract = "NAME"`
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List jobs with their state and why they are in it
    #[command(
        after_help = "Examples:\n  trainyard ps resnet --state running,waiting\n  trainyard ps -w vision --user ada --since 7d -o wide\n  trainyard stop $(trainyard ps -q --state running digits)"
    )]
    Ps {
        #[command(flatten)]
        filter: ps::Filter,
        /// Show who submitted them and when
        #[arg(short, long)]
        long: bool,
        #[command(flatten)]
        listed: Listed,
        #[command(flatten)]
        watch: Watch,
        /// Also those that are over, as always
        #[arg(short, long, hide = true)]
        all: bool,
    },
    /// Watch jobs, their tasks, the cards, cores and memory of this machine on the terminal
    Top {
        /// Look at cards and at what tasks use so often; jobs are shown anew as something happens to them
        #[arg(long, default_value = "2s", value_name = "TIME")]
        every: String,
        /// Only jobs of this workspace
        #[arg(short, long, add = Named::Workspaces.completer())]
        workspace: Option<String>,
    },
    /// List jobs that wait, in the order in which they start, and for what each waits
    Queue {
        /// Only jobs of this workspace; places are those among all
        #[arg(short, long, add = Named::Workspaces.completer())]
        workspace: Option<String>,
        #[command(flatten)]
        listed: Listed,
        #[command(flatten)]
        watch: Watch,
    },
    /// Show one job: its tasks, how they ended, earlier runs and attempts, what is wrong with its file
    Status {
        /// JOB, or WORKSPACE/JOB
        #[arg(add = job_names())]
        job: JobKey,
        /// The attempts of this run, with their tasks
        #[arg(long)]
        run: Option<u32>,
    },
    /// Print the output of a job's tasks, merged by time
    ///
    /// Of the newest attempt; with --run of all attempts of that run, with --follow from the first one on.
    #[command(
        after_help = "Examples:\n  trainyard logs -f digits            all tasks, as they go\n  trainyard logs -n 20 worker-0 digits\n  trainyard logs --since 10m digits\n  trainyard logs -f --exit-code digits; echo $?"
    )]
    Logs {
        /// JOB, or WORKSPACE/JOB
        #[arg(add = Named::Targets.completer())]
        job: String,
        /// One task of it, as ROLE-INDEX; it may stand before the job, as in what is printed
        #[arg(add = Named::Targets.completer())]
        task: Option<String>,
        /// Go on until the run has ended
        #[arg(short, long)]
        follow: bool,
        /// Only the last lines of each task
        #[arg(short = 'n', long, alias = "tail")]
        lines: Option<u64>,
        /// Only what came in the last while, as in 10m, or since a day or time, as in 2026-03-01 or "2026-03-01 12:00:00" (UTC, as times are shown)
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Only what came before that
        #[arg(long, value_name = "TIME", conflicts_with = "follow")]
        until: Option<String>,
        /// Of this run instead of the newest, with all its attempts
        #[arg(long)]
        run: Option<u32>,
        /// Of this attempt alone
        #[arg(long)]
        attempt: Option<u32>,
        /// End with the exit code of the job's command: that of the first task that failed; 5 or 6 where it has none
        #[arg(long, requires = "follow")]
        exit_code: bool,
    },
    /// Run a command in a running task, under everything that holds the task itself
    #[command(
        after_help = "Examples:\n  trainyard exec -it digits -- bash\n  trainyard exec digits worker-0 -- nvidia-smi\n  trainyard exec -i digits -- tar x < files.tar"
    )]
    Exec {
        /// Pass standard input on
        #[arg(short, long)]
        interactive: bool,
        /// Give the command a terminal
        #[arg(short, long)]
        tty: bool,
        /// JOB, or WORKSPACE/JOB
        #[arg(add = Named::Targets.completer())]
        job: String,
        /// One task of it, as ROLE-INDEX, where it has several
        #[arg(add = Named::Targets.completer())]
        task: Option<String>,
        /// The program and its arguments, after --
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Copy files and directories into a running task or out of it
    #[command(
        after_help = "Examples:\n  trainyard cp digits:/output/loss.png .\n  trainyard cp notes.txt digits/worker-0:/tmp\n  trainyard cp digits:/output/. results"
    )]
    Cp {
        /// JOB[/ROLE-INDEX]:PATH, or a path here; `DIR/.` stands for what is in DIR
        #[arg(add = Named::Places.completer())]
        from: String,
        /// The same; one of both is in a task
        #[arg(add = Named::Places.completer())]
        to: String,
    },
    /// Print what happened to a job and why, or to all jobs that you may see
    Events {
        /// JOB, or WORKSPACE/JOB; all jobs when absent
        #[arg(add = job_names())]
        job: Option<JobKey>,
        /// Only of jobs of this workspace
        #[arg(short, long, conflicts_with = "job", add = Named::Workspaces.completer())]
        workspace: Option<String>,
        /// Go on with what happens
        #[arg(short, long)]
        follow: bool,
        /// Only events behind this serial number, as --json tells it of all jobs
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// Only the last ones of the job
        #[arg(short = 'n', long, requires = "job", conflicts_with_all = ["follow", "after"])]
        lines: Option<usize>,
        /// Only what came in the last while, as in 10m, or since a day or time, as in 2026-03-01 or "2026-03-01 12:00:00" (UTC, as times are shown)
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Only what came before that
        #[arg(long, value_name = "TIME", conflicts_with = "follow")]
        until: Option<String>,
        #[command(flatten)]
        listed: Listed,
    },
    /// Stop jobs: SIGTERM, then SIGKILL after the grace
    ///
    /// With --now SIGKILL comes at once, also in the middle of a grace that runs, as that of a job whose `stop` was asked for before or
    /// whose file was removed.
    Stop {
        /// JOB, WORKSPACE/JOB, or a sweep for all of its jobs
        #[arg(required_unless_present = "all", add = job_names())]
        jobs: Vec<JobKey>,
        /// All of your jobs that run or wait; root's are everybody's
        #[arg(long, conflicts_with = "jobs")]
        all: bool,
        /// SIGKILL at once, without the grace or what is left of it
        #[arg(long)]
        now: bool,
        /// Do not ask; without a terminal nothing is asked
        #[arg(short, long, requires = "all")]
        yes: bool,
        /// Say which jobs would be stopped, and stop none
        #[arg(long, requires = "all")]
        dry_run: bool,
    },
    /// Stop what runs of jobs, and run them again as their files are now
    Restart {
        /// JOB, WORKSPACE/JOB, or a sweep for all of its jobs
        #[arg(required = true, add = job_names())]
        jobs: Vec<JobKey>,
    },
    /// Run jobs again as their files are now
    Rerun {
        /// JOB, WORKSPACE/JOB, or a sweep for all of its jobs
        #[arg(required = true, add = job_names())]
        jobs: Vec<JobKey>,
    },
    /// Let a job that is not over take longer than its max_duration
    ///
    /// Of its newest run alone, and of all its attempts; also of expected_duration where it stops the job (on_overrun).
    #[command(after_help = "Example:\n  trainyard extend digits 2h")]
    Extend {
        /// JOB, WORKSPACE/JOB, or a sweep for all of its jobs
        #[arg(add = job_names())]
        job: JobKey,
        /// How much longer, as in 2h
        by: String,
    },
    /// Copy the output of jobs to their stores now, where job files want it copied
    Send {
        /// No longer copy what is not in the store yet; it stays in output/
        #[arg(long)]
        drop: bool,
        /// JOB, WORKSPACE/JOB, or a sweep for all of its jobs
        #[arg(required = true, add = job_names())]
        jobs: Vec<JobKey>,
    },
    /// Remove the records and logs of ended jobs whose files are gone; models stay
    Rm {
        /// Their files in jobs.d as well
        #[arg(long)]
        file: bool,
        /// Do not ask before files of several jobs, or of a sweep, are removed; without a terminal nothing is asked
        #[arg(short, long, requires = "file")]
        yes: bool,
        /// Say what would be removed or is refused, and remove nothing
        #[arg(long)]
        dry_run: bool,
        /// JOB, WORKSPACE/JOB, or a sweep for all of its jobs
        #[arg(required = true, add = job_names())]
        jobs: Vec<JobKey>,
    },
    /// Wait until jobs have ended; 0 succeeded, 5 failed, 6 stopped; of several the highest
    #[command(
        after_help = "Examples:\n  trainyard wait digits && trainyard model show digits\n  trainyard wait --any lr-sweep seed-1\n  trainyard wait --exit-code --timeout 2h digits"
    )]
    Wait {
        /// JOB, WORKSPACE/JOB, or a sweep for all of its jobs
        #[arg(required = true, add = job_names())]
        jobs: Vec<JobKey>,
        /// Until the first of them has ended, and with its code alone; those that have ended already count
        #[arg(long)]
        any: bool,
        /// Until all of them have ended, as without it
        #[arg(long, conflicts_with = "any")]
        all: bool,
        /// No longer than this, as in 2h; jobs go on, and the exit code is 1
        #[arg(long, value_name = "TIME")]
        timeout: Option<String>,
        /// End with the exit code of the job's command: that of the first task that failed; 5 or 6 where it has none
        #[arg(long)]
        exit_code: bool,
    },
    /// Print a job's file, or with --effective all that it comes to
    Show {
        /// A job that the daemon knows, or with --file a path
        #[arg(add = job_names())]
        job: String,
        /// Every value after defaults, and each task's final command line
        #[arg(long)]
        effective: bool,
        /// Read this file instead of asking the daemon
        #[arg(long)]
        file: bool,
    },
    /// Write a job file on top of a template, from keys in TOML or JSON, or by questions
    ///
    /// At a terminal, where neither values nor a file are given, it asks: for the parameters of the template, or for the usual keys of a
    /// job, each with what it means and what stands where nothing is said; then whether to start it, to save it as a template, or
    /// to write the file only.
    #[command(
        after_help = "Examples:\n  trainyard new mine\n  trainyard new mine --template ddp -p lr=0.1 -p workers=4\n  generate | trainyard new mine --from - --replace"
    )]
    New {
        /// The name of the job, or WORKSPACE/NAME
        job: JobKey,
        /// The name of the template, as `trainyard template ls` lists it
        #[arg(short, long, add = Named::Templates.completer())]
        template: Option<String>,
        /// The job's keys, in TOML or as one object of JSON; - is standard input
        #[arg(long, value_name = "FILE", conflicts_with = "template")]
        from: Option<PathBuf>,
        /// Write over the job's file if it is yours
        #[arg(long)]
        replace: bool,
        /// Print the file that would be written, and where; write nothing
        #[arg(long)]
        dry_run: bool,
        /// A value for a parameter of the template
        #[arg(short, long = "param", value_name = "NAME=VALUE")]
        param: Vec<String>,
        /// Ask for every key of the job, not for the usual ones alone
        #[arg(long, conflicts_with_all = ["from", "param", "dry_run"])]
        advanced: bool,
    },
    /// Copy a job file and its overrides under another name
    Clone {
        /// A job, also one of a sweep
        #[arg(add = job_names())]
        job: JobKey,
        /// The name of the copy
        new: JobKey,
        /// It waits until `state = "held"` is taken out of its file
        #[arg(long)]
        held: bool,
    },
    /// Templates: job files with parameters, from which jobs are made
    #[command(subcommand)]
    Template(template::TemplateVerb),
    /// Show the graphics cards: health, use, holders, and how they are connected
    ///
    /// `-o wide` has their UUIDs and places on the bus in the first table, `-o csv` a row a card with these and who has it, its
    /// shares and its slices.
    Gpu {
        #[command(flatten)]
        listed: Listed,
        #[command(flatten)]
        watch: Watch,
    },
    /// Specs: sizes of tasks that job files may name
    #[command(subcommand)]
    Spec(spec::SpecVerb),
    /// Images: where tasks get their root file system from
    #[command(subcommand)]
    Image(image::ImageVerb),
    /// Datasets: drafts, and versions that nobody changes
    #[command(subcommand)]
    Dataset(dataset::DatasetVerb),
    /// Tokens, with which programs reach the API over the network
    #[command(subcommand)]
    Token(token::TokenVerb),
    /// Models: what runs have left in /model
    #[command(subcommand)]
    Model(model::ModelVerb),
    /// Secrets: what workspaces log in with; stored by root, used by jobs, never shown
    #[command(subcommand)]
    Secret(secret::SecretVerb),
    /// Workspaces: what they keep on the disk, how much they may, and which jobs they have
    Workspace {
        /// This one alone, with what takes the room: it is measured now, which may take a while
        #[arg(add = Named::Workspaces.completer())]
        name: Option<HomeName>,
        #[command(flatten)]
        listed: Listed,
    },
    /// Who has used how much: hours of cards, cores and memory, and their price by specs
    ///
    /// What attempts had, from when it was given to them until it was free again, also of jobs that were removed. You see your
    /// own jobs, and the sums of workspaces that you may enter; root sees everything.
    Usage {
        /// Add up by user, workspace or job
        #[arg(long, default_value = "workspace", value_name = "user|workspace|job")]
        by: crate::api::usage::By,
        /// Only what was used in this workspace
        #[arg(short, long, add = Named::Workspaces.completer())]
        workspace: Option<String>,
        /// Only what was used within this time, as in 30d, or since a day or time, as in 2026-03-01 (UTC, as times are shown)
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Print comma-separated values, as -o csv
        #[arg(long)]
        csv: bool,
        #[command(flatten)]
        listed: Listed,
    },
    /// Check job files, with their overrides and templates, and templates without running them
    ///
    /// No daemon is needed. One that answers says as well what the machine, or the quota of the workspace, has no room for.
    Check {
        /// Paths of job files or templates
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print all that each job comes to as well
        #[arg(long)]
        effective: bool,
    },
    /// Contracts: what a script that was written for another platform finds
    Contract {
        #[command(subcommand)]
        verb: ContractVerb,
    },
    /// Turn jobs of OpenPAI, FrameworkController, Volcano and Kubeflow into job files, naming what cannot be carried
    #[command(after_help = "Example:\n  kubectl get pytorchjobs -o yaml | trainyard import - -o /etc/trainyard/jobs.d")]
    Import {
        /// JSON or YAML of the other platform; `-` is standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Write DIR/NAME.toml for each job instead of printing it
        #[arg(short, long, value_name = "DIR")]
        output: Option<PathBuf>,
        /// Say which files would be written and which are there already; write none
        #[arg(long, requires = "output")]
        dry_run: bool,
    },
    /// Print a job in the form of another platform
    Export {
        /// A job that the daemon knows, or with --file a path
        #[arg(add = job_names())]
        job: String,
        /// OpenPAI's JSON (protocol v1)
        #[arg(long, required = true)]
        openpai: bool,
        /// Read this file instead of asking the daemon
        #[arg(long)]
        file: bool,
    },
    /// Explain a key of the job file, or list all of them
    #[command(
        after_help = "Examples:\n  trainyard explain                   every key, one a line\n  trainyard explain roles.*.count"
    )]
    Explain {
        /// As in resources.memory
        key: Option<String>,
        /// The reference as Markdown
        #[arg(long, hide = true)]
        markdown: bool,
    },
    /// Let nothing start any more, as before maintenance; what runs goes on
    ///
    /// Tells which jobs still run. Images and code of waiting jobs are made ready all the same. It outlives the daemon, also an
    /// upgrade, but not the machine's next start: after a reboot jobs start again. Root's alone.
    Drain {
        /// Return when nothing runs any more
        #[arg(long)]
        wait: bool,
        /// Let jobs start again
        #[arg(long, conflicts_with = "wait")]
        undo: bool,
        /// Say what runs and what would no longer start, and change nothing
        #[arg(long, conflicts_with_all = ["wait", "undo"])]
        dry_run: bool,
    },
    /// Say what this machine can and cannot do, and what to do about it
    ///
    /// Each line is ok, a warning (something is slower or missing) or failed (jobs cannot run as they should). Needs no daemon, but
    /// root for some checks. Ends with 1 if anything has failed.
    Doctor {
        /// Only these checks, by the names in the first column
        checks: Vec<String>,
    },
    /// Copy the state, job files, configuration and secrets into one file, while the daemon runs or not
    ///
    /// The state is that of one instant. The file appears when it is whole, readable by root alone, and `trainyard restore` takes it
    /// back. Not in it: datasets, code, models and what runs have left (back up var/lib/trainyard/workspaces as any directory), images,
    /// and copies from stores, which are brought in again.
    #[command(after_help = "Examples:\n  trainyard backup /srv/backups\n  trainyard backup before-upgrade.tar.zst")]
    Backup {
        /// A new file (FILE.tar.zst), or a directory that is there, in which it gets a name with the time
        target: PathBuf,
    },
    /// Put a backup back, on this machine or a new one; the daemon must not run
    ///
    /// It happens wholly or not at all: if it is cut short after all was read, the next start of the daemon finishes it. What was there
    /// before is set aside. Jobs that were not over begin anew, by their own `retry`; those that are in the directories but not in the
    /// backup are told of, and their files are left alone.
    Restore {
        /// What `trainyard backup` has written
        file: PathBuf,
        /// Set aside the configuration, job files and state that are there
        #[arg(long)]
        replace: bool,
        /// Make the backup's tokens of the API good again, also those revoked since; without, those that are on this machine stay
        #[arg(long)]
        with_tokens: bool,
    },
    /// Stop all jobs, unmount, and end the daemon
    ///
    /// The one way to take everything away. `systemctl stop` and a signal end the daemon alone: tasks and the mount go on, and the
    /// next daemon goes on with them.
    Shutdown {
        /// Do not ask; without a terminal nothing is asked
        #[arg(short, long)]
        yes: bool,
        /// Say which jobs would be stopped, and stop nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Run the daemon (the service does this)
    ///
    /// SIGTERM, as `systemctl stop` sends it, ends the daemon and nothing else: tasks and the mount go on over its end, a restart and an
    /// upgrade, and the next daemon goes on with them. `trainyard stop --all` ends what runs, `trainyard drain` lets nothing start any
    /// more, and `trainyard shutdown` takes everything away. SIGHUP has it read trainyard.toml again.
    Daemon,
    /// Write man pages or completions into a directory (packaging does this)
    #[command(hide = true)]
    Generate { what: generate::What, directory: PathBuf },
    /// Serve the mounted tree (the daemon does this)
    #[command(hide = true)]
    Mount {
        #[arg(long)]
        lock_fd: Option<i32>,
        /// What the process before has kept, where this one goes on for it
        #[arg(long)]
        kept_fd: Option<i32>,
        /// What of it is shown by mounts of its directories; as the file says where it is left out
        #[arg(long)]
        direct: Option<crate::config::Direct>,
        /// Say which states of a mount are read, and end
        #[arg(long)]
        state_versions: bool,
        /// Ask the mount that there is, write what is asked, and end when all has answered
        #[arg(long)]
        answers: bool,
    },
    /// Show directories of the mounted tree directly (the mount does this)
    #[command(hide = true)]
    Direct {
        /// Which of them; as the file says where it is left out
        #[arg(long)]
        direct: Option<crate::config::Direct>,
    },
    /// Run a command in a task (the daemon does this)
    #[command(hide = true)]
    Enter {
        dir: PathBuf,
        #[arg(long)]
        control_fd: i32,
    },
    /// Hold the process namespace that tasks share (the daemon does this)
    #[command(hide = true)]
    Hold {
        #[arg(long)]
        dir_fd: i32,
        #[arg(long)]
        lock_fd: i32,
    },
    /// Copy from or to a store (the daemon does this)
    #[command(hide = true)]
    Carry {
        #[arg(long)]
        directory_fd: i32,
    },
    /// Look at the cards (the daemon does this)
    #[command(hide = true)]
    Cards,
    /// Ask a registry (the daemon does this)
    #[command(hide = true)]
    Registry,
    /// Run one task (the daemon does this)
    #[command(hide = true)]
    Shim {
        dir: PathBuf,
        #[arg(long)]
        lock_fd: i32,
        /// For the process list
        #[arg(long)]
        title: Option<String>,
    },
}
