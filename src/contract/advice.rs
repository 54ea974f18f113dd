//! What is to be said of a job because of its contract: names that its platform would refuse, inputs that nobody gives, and
//! what no directory or variable can stand for.

mod lost;

use super::{Sample, azureml, gpus, modelarts, topology};
use crate::ids::{Cpu, JobName};
use crate::spec::{Command, Dataset, Diagnostic, JobSpec, ListItem, Network, Param, Platform, Profile, Role, Severity};

/// A sentence about a job, and the key that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    pub key: &'static str,
    pub text: String,
}

/// All of it as diagnostics of the job file `file` with the content `text`.
pub fn diagnostics(file: &str, text: &str, name: &JobName, spec: &JobSpec) -> Vec<Diagnostic> {
    let told = |severity: Severity| {
        move |advice: Advice| {
            // The line that begins with the key, where there is one.
            let is_key =
                |line: &str| line.strip_prefix(advice.key).is_some_and(|rest| rest.trim_start().starts_with('='));
            let line = text.lines().position(is_key).map_or(0, |at| at + 1);
            let (file, key) = (file.to_owned(), Some(advice.key.to_owned()));
            Diagnostic { severity, file, line, column: line.min(1), key, message: advice.text }
        }
    };
    let errors = refusals(name, spec).into_iter().map(told(Severity::Error));
    errors.chain(warnings(spec).into_iter().map(told(Severity::Warning))).collect()
}

/// What keeps a job of this name from running under its contract.
pub fn refusals(name: &JobName, spec: &JobSpec) -> Vec<Advice> {
    let mut out: Vec<Advice> = name_problem(name.as_str(), spec).into_iter().collect();
    out.extend(gpus::refusals(spec));
    match spec.contract.platform {
        Platform::AzureMl => out.extend(inputs_that_nobody_gives(spec)),
        Platform::OpenPai => out.extend(spec.members().filter_map(too_small)),
        Platform::ModelArts if spec.contract.profile == Profile::Plain => out.extend(input_called_as_the_output(spec)),
        _ => {}
    }
    out
}

/// What its owner should know.
pub fn warnings(spec: &JobSpec) -> Vec<Advice> {
    let mut out: Vec<Advice> = stores(spec).map(store_warning).collect();
    out.extend(gpus::warnings(spec));
    out.extend(uneven_servers(spec));
    out.extend(beyond_the_platform(spec));
    out.extend(lost::roles(spec));
    out.extend(lost::unknown_role(spec));
    out.extend(lost::params(spec));
    out.extend(lost::namesake(spec));
    out.extend(ports_on_one_network(spec));
    out
}

