//! What the names of roles mean under a framework or a contract: who only serves, whose end is the job's, who is missing.
//! A file then need only count its roles; what it says itself is left alone.

use std::collections::BTreeSet;
use std::ops::Range;

use super::job::{Command, Main, MinSucceeded, Resources, Role};
use super::platform::{Contract, Framework, Platform, Profile, Strategy};
use crate::ids::RoleName;

/// What a job says about its kind.
#[derive(Debug, Clone, Copy)]
pub(in crate::spec) struct Kinds {
    pub(in crate::spec) contract: Contract,
    pub(in crate::spec) framework: Option<Framework>,
    pub(in crate::spec) strategy: Option<Strategy>,
}

impl Default for Kinds {
    fn default() -> Self {
        Self { contract: Contract::NATIVE, framework: None, strategy: None }
    }
}

impl Kinds {
    /// One task computes as the others do, and its end is the job's.
    fn is_led_by_a_master(self) -> bool {
        self.strategy == Some(Strategy::MasterWorker)
    }

    fn is_led_by_a_launcher(self) -> bool {
        let starts_ranks = self.contract.platform == Platform::Mpi && self.framework.is_none();
        self.strategy == Some(Strategy::Launcher) || starts_ranks
    }
}

/// Roles that serve unless they say otherwise.
const SERVING: &[&str] = &["ps", "pserver", "scheduler", "server", "tensorboard"];
/// Roles that lead the others.
const LEADING: &[&str] = &["launcher", "chief", "master", "main"];
pub(in crate::spec) const LEADER: &str = "launcher";

pub(in crate::spec) fn serves(name: &RoleName, kinds: Kinds, has_command: bool) -> bool {
    let name = name.as_str().to_lowercase();
    let evaluates = kinds.framework == Some(Framework::TensorFlow) && name == "evaluator";
    let waits_for_ranks = kinds.is_led_by_a_launcher() && !LEADING.contains(&name.as_str()) && !has_command;
    SERVING.contains(&name.as_str()) || evaluates || waits_for_ranks
}

/// Platforms on which the end of the one that leads is the end of the job.
pub(in crate::spec) fn main(name: &RoleName, kinds: Kinds) -> Main {
    let leads = LEADING.contains(&name.as_str().to_lowercase().as_str());
    let decides = kinds.is_led_by_a_launcher()
        || kinds.is_led_by_a_master()
        || (kinds.contract.platform == Platform::Kubeflow && kinds.contract.profile != Profile::Swarm);
    if leads && decides { Main::Role } else { Main::No }
}

/// Tasks that only wait until they are told to start something run nothing of their own.
pub(in crate::spec) fn idles(name: &RoleName, kinds: Kinds) -> bool {
    kinds.is_led_by_a_launcher() && !LEADING.contains(&name.as_str().to_lowercase().as_str())
}

/// What tasks that [`idles`] tells of run: it starts what the one that leads sends them.
pub const AGENT: &str = "/run/trainyard/agent";

/// The command of such tasks.
pub(in crate::spec) fn idle() -> Command {
    Command::Exec(vec![AGENT.to_owned()])
}

/// What the one that leads is called where the file leaves it out. A cluster of TensorFlow 2 knows no master.
const MASTERS: [&str; 2] = ["master", "chief"];

/// Adds the master that the strategy needs and the file leaves out: it is as the first of those that compute. A task alone is led by
/// nobody. `begun`: the roles of which there are tasks already; a version before this one may have added none, or another.
pub(in crate::spec) fn lead(roles: &mut Vec<(Role, Range<usize>)>, kinds: Kinds, begun: Option<&BTreeSet<RoleName>>) {
    let leads = |role: &Role| LEADING.contains(&role.name.as_str().to_lowercase().as_str());
    if !kinds.is_led_by_a_master() || roles.iter().any(|(role, _)| leads(role)) {
        return;
    }
    let first = roles.iter().map(|(role, _)| role).find(|role| !role.serves).cloned();
    let [plain, of_tensorflow] = MASTERS;
    let usual = if kinds.framework == Some(Framework::TensorFlow) { of_tensorflow } else { plain };
    let name = match begun {
        None => usual.parse::<RoleName>().ok(),
        Some(begun) => begun.iter().find(|role| MASTERS.contains(&role.as_str())).cloned(),
    };
    let (Some(first), Some(name)) = (first, name) else { return };
    let role = Role {
        main: main(&name, kinds),
        count: 1,
        min_failed: Some(1),
        min_succeeded: MinSucceeded::All,
        name,
        ..first
    };
    roles.insert(0, (role, 0..0));
}

