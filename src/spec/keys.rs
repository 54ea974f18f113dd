//! The key table: every key of a job file with its type, default, bounds and one sentence.
//!
//! `check` judges files by it, `explain` and `docs/JOBS.md` are printed from it.

/// What values a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Text,
    Bool,
    /// True, false, or one of the words.
    BoolOr(&'static [&'static str]),
    Integer {
        min: i64,
        max: i64,
    },
    Number {
        min: f64,
        max: f64,
    },
    /// Bytes.
    Size {
        min: u64,
        max: u64,
    },
    /// Milliseconds.
    Duration {
        min: u64,
        max: u64,
    },
    /// A string (run by `/bin/sh -c`) or an array of strings (run as it is).
    Command,
    Texts,
    Choice(&'static [&'static str]),
    /// One of the words, or an integer from 1.
    CountOr(&'static [&'static str]),
    /// One of the words, or an integer from 0 to 100.
    PercentOr(&'static [&'static str]),
    /// A string, number, bool, or an array of these.
    Param,
    /// A string, number or bool.
    Scalar,
    /// An array of these.
    Scalars,
    /// A number of ports, or a table of `count` and `begin`.
    Port,
    Table,
    /// An array of tables with keys of their own.
    Tables,
    /// A string, or a table with keys of its own.
    TextOrTable,
    /// Any value; kept for keys that this version only knows by name.
    Any,
}

impl Kind {
    /// The type as people say it.
    pub fn describe(self) -> String {
        match self {
            Kind::Text => "string".into(),
            Kind::Bool => "true or false".into(),
            Kind::BoolOr(words) => format!("true, false or {}", Kind::Choice(words).describe()),
            Kind::Integer { .. } => "integer".into(),
            Kind::Number { .. } => "number".into(),
            Kind::Size { .. } => "size, as in \"4GiB\"".into(),
            Kind::Duration { .. } => "duration, as in \"2h\"".into(),
            Kind::Command => "string or array of strings".into(),
            Kind::Texts => "array of strings".into(),
            Kind::Choice(words) => words.iter().map(|w| format!("{w:?}")).collect::<Vec<_>>().join(" or "),
            Kind::CountOr(words) | Kind::PercentOr(words) => format!("integer, or {}", Kind::Choice(words).describe()),
            Kind::Param => "string, number, true or false, or an array of these".into(),
            Kind::Scalar => "string, number, or true or false".into(),
            Kind::Scalars => "array of strings, numbers, or true and false".into(),
            Kind::Port => "integer, or { count, begin }".into(),
            Kind::Table => "table".into(),
            Kind::Tables => "array of tables".into(),
            Kind::TextOrTable => "string or table".into(),
            Kind::Any => "any".into(),
        }
    }
}

/// Whether this version acts on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    Now,
    /// Part of the language, refused for now rather than ignored.
    Later,
}

/// One key; `*` in the path stands for a name that the user chooses.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub path: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub bounds: &'static str,
    pub help: &'static str,
    pub support: Support,
}

const fn now(path: &'static str, kind: Kind, default: &'static str, bounds: &'static str, help: &'static str) -> Key {
    Key { path, kind, default, bounds, help, support: Support::Now }
}

#[expect(dead_code, reason = "this version acts on every key; a later one brings keys that it does not act on yet")]
const fn later(path: &'static str, help: &'static str) -> Key {
    Key { path, kind: Kind::Any, default: "", bounds: "", help, support: Support::Later }
}

/// Fewest bytes of memory a task may ask for.
pub const MEMORY_MIN: u64 = 100_000_000;
/// Most tasks in one role.
pub const COUNT_MAX: i64 = 1000;

const STATES: &[&str] = &["run", "held", "stopped"];
const NETWORKS: &[&str] = &["task", "job", "host"];
const FRAMEWORKS: &[&str] =
    &["none", "pytorch", "tensorflow", "mxnet", "xgboost", "paddle", "mindspore", "jax", "mpi", "horovod", "deepspeed"];