/// Rules of platforms for the names of jobs: how long, and which characters.
fn name_problem(name: &str, spec: &JobSpec) -> Option<Advice> {
    type Rule = (usize, fn(char) -> bool, &'static str);
    let plain: fn(char) -> bool = |c| c.is_ascii_alphanumeric() || c == '-';
    let (most, may, told): Rule = match (spec.contract.platform, spec.contract.profile) {
        (Platform::Volcano, Profile::Octopus) => {
            (30, |c| c.is_alphanumeric() || "-_".contains(c), "letters of any script, digits, '-' and '_'")
        }
        (Platform::Kubeflow, Profile::Swarm) => (64, plain, "letters a–z, digits and '-'"),
        (Platform::SageMaker, _) => (63, plain, "letters a–z, digits and '-'"),
        (Platform::ModelArts, _) => {
            (64, |c| c.is_ascii_alphanumeric() || "-_".contains(c), "letters a–z, digits, '-' and '_'")
        }
        (Platform::OpenPai, _) => {
            (255, |c| c.is_ascii_alphanumeric() || "-._~".contains(c), "letters a–z, digits, '-', '.', '_' and '~'")
        }
        (Platform::Paddle, Profile::Old) => (64, |c| c != '_', "no '_'"),
        _ => return None,
    };
    let count = name.chars().count();
    let text = if count > most {
        format!("under contract {} a job's name has {most} characters at most, {name:?} has {count}", spec.contract)
    } else if spec.contract.platform == Platform::SageMaker && (name.starts_with('-') || name.ends_with('-')) {
        format!(
            "under contract {} a job's name begins and ends with a letter or a digit, unlike {name:?}",
            spec.contract
        )
    } else if !name.chars().all(may) {
        format!("under contract {} a job's name may hold {told}: rename the file of {name:?}", spec.contract)
    } else {
        return None;
    };
    Some(Advice { key: "contract", text })
}

/// OpenPAI takes whole cores.
fn too_small(role: &Role) -> Option<Advice> {
    let cpu = role.resources.cpu;
    let text =
        format!("under contract openpai a task has 1 core (cpuNumber) at least, role {} has cpu = {cpu}", role.name);
    (cpu < Cpu(1000)).then_some(Advice { key: "resources", text })
}

/// Scripts would be given one argument twice, and take the last.
fn input_called_as_the_output(spec: &JobSpec) -> Option<Advice> {
    let name = modelarts::OUTPUT_NAME;
    let called = |dataset: &&Dataset| dataset.channel.as_ref().is_some_and(|channel| channel.as_str() == name);
    spec.datasets.iter().find(called).map(|dataset| Advice {
        key: "datasets",
        text: format!(
            "`datasets` has {:?}, but under contract modelarts --{name} tells scripts where their output goes: call the \
             channel otherwise",
            dataset.to_string()
        ),
    })
}

fn inputs_that_nobody_gives(spec: &JobSpec) -> Vec<Advice> {
    let sample = Sample::of("job.toml", spec);
    let mut missing: Vec<String> = Vec::new();
    for task in sample.tasks(spec) {
        let text = match &task.role.command {
            Command::Shell(text) => text.clone(),
            Command::Exec(words) => words.join(" "),
            Command::Default => continue,
        };
        missing.extend(azureml::unknown_inputs(&task, &text));
    }
    missing.sort();
    missing.dedup();
    let advice = |name: String| Advice {
        key: "command",
        text: format!("`command` asks for ${{{{inputs.{name}}}}}, but there is no dataset or parameter of that name"),
    };
    missing.into_iter().map(advice).collect()
}

/// Addresses that only a client of the store can read.
const STORES: &[(&str, &str)] = &[
    ("gs://", "Google Cloud Storage"),
    ("obs://", "Huawei OBS"),
    ("oss://", "Alibaba OSS"),
    ("s3://", "Amazon S3"),
    ("fds://", "Xiaomi FDS"),
    ("hdfs://", "HDFS"),
    ("abfs://", "Azure storage"),
    ("azureml://", "Azure Machine Learning"),
];

fn stores(spec: &JobSpec) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut words: Vec<&str> = Vec::new();
    for role in &spec.roles {
        match &role.command {
            Command::Shell(text) => words.push(text),
            Command::Exec(parts) => words.extend(parts.iter().map(String::as_str)),
            Command::Default => {}
        }
        words.extend(role.env.iter().map(|(_, value)| value.as_str()));
        for (_, param) in &role.params {
            match param {
                Param::Value(value) => words.push(value),
                Param::List(values) => words.extend(values.iter().map(ListItem::as_str)),
                Param::Flag => {}
            }
        }
    }
    let found: Vec<_> =
        STORES.iter().filter(|(scheme, _)| words.iter().any(|word| word.contains(scheme))).copied().collect();
    found.into_iter()
}

fn store_warning((scheme, store): (&str, &str)) -> Advice {
    let kind = match scheme {
        "s3://" | "obs://" => Some("s3"),
        "oss://" => Some("oss"),
        "hdfs://" => Some("webhdfs"),
        _ => None,
    };
    let copied = kind.map(|kind| {
        format!(", or have it copied in: mounts = [{{ source = \"{kind}:POOL/PREFIX\", target = \"/input\" }}]")
    });
    let text = format!(
        "it names {scheme}…: Trainyard mounts nothing of {store}, so only a client with its own credentials and a way out can \
         read that; put the data into datasets/ and name it in `datasets`{}",
        copied.unwrap_or_default()
    );
    Advice { key: "command", text }
}