/// Adds the role that the strategy needs and the file leaves out, and lets a first task decide where the platform does.
/// `says_main`: the roles of which the file says whether their end is the job's.
pub(in crate::spec) fn complete(
    roles: &mut Vec<(Role, Range<usize>)>,
    kinds: Kinds,
    says_main: &BTreeSet<String>,
    plain: impl FnOnce() -> Role,
) {
    if let Some(name) = missing(roles, kinds) {
        let plain = plain();
        // It brings the others together, and computes nothing.
        let resources = Resources { gpu: 0, ..plain.resources.clone() };
        let (serves, main) = (serves(&name, kinds, true), main(&name, kinds));
        let role = Role { serves, main, count: 1, name, resources, ..plain };
        roles.insert(0, (role, 0..0));
    }
    let first_decides = kinds.contract.platform == Platform::Kubeflow
        && kinds.contract.profile != Profile::Swarm
        && kinds.framework == Some(Framework::TensorFlow);
    let leads = |role: &Role| LEADING.contains(&role.name.as_str().to_lowercase().as_str());
    if first_decides && roles.iter().all(|(role, _)| role.main == Main::No && !leads(role)) {
        let may =
            |role: &Role| role.name.as_str().eq_ignore_ascii_case("worker") && !says_main.contains(role.name.as_str());
        for (role, _) in roles.iter_mut().filter(|(role, _)| may(role)) {
            role.main = Main::FirstTask;
        }
    }
}

/// Platforms that start servers of parameters beside the nodes of a job that names none.
pub fn starts_servers(contract: Contract) -> bool {
    let Contract { platform, profile } = contract;
    matches!(platform, Platform::SageMaker | Platform::Uai) || (platform == Platform::Tione && profile == Profile::Old)
}

fn missing(roles: &[(Role, Range<usize>)], kinds: Kinds) -> Option<RoleName> {
    let has =
        |names: &[&str]| roles.iter().any(|(role, _)| names.contains(&role.name.as_str().to_lowercase().as_str()));
    let (wanted, are_there): (&str, bool) = match kinds.framework {
        Some(Framework::MxNet) if starts_servers(kinds.contract) && !has(&["ps", "server", "pserver"]) => return None,
        Some(Framework::MxNet | Framework::MindSpore) => ("scheduler", has(&["scheduler"])),
        // Whoever has a command of its own leads, whatever it is called.
        _ if kinds.is_led_by_a_launcher() => (LEADER, roles.iter().any(|(role, _)| role.command != idle())),
        _ => return None,
    };
    // A job of one task needs nobody to bring it together.
    let is_alone = roles.iter().map(|(role, _)| role.count).sum::<u32>() <= 1;
    if are_there || (is_alone && has(&["main"])) { None } else { wanted.parse().ok() }
}

/// Why the roles cannot be what the framework makes of them: where, the key, and what is wrong.
pub(in crate::spec) fn problem(roles: &[(Role, Range<usize>)], kinds: Kinds) -> Option<(Range<usize>, String, String)> {
    let named = |name: &str| roles.iter().find(|(role, _)| role.name.as_str().eq_ignore_ascii_case(name));
    let alone: &[&str] = match kinds.framework {
        Some(Framework::TensorFlow) => &["chief", "master", "evaluator"],
        Some(Framework::MxNet | Framework::MindSpore) => &["scheduler"],
        Some(Framework::PyTorch | Framework::XgBoost) => &["master"],
        _ if kinds.is_led_by_a_launcher() => &[LEADER],
        _ if kinds.is_led_by_a_master() => &["master"],
        _ => &[],
    };
    for name in alone {
        if let Some((role, span)) = named(name).filter(|(role, _)| role.count > 1) {
            let key = format!("roles.{}.count", role.name);
            return Some((span.clone(), key, format!("there can be only one {name}, not {}", role.count)));
        }
    }
    if kinds.framework == Some(Framework::TensorFlow)
        && let (Some((master, span)), Some(_)) = (named("master"), named("chief"))
    {
        let key = format!("roles.{}", master.name);
        return Some((span.clone(), key, "a cluster of TensorFlow has a chief or a master, not both".to_owned()));
    }
    of_contract(roles, kinds.contract)
}