const STRATEGIES: &[&str] = &["ps", "allreduce", "collective", "master-worker", "launcher"];
const PORT: Kind = Kind::Integer { min: 1, max: 65535 };
const GPU: Kind = Kind::Integer { min: 0, max: 64 };
const COUNT: Kind = Kind::Integer { min: 1, max: COUNT_MAX };
const CPU: Kind = Kind::Number { min: 0.1, max: 10_000.0 };
/// No machine has more.
const SIZE_MAX: u64 = 1024 << 40;
const MEMORY: Kind = Kind::Size { min: MEMORY_MIN, max: SIZE_MAX };
/// What a driver keeps for a process alone is more.
const GPU_MEMORY: Kind = Kind::Size { min: 64 << 20, max: SIZE_MAX };
const OVER: Kind = Kind::Choice(&["alert", "stop"]);
const SHM: Kind = Kind::Size { min: 1 << 20, max: SIZE_MAX };
/// The kernel's own bound on processes is the highest one.
const PIDS: Kind = Kind::Integer { min: 8, max: 4_000_000 };
const MIN_FAILED: Kind = Kind::CountOr(&["never"]);
const MIN_SUCCEEDED: Kind = Kind::CountOr(&["all", "never"]);

/// Ten years: longer than any machine lasts.
const LONG_MS: u64 = 3650 * DAY_MS;
const DAY_MS: u64 = 24 * 3_600_000;
const LASTING: Kind = Kind::Duration { min: 1000, max: LONG_MS };
/// What a task may hold up a stop, a shutdown or the removal of the package by.
pub const STOP_GRACE_MAX_MS: u64 = 3_600_000;
const STOP_GRACE: Kind = Kind::Duration { min: 0, max: STOP_GRACE_MAX_MS };
/// Longer than that no attempt is put off.
const BACKOFF: Kind = Kind::Duration { min: 0, max: 3_600_000 };
/// Cards are seen every 5 seconds.
const IDLE: Kind = Kind::Duration { min: 10_000, max: 30 * DAY_MS };