/// Elsewhere each task has an address of its own.
fn ports_on_one_network(spec: &JobSpec) -> Option<Advice> {
    let tasks: u32 = spec.members().map(|role| role.count).sum();
    if spec.network == Network::Task || spec.contract.tells_ports() || tasks < 2 {
        return None;
    }
    let text = format!(
        "scripts for contract {} may listen on one and the same port in every task, and these share a network: each is told ports of \
         its own, but a list of hosts without ports leads to the wrong task, and a port that a script fixes itself is taken; leave \
         `network` out, or write network = \"task\"",
        spec.contract
    );
    Some(Advice { key: "network", text })
}

/// UAI-Train takes as many servers as workers.
fn uneven_servers(spec: &JobSpec) -> Option<Advice> {
    if spec.contract.platform != Platform::Uai {
        return None;
    }
    let sample = Sample::of("job.toml", spec);
    let first = sample.tasks(spec).next()?;
    let (servers, workers) = (topology::called(&first, topology::SERVERS).len(), topology::nodes(&first).len());
    (servers > 0 && servers != workers).then(|| Advice {
        key: "roles",
        text: format!("UAI-Train runs one parameter server for each node; the file has {servers} for {workers}"),
    })
}

/// What runs here, and would be refused by the platform itself: told to who will take the job back there.
fn beyond_the_platform(spec: &JobSpec) -> Vec<Advice> {
    let mut out = Vec::new();
    let mut say = |key, text: String| {
        out.push(Advice {
            key,
            text: format!("{text}; it runs here, contract {} itself would refuse it", spec.contract),
        });
    };
    let mut at_most = |key, what: &str, count: usize, most: usize| {
        if count > most {
            say(key, format!("there are {count} {what}, {most} at most are allowed"));
        }
    };
    let most = |of: fn(&Role) -> usize| spec.members().map(of).max().unwrap_or(0);
    let (params, env) = (most(|role| role.params.len()), most(|role| role.env.len()));
    match spec.contract.platform {
        Platform::SageMaker => {
            at_most("params", "hyperparameters", params, 100);
            at_most("env", "variables", env, 100);
            at_most("datasets", "channels", spec.datasets.len(), 20);
            let longest =
                |role: &Role| role.params.iter().map(|(_, param)| super::parameters::text(param).chars().count()).max();
            at_most(
                "params",
                "characters in a hyperparameter",
                spec.members().filter_map(longest).max().unwrap_or(0),
                2500,
            );
        }
        Platform::ModelArts => at_most("env", "variables", env, 100),
        Platform::Google => at_most("env", "variables", env, 100),
        _ => {}
    }
    let is_own = |(name, _): &&(String, String)| name.starts_with("MA_");
    if spec.contract.platform == Platform::ModelArts
        && let Some((name, _)) = spec.members().flat_map(|role| &role.env).find(is_own)
    {
        say("env", format!("{name} begins as only the platform's own variables do"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_platform_itself_would_refuse_is_told() {
        let told = |text: &str| warnings(&spec(text)).into_iter().map(|advice| advice.text).collect::<String>();
        let workers = |count: u32, more: &str| {
            format!(
                "contract = \"uai\"\nframework = \"mxnet\"\ncommand = \"x\"\n[roles.worker]\ncount = {count}\n{more}"
            )
        };
        assert_eq!(told(&workers(4, "")), "");
        assert!(told(&workers(2, "[roles.server]\n")).contains("the file has 1 for 2"));
        let many: String = (0..101).map(|number| format!("p{number} = 1\n")).collect();
        assert!(
            told(&format!("contract = \"sagemaker\"\ncommand = \"x\"\n[params]\n{many}"))
                .contains("101 hyperparameters")
        );
        let twice = "contract = \"modelarts\"\ncommand = \"x\"\ndatasets = [\"train_url=d\"]";
        let spec = crate::spec::parse("j.toml", twice).0.unwrap();
        let refused = diagnostics("j.toml", twice, &"j".parse().unwrap(), &spec);
        assert!(
            refused[0].is_error() && refused[0].to_string().starts_with("j.toml:3:1: `datasets` has \"train_url=d\""),
            "{refused:?}"
        );
        let old = crate::spec::parse("j.toml", &twice.replace("modelarts", "modelarts/1")).0.unwrap();
        assert!(refusals(&"j".parse().unwrap(), &old).is_empty(), "there it is a directory's name alone");
        assert!(told("contract = \"modelarts\"\ncommand = \"x\"\nenv.MA_X = \"1\"").contains("MA_X begins as"));
        assert!(
            told("command = \"python3 -m pip install -q moxing && python3 t.py\"")
                .contains("nothing to do with Huawei")
        );
        assert!(told("command = \"pip install -U pip && pip3 install 'uai-sdk>=1' && x\"").contains("UCloud's SDK"));
        assert!(told("command = \"pip3 install x; pip install -U pip; pip install moxing\"").contains("Huawei"));
        assert_eq!(told("command = \"pip install moxing-lite && python3 t.py --backend moxing\""), "", "others are");
        assert_eq!(told("contract = \"google\"\ncommand = \"x\"\nenv.MA_X = \"1\""), "");
    }

    fn spec(text: &str) -> JobSpec {
        let (spec, found) = crate::spec::parse("a.toml", text);
        spec.unwrap_or_else(|| panic!("{found:?}"))
    }

    fn refused(contract: &str, name: &str) -> bool {
        !refusals(&name.parse().unwrap(), &spec(&format!("contract = \"{contract}\"\ncommand = \"x\""))).is_empty()
    }

    #[test]
    fn names_follow_the_rules_of_the_platform() {
        let octopus = "volcano/octopus";
        assert!(!refused(octopus, "训练_a-1"));
        assert!(!refused(octopus, &"训".repeat(30)) && refused(octopus, &"训".repeat(31)), "code points, not bytes");
        assert!(refused(octopus, "a.b") && !refused("native", "a.b"));
        assert!(!refused("kubeflow/swarm", "tf-train-distributed") && refused("kubeflow/swarm", "a_b"));
        assert!(!refused("kubeflow/swarm", &"a".repeat(64)), "64 characters are the most");
        let no_name = |name: &str| name.parse::<JobName>().unwrap_err().to_string();
        assert!(no_name(&"a".repeat(65)).contains("at most 64"), "{}", no_name(&"a".repeat(65)));
        assert!(no_name("").contains("empty"), "{}", no_name(""));
        assert!(refused("kubeflow/swarm", "训练") && !refused("openpai", "a.b~c_d"));
        assert!(refused("sagemaker", &"a".repeat(64)) && refused("paddle/old", "a_b"));
    }

    #[test]
    fn stores_without_a_directory_are_named() {
        let told = warnings(&spec("command = \"python3 t.py --data gs://bucket/x\"\nenv = { OUT = \"oss://b\" }"));
        let texts: Vec<_> = told.iter().map(|advice| advice.text.as_str()).collect();
        assert!(texts.len() == 2 && texts[0].contains("gs://") && texts[1].contains("Alibaba OSS"), "{texts:?}");
        assert!(warnings(&spec("command = \"cat /dataset/x\"")).is_empty());
    }

    #[test]
    fn an_input_of_azure_that_nobody_gives_is_named() {
        let text = "contract = \"azureml\"\ndatasets = [\"iris\"]\ncommand = \"t ${{inputs.iris}} ${{inputs.lr}}\"";
        let told = refusals(&"a".parse().unwrap(), &spec(text));
        assert!(told.len() == 1 && told[0].text.contains("${{inputs.lr}}"), "{told:?}");
    }
}
