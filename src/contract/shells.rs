//! Which shell runs a command that is a string.
//!
//! `/bin/sh`, unless the task is told variables that no shell can name, such as `SM_HP_BATCH-SIZE` or `PAI_HOST_IP_a.b_0`: dash and
//! busybox, which are `/bin/sh` of many images, drop these from the environment of all that they start, and bash keeps them. So such a
//! command is run by bash where the image has one.

use std::collections::BTreeMap;

use super::{Identity, Inside, Placement, Task, command, join};
use crate::ids::RoleName;
use crate::spec::{Command, JobSpec, Platform, Role};

pub(super) const SH: &str = "/bin/sh";
/// So many variables are named at most.
const NAMED_MAX: usize = 3;

/// Variables that no shell can name, by the roles whose tasks are told them. The tasks of a role have the same ones but for numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unspeakable(BTreeMap<RoleName, Vec<String>>);

impl Unspeakable {
    /// Found once for each role: what one task is told grows with the number of all.
    pub fn of(spec: &JobSpec, identity: &Identity, placement: &Placement) -> Self {
        let (inside, none) = (Inside::default(), Self::default());
        let tasks = Task::all(spec, identity, placement, &inside, &none);
        let firsts = tasks.iter().filter(|task| task.index == 0);
        Self(firsts.map(|task| (task.role.name.clone(), names(task))).collect())
    }

    fn of_role(&self, role: &Role) -> &[String] {
        self.0.get(&role.name).map_or(&[], Vec::as_slice)
    }
}

/// Those that the job's file gives, and under another platform's contract those of the platform. What the image sets itself it can
/// do without, and under `native` the names of other platforms are beside our own.
fn names(task: &Task<'_>) -> Vec<String> {
    let told = match task.spec.contract.platform {
        Platform::Native => task.role.env.clone(),
        _ => super::told(task),
    };
    let mut names: Vec<String> = told.into_iter().map(|(name, _)| name).filter(|name| !is_speakable(name)).collect();
    names.sort();
    names.dedup();
    names
}

/// The path of the shell.
pub(super) fn of_task<'t>(task: &Task<'t>) -> &'t str {
    match &task.inside.bash {
        Some(bash) if !task.unspeakable.of_role(task.role).is_empty() => bash,
        _ => SH,
    }
}

/// The variables that a shell may drop, where one starts the task's program; in words.
pub fn dropped(task: &Task<'_>) -> Option<String> {
    let names = task.unspeakable.of_role(task.role);
    if names.is_empty() || !command::needs_shell(task) {
        return None;
    }
    let (first, more) = names.split_at(names.len().min(NAMED_MAX));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    Some(join(first, ", ") + &more)
}

/// What is to be told where the image of such a task has no bash.
pub fn remark(task: &Task<'_>) -> Option<String> {
    let names = dropped(task).filter(|_| task.inside.bash.is_none())?;
    // Where a platform's own start needs the shell, an array is behind it all the same.
    let or_none = match &task.role.command {
        Command::Shell(_) if super::servers::program(task).is_none() => {
            "write `command` as an array, which needs no shell, or "
        }
        _ => "",
    };
    Some(format!(
        "role {}: its image has no bash, so {SH} runs the command, and may drop variables whose names no shell can set: {names}; \
         {or_none}take an image with bash",
        task.role.name
    ))
}

