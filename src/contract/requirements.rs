//! Python packages that the code lists, and is: which platforms install them, and how a task sees them.

use super::{Task, sagemaker};
use crate::spec::{Command, Platform, Profile};

/// Where a task sees the environment that they are installed into.
pub const PLACE: &str = "/run/trainyard/requirements";
/// Where pip keeps what it has built and fetched.
pub const WHEELS: &str = "/run/trainyard/wheels";

/// The file in the root of the code that makes a package of it.
pub const SETUP: &str = "setup.py";

/// What of the code is to be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The list, in the root of the code.
    pub file: &'static str,
    /// Where the code is installed itself if it has a [`SETUP`]: a place of it in which the task may write.
    pub package: Option<&'static str>,
    /// The list counts also where there is no package.
    pub list_alone: bool,
    /// The job itself asks for it.
    pub must_be_there: bool,
}

/// Whether the task's code, or what it lists, is installed before its command: as the job says or, where it says nothing, as its
/// platform does.
pub fn wanted(task: &Task<'_>) -> Option<Wanted> {
    task.role.code.as_ref().filter(|_| !has_image_of_its_own(task))?;
    let of_platform = of_platform(task.spec.contract.platform, task.spec.contract.profile);
    let package = (task.spec.contract.platform == Platform::SageMaker).then_some("/opt/ml/code");
    let program = package.filter(|_| task.role.command == Command::Default).and_then(|_| sagemaker::program(task));
    match (task.spec.requirements, program) {
        (Some(false), _) => None,
        (Some(true), _) => {
            let file = of_platform.unwrap_or("requirements.txt");
            Some(Wanted { file, package, list_alone: true, must_be_there: true })
        }
        (None, Some(program)) if sagemaker::is_program(&program) => None,
        (None, program) => {
            let list_alone = program.is_none_or(|program| program.ends_with(".py"));
            of_platform.map(|file| Wanted { file, package, list_alone, must_be_there: false })
        }
    }
}

/// A service that looks at a job by what the tasks have, such as a notebook, has their packages. What one with another image needs is
/// in that image: it must come up whatever the code lists.
fn has_image_of_its_own(task: &Task<'_>) -> bool {
    task.role.is_service && task.spec.members().all(|role| role.image != task.role.image)
}

fn of_platform(platform: Platform, profile: Profile) -> Option<&'static str> {
    match (platform, profile) {
        (Platform::SageMaker | Platform::Pai, _) | (Platform::Kubeflow, Profile::Swarm) => Some("requirements.txt"),
        (Platform::ModelArts, _) => Some("pip-requirements.txt"),
        _ => None,
    }
}

/// Lets the task find what is installed: by its programs, also by a Python that is called by its path.
pub fn reach(env: &mut Vec<(String, String)>) {
    let mut before = |name: &str, first: String| match env.iter_mut().find(|(known, _)| known == name) {
        Some((_, value)) if !value.is_empty() => *value = format!("{first}:{value}"),
        Some((_, value)) => *value = first,
        None => env.push((name.to_owned(), first)),
    };
    before("PATH", format!("{PLACE}/env/bin"));
    before("PYTHONPATH", format!("{PLACE}/site"));
    env.push(("VIRTUAL_ENV".to_owned(), format!("{PLACE}/env")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_comes_before_what_there_is() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut env = vec![pair("PATH", "/usr/bin"), pair("X", "y")];
        reach(&mut env);
        assert_eq!(env[0], pair("PATH", "/run/trainyard/requirements/env/bin:/usr/bin"));
        assert_eq!(env[2], pair("PYTHONPATH", "/run/trainyard/requirements/site"));
        assert_eq!(env[3], pair("VIRTUAL_ENV", "/run/trainyard/requirements/env"));
    }

    #[test]
    fn a_service_has_the_packages_of_the_tasks_unless_it_has_an_image_of_its_own() {
        let job = "code = 'c'\ncommand = 'x'\nimage = 'lab/train'\nrequirements = true\n\
                   [services.notebook]\ncommand = 'x'\nport = 1\n[services.own]\ncommand = 'x'\nport = 2\nimage = 'lab/own'\n";
        let (spec, found) = crate::spec::parse("job.toml", job);
        let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
        let sample = crate::contract::Sample::of("job.toml", &spec);
        let have = |task: &Task<'_>| wanted(task).map(|_| task.role.name.to_string());
        assert_eq!(sample.tasks(&spec).filter_map(|task| have(&task)).collect::<Vec<_>>(), ["main", "notebook"]);
    }

    #[test]
    fn amazon_s_toolkit_installs_for_python_alone() {
        let of = |rest: &str| {
            let job = format!("contract = 'sagemaker'\ncode = 'c'\n{rest}");
            let (spec, found) = crate::spec::parse("job.toml", &job);
            let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
            crate::contract::Sample::of("job.toml", &spec).tasks(&spec).next().and_then(|task| wanted(&task))
        };
        let (file, package) = ("requirements.txt", Some("/opt/ml/code"));
        let script = Wanted { file, package, list_alone: true, must_be_there: false };
        assert_eq!(of("params.sagemaker_program = 'train.py'"), Some(script));
        assert_eq!(of("command = 'sh train.sh'"), Some(script), "it may run Python, as far as we know");
        assert_eq!(of("env.SAGEMAKER_PROGRAM = 'own'"), Some(Wanted { list_alone: false, ..script }));
        assert_eq!(of("params.sagemaker_program = 'train.sh'"), None);
        let asked = of("params.sagemaker_program = 'train.sh'\nrequirements = true");
        assert_eq!(asked, Some(Wanted { must_be_there: true, ..script }));
        assert_eq!(of("params.sagemaker_program = 'train.py'\nrequirements = false"), None);
    }
}