/// Every key, in the order of the documentation.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    now("description", Kind::Text, "\"\"", "", "What the job is for, shown beside its name."),
    now("image", Kind::Text, "\"host\"", "", "The root file system of the tasks: a name in the image store or a registry (NAME:TAG, REGISTRY/NAME@sha256:…), \"oci:PATH:TAG\", \"oci-archive:PATH\", \"docker-archive:PATH\", or \"host\", this machine's own system directories."),
    now("user", Kind::Text, "the image's", "NAME, UID, NAME:GROUP or UID:GID", "Whom the tasks run as inside; outside, what they make belongs to the job's owner, whoever it is."),
    now("command", Kind::Command, "the image's, or sleep infinity", "not empty", "What each task runs: a string by `/bin/sh -c`, where $VARS work, an array as it is."),
    now("contract", Kind::Text, "\"native\"", "a name of `trainyard contract ls`", "The platform that the scripts were written for: they find its directories, variables and arguments beside Trainyard's own."),
    now("framework", Kind::Choice(FRAMEWORKS), "\"none\"", "", "The framework whose cluster variables are made from the roles."),
    now("strategy", Kind::Choice(STRATEGIES), "the framework's first", "", "How the framework's tasks work together: all alike (allreduce, collective), with servers of parameters (ps), with one that leads (master-worker) or starts the others (launcher). It says what roles mean and adds the one that leads, so that a file need only count them."),
    now("code", Kind::TextOrTable, "none", "NAME or NAME@VERSION in code/, with mine:, preset: or public: before it to say whose, KIND:POOL/PREFIX, or a table", "What a run takes a snapshot of when it is accepted: a directory of code/ (the workspace's, else a preset, else a public one), what a store of another machine has there, or a commit of a Git repository; tasks see it at /code and start there."),
    now("code.git", Kind::Text, "", "https:// or http://", "The repository."),
    now("code.ref", Kind::Text, "the repository's own", "a branch, a tag or a whole commit", "Which version of it."),
    now("code.user", Kind::Text, "none", "", "Whom it lets in."),
    now("code.password", Kind::Text, "none", "\"secret:NAME\"", "The secret of the workspace, a file in /etc/trainyard/secrets/WORKSPACE, that holds the password or token."),
    now("code.submodules", Kind::Bool, "false", "", "Whether its submodules are fetched as well."),
    now("requirements", Kind::Bool, "false, unless the contract says otherwise", "", "Whether the Python packages of requirements.txt in the code's root are installed before the command, once for an image and a list."),
    now("resume", Kind::Bool, "false; under contracts uai and pai true", "", "Whether /output begins as the newest earlier run of the job left it (under pai its checkpoints/ alone), copied before the start; ModelArts calls it Predownload."),
    now("datasets", Kind::Texts, "[]", "[CHANNEL=]NAME[@VERSION], with mine:, preset: or public: before NAME to say whose, [CHANNEL=]model:JOB[@RUN] or [CHANNEL=]output:JOB[@RUN]", "Datasets (the workspace's, else a preset, else a public one; without a version the newest when the run is accepted), models that jobs of the workspace have left, and what their runs have written to /output (of the job itself: the run before), that tasks see read-only: a single one at /dataset and /input, several at /dataset/NAME; CHANNEL is what a script calls it, where that differs."),
    now("mounts", Kind::Tables, "[]", "64 at most", "Directories and files of this machine that tasks see beside those of the workspace, with the rights of the job's owner, and places in stores of other machines, which are copied in before the start, or to which the output is copied."),
    now("mounts.*.source", Kind::Text, "must be given", "an absolute path, or KIND:POOL/PREFIX", "The place on this machine, where the job's owner must be able to go; or, of a store of another machine (s3, oss, webhdfs, sftp, http), the administrator's name for it and what lies there, in which {job} and {run} stand for those."),
    now("mounts.*.target", Kind::Text, "must be given", "an absolute path", "Where tasks see it; what is copied in is read-only, and /output means that the output is copied to the source."),
    now("mounts.*.read_only", Kind::Bool, "false", "", "Whether tasks may change nothing there."),
    now("mounts.*.sync", Kind::Text, "\"end\" for /output", "\"end\", or 10s to 30d", "When the output is copied to the store: when the run has ended, or every so often as well."),
    now("network", Kind::Choice(NETWORKS), "\"job\" where several tasks have GPUs, no launcher starts them and the contract is native or openpai, else \"task\"", "", "\"task\" gives each task an address of its own (those with GPUs share /dev/shm and processes), \"job\" lets the tasks of an attempt share one network and /dev/shm, \"host\" uses the machine's network."),
    now("max_nodes", COUNT, "none; under contract uai 4", "1 to 1000", "How many tasks that compute the job has at most: where roles ask for more, the last ones are left out, and the job says so."),
    now("max_gpu", Kind::Integer { min: 0, max: 64_000 }, "none", "0 to 64000", "How many graphics cards all its tasks have at most: where they ask for more, each has as many as all can have, and the job says so; 0 is training on cores."),
    now("retries", Kind::Integer { min: 0, max: 1000 }, "0", "0 to 1000", "How many more attempts a run may make after the first one failed."),
    now("priority", Kind::PercentOr(&["low", "normal", "high"]), "\"normal\"", "0 to 100", "Which waiting job is started first: the higher one; among equal ones the workspace that has used the least comes first, and of its jobs the older; low is 25, normal 50, high 75. Running jobs are never stopped for it."),
    now("retry", Kind::Table, "none", "", "Which failures are tried again, and when; `retries` says how often."),
    now("retry.on", Kind::Texts, "[\"failure\", \"lost\"]", "failure, lost, oom, image", "Kinds of failure after which another attempt is made."),
    now("retry.backoff", BACKOFF, "0s", "0s to 1h", "How long to wait before the second attempt; twice as long before each further one, an hour at most."),
    now("after", Kind::Texts, "[]", "jobs of the same workspace", "Jobs whose newest run must have succeeded before this one starts."),
    now("on_edit", Kind::Choice(&["after", "restart"]), "\"after\"", "", "Whether the run of an edited file waits until the running one has ended, or stops it."),
    now("extras", Kind::Table, "none", "", "Notes that are kept and shown, never interpreted."),
    now("extras.*", Kind::Any, "", "", "One note, of any form."),
    now("max_duration", LASTING, "none", "1s to 3650d", "How long one attempt may run; then it is stopped and counts as failed, timed out. Jobs that say it may start before others that wait for more."),
    now("expected_duration", LASTING, "none", "1s to 3650d", "How long one attempt should take; when it takes longer, that is told once, in its events and its status. Only those that are stopped then (on_overrun) may start before others for it."),
    now("on_overrun", Kind::Choice(&["alert", "stop"]), "\"alert\"", "", "Whether a job that takes longer than expected is stopped as well."),
    now("on_gpu_failure", Kind::Choice(&["alert", "stop", "retry"]), "\"alert\"", "", "What is done when a graphics card fails while the job has it: it is told, in its events and its status; \"stop\" ends the run as failed as well, \"retry\" makes another attempt on other cards, of those that `retries` allows."),
    now("alerts", Kind::Table, "none", "", "What a running job is watched for."),
    now("alerts.gpu_idle", Kind::Table, "none", "", "When its graphics cards count as idle, and what is done then."),
    now("alerts.gpu_idle.below", Kind::Integer { min: 1, max: 100 }, "5", "1 to 100", "Percent of utilisation; a card below it is idle, the job is while all of its cards are."),
    now("alerts.gpu_idle.for", IDLE, "30m", "10s to 30d", "How long the job must have been idle without a break, as seen every 5 seconds."),
    now("alerts.gpu_idle.then", Kind::Choice(&["alert", "stop"]), "\"alert\"", "", "Whether an idle job is told, once, in its events and its status, or stopped as well."),
    now("stop_grace", STOP_GRACE, "the platform's (120s under sagemaker), or else the machine's, 30s", "0s to 1h", "How long a task that is told to stop may take before it is killed; `trainyard stop --now` does not wait for it."),
    now("init", Kind::Bool, "true", "", "Whether a small process of Trainyard's own is the first one in each container, which passes signals on and reaps what the command leaves; false makes it the command itself."),
    now("debug", Kind::Bool, "false", "", "Whether the container of a failed task is kept for `trainyard exec`, for 7 days at most or until the job is stopped; it goes on holding what it was given."),
    now("state", Kind::Choice(STATES), "\"run\"", "", "\"run\" runs the job, \"held\" keeps it from starting, \"stopped\" stops it and keeps its record."),
    now("rerun", Kind::Integer { min: 0, max: i64::MAX }, "0", "0 or more", "Changing this number asks for a new run of an unchanged job."),
    now("template", Kind::Text, "none", "a template of the workspace or of default", "The template that this job lies on top of; runs record what comes of both, so an edited template acts on later runs only."),
    now("with", Kind::Table, "the template's defaults", "", "Values for the parameters of the template."),
    now("with.*", Kind::Scalar, "the template's", "as the template says", "The value of one parameter."),
    now("sweep", Kind::Table, "none", "256 combinations at most", "Lists of values; the file is a job for each combination of them, named FILE~VALUE~VALUE, with everything else alike."),
    now("sweep.*", Kind::Any, "", "a list, or a table of lists", "The values that one key takes: an argument, or any key of the job file by its path, such as env.SEED or roles.worker.count."),
    now("params", Kind::Table, "none", "", "Arguments put after the command in the order of the file, as --KEY=VALUE."),
    now("params.*", Kind::Param, "", "", "One argument: true alone becomes --KEY, an array repeats it."),
    now("env", Kind::Table, "none", "", "Environment variables for every task, exactly as written."),
    now("env.*", Kind::Scalar, "", "", "One environment variable; nothing in it is substituted."),
    now("resources", Kind::Table, "none", "", "What each task may use; the tasks of an attempt start only when all of them fit."),
    now("resources.spec", Kind::Text, "none", "a name of `trainyard spec ls`", "A size from the administrator's list, by its numbers of cores, memory and graphics cards; keys beside it lie over these."),
    now("resources.cpu", CPU, "1", "0.1 to 10000", "Processor cores for each task; a hard limit."),
    now("resources.memory", MEMORY, "\"1GiB\"", "100MB to 1024TiB", "Memory for each task; a task that needs more is killed and ends as oom."),
    now("resources.shm", SHM, "half of memory", "1MiB to 1024TiB, at most memory", "Size of /dev/shm; what is in it counts as memory. Under contract openpai 64MiB unless said."),
    now("resources.pids", PIDS, "8192", "8 to 4000000", "Processes and threads that a task may have at once."),
    now("resources.gpu", GPU, "0; 1 with gpu_memory or mig", "0 to 64", "Graphics cards for each task, or slices of cards where mig is said. An image is shown the driver's libraries and programs of this machine; one upon musl has no use for them and is refused."),
    now("resources.gpu_type", Kind::Text, "any", "part of the name that the driver gives a card", "The kind of card, as in \"H100\": one whose name has this in it, in large letters or small."),
    now("resources.gpu_memory", GPU_MEMORY, "whole cards", "64MiB to 1024TiB", "A share of one card for each task, by its memory: several tasks, of different jobs as well, have one card together. It is not held to by the card: gpu_memory_over says what is done about a task that uses more."),
    now("resources.gpu_memory_over", OVER, "\"stop\"", "", "What is done about a task that uses more of a card than its share: \"alert\" tells it, \"stop\" tells it and stops the job, which has failed, if it is still so after a minute."),
    now("resources.mig", Kind::Text, "whole cards", "a profile of `trainyard gpu`, as \"1g.10gb\"", "The slices of cards that were cut up by MIG that each task gets; gpu says how many."),
    now("roles", Kind::Table, "one role \"main\" with one task", "64 roles and 1000 tasks at most", "The parts that a job is made of, such as ps and worker."),
    now("roles.*", Kind::Table, "", "", "One role; the name appears in logs, host names and variables."),
    now("roles.*.count", COUNT, "1", "1 to 1000", "How many tasks the role has, numbered from 0."),
    now("roles.*.main", Kind::BoolOr(&["first"]), "false, unless the contract or the strategy says otherwise", "", "Its success ends the job as succeeded at once, its failure as failed; \"first\" lets its first task decide."),
    now("roles.*.serves", Kind::Bool, "true for ps, scheduler, server, tensorboard", "", "A role that only serves the others never holds the job open."),
    now("roles.*.min_failed", MIN_FAILED, "1", "1 to count", "How many failed tasks of the role fail the attempt at once."),
    now("roles.*.min_succeeded", MIN_SUCCEEDED, "\"all\"", "1 to count", "How many succeeded tasks of the role end the job as succeeded at once; \"all\" waits for every role."),
    now("roles.*.retries", Kind::Integer { min: 0, max: 1000 }, "0", "0 to 1000", "How often a task of the role that failed is started again by itself, while the others go on, before it counts as failed; `retry.on` says after which failures."),
    now("roles.*.slots", Kind::Integer { min: 1, max: 10_000 }, "its GPUs, or else its whole cores", "1 to 10000", "How many ranks of MPI a task of the role takes."),
    now("roles.*.image", Kind::Text, "the job's", "", "The image of the tasks of this role."),
    now("roles.*.user", Kind::Text, "the job's", "NAME, UID, NAME:GROUP or UID:GID", "Whom the tasks of this role run as inside."),
    now("roles.*.code", Kind::TextOrTable, "the job's", "as code: a name in code/, KIND:POOL/PREFIX, or a table", "What the tasks of this role see at /code."),
    now("roles.*.code.git", Kind::Text, "", "https:// or http://", "The repository."),
    now("roles.*.code.ref", Kind::Text, "the repository's own", "a branch, a tag or a whole commit", "Which version of it."),
    now("roles.*.code.user", Kind::Text, "none", "", "Whom it lets in."),
    now("roles.*.code.password", Kind::Text, "none", "\"secret:NAME\"", "The secret that holds the password or token."),
    now("roles.*.code.submodules", Kind::Bool, "false", "", "Whether its submodules are fetched as well."),
    now("roles.*.command", Kind::Command, "the job's", "not empty", "What the tasks of this role run."),
    now("roles.*.params", Kind::Table, "the job's", "", "Arguments of this role, beside and over the job's."),
    now("roles.*.params.*", Kind::Param, "", "", "One argument of this role."),
    now("roles.*.env", Kind::Table, "the job's", "", "Environment variables of this role, beside and over the job's."),
    now("roles.*.env.*", Kind::Scalar, "", "", "One environment variable of this role."),
    now("roles.*.resources", Kind::Table, "the job's", "", "What each task of this role may use, key by key over the job's."),
    now("roles.*.resources.spec", Kind::Text, "none", "a name of `trainyard spec ls`", "A size from the administrator's list, by its numbers of cores, memory and graphics cards; keys beside it lie over these."),
    now("roles.*.resources.cpu", CPU, "the job's", "0.1 to 10000", "Processor cores for each task of this role."),
    now("roles.*.resources.memory", MEMORY, "the job's", "100MB to 1024TiB", "Memory for each task of this role."),
    now("roles.*.resources.shm", SHM, "half of memory", "1MiB to 1024TiB, at most memory", "Size of /dev/shm for this role."),
    now("roles.*.resources.pids", PIDS, "the job's", "8 to 4000000", "Processes and threads of each task of this role."),
    now("roles.*.resources.gpu", GPU, "the job's", "0 to 64", "Graphics cards for each task of this role."),
    now("roles.*.resources.gpu_type", Kind::Text, "the job's", "part of a card's name", "The kind of card for this role."),
    now("roles.*.resources.gpu_memory", GPU_MEMORY, "the job's", "64MiB to 1024TiB", "A share of one card for each task of this role."),
    now("roles.*.resources.gpu_memory_over", OVER, "the job's", "", "What is done about a task of this role that uses more of a card than its share."),
    now("roles.*.resources.mig", Kind::Text, "the job's", "a profile, as \"1g.10gb\"", "The slices of cards for each task of this role."),
    now("roles.*.ports", Kind::Table, "none", "", "Ports that each task of the role listens on; they are allotted and told to every task by environment."),
    now("roles.*.ports.*", Kind::Port, "", "1 to 100", "A labelled group of ports: how many, or a table of count and first port."),
    now("roles.*.ports.*.count", Kind::Integer { min: 1, max: 100 }, "1", "1 to 100", "How many ports under this label."),
    now("roles.*.ports.*.begin", Kind::Integer { min: 0, max: 65535 }, "0", "0 to 65535", "The first port, when it must be a certain one; 0 for any that are free."),
    now("services", Kind::Table, "none", "", "Containers beside the tasks that people look at by a browser, such as a notebook; they run as long as the job does, and never end it."),
    now("services.*", Kind::Table, "", "", "One of them; the name is that of its role."),
    now("services.*.command", Kind::Command, "must be given", "not empty", "What it runs; it listens on all addresses of its container."),
    now("services.*.port", PORT, "must be given", "1 to 65535", "The port that it listens on; a free one of the machine leads there, which `trainyard status` shows."),
    now("services.*.image", Kind::Text, "the job's", "", "Its image."),
    now("services.*.user", Kind::Text, "the job's", "NAME, UID, NAME:GROUP or UID:GID", "Whom it runs as inside."),
    now("services.*.env", Kind::Table, "the job's", "", "Environment variables, beside and over the job's."),
    now("services.*.env.*", Kind::Scalar, "", "", "One environment variable."),
    now("services.*.resources", Kind::Table, "1 core, 1GiB", "", "What it may use; the job's own do not count for it."),
    now("services.*.resources.spec", Kind::Text, "none", "a name of `trainyard spec ls`", "A size from the administrator's list, by its numbers of cores, memory and graphics cards; keys beside it lie over these."),
    now("services.*.resources.cpu", CPU, "1", "0.1 to 10000", "Processor cores."),
    now("services.*.resources.memory", MEMORY, "\"1GiB\"", "100MB to 1024TiB", "Memory."),
    now("services.*.resources.shm", SHM, "half of memory", "1MiB to 1024TiB, at most memory", "Size of /dev/shm."),
    now("services.*.resources.pids", PIDS, "8192", "8 to 4000000", "Processes and threads."),
    now("services.*.resources.gpu", GPU, "0; 1 with gpu_memory or mig", "0 to 64", "Graphics cards."),
    now("services.*.resources.gpu_type", Kind::Text, "any", "part of a card's name", "The kind of card."),
    now("services.*.resources.gpu_memory", GPU_MEMORY, "whole cards", "64MiB to 1024TiB", "A share of one card."),
    now("services.*.resources.gpu_memory_over", OVER, "\"stop\"", "", "What is done if it uses more of a card than its share."),
    now("services.*.resources.mig", Kind::Text, "whole cards", "a profile, as \"1g.10gb\"", "Slices of cards."),
    now("scalars", Kind::Table, "none", "", "Where tasks tell numbers of their training, which are collected in scalars.csv beside their logs."),
    now("scalars.log_dir", Kind::Text, "that of tensorboard", "an absolute path in the tasks, below the output or the model", "Where event files of TensorBoard are."),
    now("scalars.lines", Kind::Text, "none", "a regular expression", "Finds numbers in lines of output: each named group is a tag, as in 'loss=(?<loss>[0-9.e+-]+)', and the one called step is the step."),
    now("tensorboard", Kind::Table, "none", "", "A service of this name that runs TensorBoard, which its image must have."),
    now("tensorboard.log_dir", Kind::Text, "\"/output\"", "an absolute path in the tasks", "Where it finds event files."),
    now("tensorboard.each_task", Kind::Bool, "false", "32 tasks at most", "Whether each task that computes has one of its own, tensorboard0, tensorboard1, …, that shows ROLE-I below log_dir."),
    now("tensorboard.image", Kind::Text, "the job's", "", "Its image."),
    now("tensorboard.resources", Kind::Table, "1 core, 1GiB", "", "What it may use."),
    now("tensorboard.resources.spec", Kind::Text, "none", "a name of `trainyard spec ls`", "A size from the administrator's list, by its numbers of cores, memory and graphics cards; keys beside it lie over these."),
    now("tensorboard.resources.cpu", CPU, "1", "0.1 to 10000", "Processor cores."),
    now("tensorboard.resources.memory", MEMORY, "\"1GiB\"", "100MB to 1024TiB", "Memory."),
    now("tensorboard.resources.shm", SHM, "half of memory", "1MiB to 1024TiB, at most memory", "Size of /dev/shm."),
    now("tensorboard.resources.pids", PIDS, "8192", "8 to 4000000", "Processes and threads."),
    now("tensorboard.resources.gpu", GPU, "0; 1 with gpu_memory or mig", "0 to 64", "Graphics cards."),
    now("tensorboard.resources.gpu_type", Kind::Text, "any", "part of a card's name", "The kind of card."),
    now("tensorboard.resources.gpu_memory", GPU_MEMORY, "whole cards", "64MiB to 1024TiB", "A share of one card."),
    now("tensorboard.resources.gpu_memory_over", OVER, "\"stop\"", "", "What is done if it uses more of a card than its share."),
    now("tensorboard.resources.mig", Kind::Text, "whole cards", "a profile, as \"1g.10gb\"", "Slices of cards."),
];