fn is_speakable(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Sample, view};
    use crate::spec::parse;

    /// By what the first task of such a job runs, and what is told of it.
    fn runs(bash: Option<&str>, text: &str) -> (Vec<String>, Option<String>) {
        let (spec, found) = parse("j.toml", text);
        let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
        let mut sample = Sample::of("j.toml", &spec);
        sample.inside.bash = bash.map(str::to_owned);
        let task = sample.tasks(&spec).next().unwrap();
        (view(&task).args, remark(&task))
    }

    #[test]
    fn bash_runs_a_command_that_is_told_what_no_shell_can_name() {
        let bash = Some("/usr/bin/bash");
        for (job, name) in [
            ("env.\"A-B\" = \"1\"\ncommand = \"x\"", "A-B"),
            ("env.1A = \"1\"\ncommand = \"x\"", "1A"),
            ("contract = \"sagemaker\"\ncommand = \"x\"\nparams.batch-size = 1", "SM_HP_BATCH-SIZE"),
            ("contract = \"sagemaker\"\nparams.sagemaker_program = \"t.sh\"\nparams.a-b = 1", "SM_HP_A-B"),
            ("contract = \"tione/1\"\ncommand = \"x\"\ndatasets = [\"train-data=d\"]", "TM_CHANNEL_TRAIN-DATA"),
            ("contract = \"openpai\"\ncommand = \"x\"\nroles.\"a.b\".ports.p = 1", "PAI_HOST_IP_a.b_0"),
        ] {
            let (with, told) = runs(bash, job);
            assert_eq!((with[..2].join(" "), told), ("/usr/bin/bash -c".to_owned(), None), "{job}");
            let (without, told) = runs(None, job);
            assert_eq!(without[..2], ["/bin/sh", "-c"], "{job}");
            assert!(told.as_ref().is_some_and(|told| told.contains(name)), "{job}: {told:?}");
        }
        let many = runs(None, "command = \"x\"\nenv = { a-1 = \"\", a-2 = \"\", a-3 = \"\", a-4 = \"\" }").1.unwrap();
        assert!(many.contains(": a-1, a-2, a-3 and 1 more; "), "{many}");
    }

    #[test]
    fn each_role_has_names_of_its_own_and_its_tasks_have_them_alike() {
        let job = "command = \"x\"\n[roles.a]\ncount = 2\nenv.\"A-B\" = \"1\"\n[roles.b]\n[services.s]\ncommand = \"x\"\nport = 80\nenv.\"S-B\" = \"1\"";
        let spec = parse("j.toml", job).0.unwrap();
        let sample = Sample::of("j.toml", &spec);
        let told: Vec<_> = sample.tasks(&spec).map(|task| (task.role.name.to_string(), dropped(&task))).collect();
        let of = |role: &str, names: Option<&str>| (role.to_owned(), names.map(str::to_owned));
        assert_eq!(told, [of("a", Some("A-B")), of("a", Some("A-B")), of("b", None), of("s", Some("S-B"))]);
    }

    #[test]
    fn a_usual_job_and_one_without_a_shell_run_as_they_did() {
        for job in [
            "command = \"x\"\nenv.A_b1 = \"1\"",
            // OpenPAI's names are beside our own.
            "command = \"x\"\nroles.\"a.b\".count = 2",
            "contract = \"sagemaker\"\ncommand = \"x\"\nparams.lr = 1",
        ] {
            let (args, told) = runs(Some("/bin/bash"), job);
            assert_eq!((args[0].as_str(), told), ("/bin/sh", None), "{job}");
            assert_eq!(runs(None, job).1, None, "{job}");
        }
        for job in [
            "command = [\"/bin/sh\", \"-c\", \"x\"]\nenv.\"A-B\" = \"1\"",
            "contract = \"sagemaker\"\ncode = \"c\"\nparams.sagemaker_program = \"t.py\"\nparams.a-b = 1",
        ] {
            assert_eq!(runs(None, job), (runs(Some("/bin/bash"), job).0, None), "{job}");
        }
    }

    #[test]
    fn what_starts_programs_beside_the_command_is_of_that_shell_too() {
        let job = "contract = \"sagemaker\"\nframework = \"tensorflow\"\ncommand = [\"x\"]\nparams.a-b = 1\nroles.w.count = 2";
        let of = |bash: Option<&str>, job: &str, path: &str| {
            let spec = parse("j.toml", job).0.unwrap();
            let mut sample = Sample::of("j.toml", &spec);
            sample.inside.bash = bash.map(str::to_owned);
            let mut views = sample.tasks(&spec).map(|task| view(&task));
            views.find_map(|view| view.files.into_iter().find(|file| file.path == path)).unwrap().content
        };
        let servers = |bash| of(bash, job, "/run/trainyard/servers");
        assert!(servers(Some("/bin/bash")).starts_with("#!/bin/bash\n") && servers(None).starts_with("#!/bin/sh\n"));
        let remark = |job: &str| runs(None, job).1.unwrap();
        // To write an array helps where it makes the shell needless.
        assert!(remark(job).ends_with(": SM_HP_A-B; take an image with bash"), "{}", remark(job));
        let line = job.replace("[\"x\"]", "\"x\"");
        assert!(remark(&line).ends_with(": SM_HP_A-B; take an image with bash"), "{}", remark(&line));
        let alone = line.replace("w.count = 2", "w.count = 1");
        assert!(
            remark(&alone).ends_with(
                ": SM_HP_A-B; write `command` as an array, which needs no shell, or take an image with bash"
            )
        );
        let ranks = job.replace("tensorflow", "mpi").replace("params.", "env.").replace("= 1", "= \"1\"");
        let agent = of(Some("/bin/bash"), &ranks, "/run/trainyard/agent");
        assert!(agent.starts_with("#!/bin/bash\n") && !agent.contains("/bin/sh"), "{agent}");
    }
}