/// Characters that role names may hold on a platform: on some, they become parts of variables that others must read.
fn of_contract(roles: &[(Role, Range<usize>)], contract: Contract) -> Option<(Range<usize>, String, String)> {
    let (may, told): (fn(char) -> bool, _) = match contract.platform {
        Platform::OpenPai => {
            (|c| c.is_ascii_alphanumeric() || "._~".contains(c), "letters A–Z and a–z, digits, '.', '_' and '~'")
        }
        _ => return None,
    };
    for (role, span) in roles {
        let labels = role.ports.iter().map(|port| ("label of a port", port.label.as_str(), "ports"));
        let mut names = std::iter::once(("name of a role", role.name.as_str(), "")).chain(labels);
        let Some((what, name, key)) = names.find(|(_, name, _)| !name.chars().all(may)) else { continue };
        let message = format!("under contract {contract} the {what} holds {told} only, not {name:?}");
        let key =
            if key.is_empty() { format!("roles.{}", role.name) } else { format!("roles.{}.{key}.{name}", role.name) };
        return Some((span.clone(), key, message));
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::spec::{Command, Main, parse};

    fn roles(text: &str) -> Vec<(String, u32, Main, bool)> {
        let (spec, found) = parse("a.toml", text);
        let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
        spec.roles.iter().map(|role| (role.name.to_string(), role.count, role.main, role.serves)).collect()
    }

    fn error(text: &str) -> String {
        parse("a.toml", text).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_only_counts_and_the_strategy_says_what_roles_are() {
        let row = |name: &str, count, main, serves| (name.to_owned(), count, main, serves);
        assert_eq!(
            roles("framework = \"mxnet\"\n[roles.server]\n[roles.worker]\ncount = 2"),
            [row("scheduler", 1, Main::No, true), row("server", 1, Main::No, true), row("worker", 2, Main::No, false)]
        );
        assert_eq!(
            roles("framework = \"tensorflow\"\n[roles.chief]\n[roles.ps]\n[roles.worker]\n[roles.evaluator]"),
            [
                row("chief", 1, Main::No, false),
                row("ps", 1, Main::No, true),
                row("worker", 1, Main::No, false),
                row("evaluator", 1, Main::No, true)
            ]
        );
        assert_eq!(
            roles("contract = \"kubeflow\"\nframework = \"tensorflow\"\n[roles.ps]\n[roles.worker]\ncount = 2"),
            [row("ps", 1, Main::No, true), row("worker", 2, Main::FirstTask, false)]
        );
        assert_eq!(
            roles("contract = \"kubeflow\"\nframework = \"tensorflow\"\n[roles.worker]\ncount = 2\nmain = false"),
            [row("worker", 2, Main::No, false)],
            "all workers, then"
        );
        assert_eq!(
            roles("contract = \"kubeflow\"\nframework = \"tensorflow\"\n[roles.ps]\nmain = false\n[roles.worker]"),
            [row("ps", 1, Main::No, true), row("worker", 1, Main::FirstTask, false)],
            "said of the other"
        );
        assert_eq!(
            roles("contract = \"kubeflow\"\nframework = \"tensorflow\"\n[roles.chief]\nmain = false\n[roles.worker]"),
            [row("chief", 1, Main::No, false), row("worker", 1, Main::No, false)],
            "a worker's end does not stop a chief"
        );
        assert_eq!(
            roles("contract = \"mpi/nauta\"\nframework = \"tensorflow\"\n[roles.ps]\n[roles.worker]\ncount = 2"),
            [row("ps", 1, Main::No, true), row("worker", 2, Main::No, false)],
            "no launcher, since no ranks"
        );
        assert_eq!(
            roles("contract = \"kubeflow\"\nframework = \"pytorch\"\n[roles.master]\n[roles.worker]"),
            [row("master", 1, Main::Role, false), row("worker", 1, Main::No, false)]
        );
        assert_eq!(
            roles("contract = \"kubeflow/swarm\"\nframework = \"tensorflow\"\n[roles.ps]\n[roles.worker]"),
            [row("ps", 1, Main::No, true), row("worker", 1, Main::No, false)]
        );
    }

    #[test]
    fn one_leads_under_master_worker_and_its_end_is_the_job_s() {
        let row = |name: &str, count, main| (name.to_owned(), count, main, false);
        for framework in ["pytorch", "xgboost", "jax", "deepspeed", "tensorflow"] {
            let of = |strategy: &str, text: &str| {
                roles(&format!("framework = \"{framework}\"\nstrategy = \"{strategy}\"\n{text}"))
            };
            let workers = "[roles.worker]\ncount = 2";
            let master = if framework == "tensorflow" { "chief" } else { "master" };
            assert_eq!(of("master-worker", workers), [row(master, 1, Main::Role), row("worker", 2, Main::No)]);
            let named = format!("[roles.master]\n{workers}");
            assert_eq!(of("master-worker", &named), [row("master", 1, Main::Role), row("worker", 2, Main::No)]);
            assert_eq!(of("allreduce", &named)[0], row("master", 1, Main::No), "all are alike");
            assert_eq!(of("allreduce", workers), [row("worker", 2, Main::No)]);
            assert_eq!(of("master-worker", ""), [row("main", 1, Main::Role)], "a task alone leads itself");
        }
        let text = "framework = \"jax\"\nstrategy = \"master-worker\"\n[roles.worker]\ncount = 2\nresources.gpu = 1\n\
                    min_failed = 2\ncode = \"c\"\ncommand = \"x\"";
        let (spec, _) = parse("a.toml", text);
        let spec = spec.unwrap();
        let (master, worker) = (&spec.roles[0], &spec.roles[1]);
        assert_eq!((master.resources.gpu, &master.code, &master.command), (1, &worker.code, &worker.command));
        assert_eq!((master.min_failed, worker.min_failed), (Some(1), Some(2)));
        assert!(
            error("framework = \"jax\"\nstrategy = \"master-worker\"\n[roles.master]\ncount = 2")
                .contains("only one master")
        );
        // Servers that nobody plays are told of where the file asks for them, not where it says nothing.
        let told = |strategy: &str| error(&format!("framework = \"tensorflow\"\n{strategy}[roles.worker]\ncount = 2"));
        assert!(told("strategy = \"ps\"\n").contains("add [roles.ps]"), "{}", told("strategy = \"ps\"\n"));
        assert_eq!(told(""), "");
    }

    #[test]
    fn no_scheduler_is_added_where_the_platform_starts_one_beside_the_nodes() {
        let names = |contract: &str, more: &str| {
            let text = format!("contract = \"{contract}\"\nframework = \"mxnet\"\n[roles.worker]\ncount = 2\n{more}");
            roles(&text).into_iter().map(|(name, ..)| name).collect::<Vec<_>>().join(" ")
        };
        for contract in ["sagemaker", "uai", "tione/1"] {
            assert_eq!(names(contract, ""), "worker");
            assert_eq!(names(contract, "[roles.server]"), "scheduler worker server", "the file's own servers need it");
        }
        assert_eq!(names("tione", ""), "scheduler worker");
    }

    #[test]
    fn a_launcher_is_added_and_the_others_wait_for_it() {
        let (spec, _) = parse("a.toml", "framework = \"mpi\"\ncommand = \"mpirun pi\"\n[roles.worker]\ncount = 2");
        let spec = spec.unwrap();
        assert_eq!((spec.roles[0].name.as_str(), spec.roles[0].main), ("launcher", Main::Role));
        assert_eq!(spec.roles[0].command, Command::Shell("mpirun pi".into()));
        assert_eq!(spec.roles[1].command, Command::Exec(vec!["/run/trainyard/agent".into()]));
        assert!(spec.roles[1].serves);
        assert_eq!(roles("framework = \"mpi\"\ncommand = \"mpirun pi\"").len(), 1, "one task leads itself");
    }

    #[test]
    fn what_a_framework_cannot_have_is_refused_by_name() {
        for (text, words) in [
            ("framework = \"tensorflow\"\n[roles.chief]\ncount = 2", "only one chief, not 2"),
            ("framework = \"tensorflow\"\n[roles.chief]\n[roles.master]", "a chief or a master, not both"),
            ("framework = \"pytorch\"\nstrategy = \"ps\"", "pytorch is trained by \"allreduce\""),
            ("strategy = \"ps\"", "name that as well"),
            ("contract = \"openpai\"\n[roles.ps-1]", "the name of a role holds letters A–Z and a–z, digits"),
            ("contract = \"openpai\"\nroles.a.ports.x-y = 1", "the label of a port holds letters A–Z and a–z, digits"),
            ("network = \"job\"\nframework = \"mpi\"\n[roles.worker]\ncount = 2", "use network = \"task\""),
            ("contract = \"seldon\"", "Seldon Core serves models"),
            ("contract = \"sagmaker\"", "did you mean \"sagemaker\""),
            ("framework = \"keras\"", "must be \"none\" or \"pytorch\""),
            ("retry = { on = [\"luck\"] }", "no kind of failure"),
            ("after = [\"a/b\"]", "cannot be a job of this workspace"),
            ("datasets = [\"train=a\", \"train=b\"]", "would see as \"train\""),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
    }
}