/// What a template file has beside the keys of a job.
#[rustfmt::skip]
pub const TEMPLATE_KEYS: &[Key] = &[
    now("template", Kind::Table, "", "", "Makes the file a template."),
    now("template.description", Kind::Text, "\"\"", "", "What the template is for; searched by `trainyard template ls TEXT`."),
    now("template.params", Kind::Table, "none", "", "What a job may or must say to use the template."),
    now("template.params.*", Kind::Table, "", "", "One parameter; ${NAME} in the strings of the template stands for its value."),
    now("template.params.*.type", Kind::Choice(&["string", "integer", "number", "bool", "size", "duration"]), "that of the default, or \"string\"", "", "What values it takes."),
    now("template.params.*.default", Kind::Scalar, "none: it must be given", "", "Its value when the job gives none."),
    now("template.params.*.min", Kind::Scalar, "none", "", "The least value."),
    now("template.params.*.max", Kind::Scalar, "none", "", "The largest value."),
    now("template.params.*.choices", Kind::Scalars, "any", "", "The values that there are."),
    now("template.params.*.help", Kind::Text, "\"\"", "", "What it is, in a sentence."),
];

/// The key with this path, in which names that users choose stand as `*`.
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The key that a dotted path of a job file or template stands for: `roles.worker.count` is `roles.*.count`.
pub fn lookup(path: &str) -> Option<&'static Key> {
    KEYS.iter().chain(TEMPLATE_KEYS).find(|key| {
        let mut wanted = path.split('.');
        let matches = key.path.split('.').all(|part| wanted.next().is_some_and(|given| part == "*" || part == given));
        matches && wanted.next().is_none()
    })
}

/// The last parts of the keys directly below `prefix`, without `*`.
pub fn children(prefix: &str) -> impl Iterator<Item = &'static str> {
    children_in(KEYS, prefix)
}

/// As [`children`], of one table.
pub fn children_in(keys: &'static [Key], prefix: &str) -> impl Iterator<Item = &'static str> {
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
    keys.iter().filter_map(move |key| {
        key.path.strip_prefix(prefix.as_str()).filter(|rest| !rest.contains('.') && *rest != "*")
    })
}
