//! What is to be said of a job because of its contract: names that its platform would refuse, inputs that nobody gives, and
//! what no directory or variable can stand for.

mod lost;
mod switches;
mod unfilled;

use std::collections::BTreeMap;

use super::{Sample, azureml, gpus, modelarts, naming, topology};
use crate::ids::{Cpu, JobName};
use crate::spec::stores::{FOREIGN, ForeignStore};
use crate::spec::{Command, Dataset, Diagnostic, JobSpec, Network, Param, Platform, Profile, Role, Severity, Stack};

/// A sentence about a job, and the key that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// From the top of the file. What is said of a role may be the job's own, which the role has from there.
    pub path: Vec<String>,
    pub text: String,
}

impl Advice {
    pub(super) fn of_job(key: &str, text: String) -> Self {
        Self { path: vec![key.to_owned()], text }
    }

    /// `keys` are those of the role, from the outermost.
    pub(super) fn of_role(role: &Role, keys: &[&str], text: String) -> Self {
        let roles = if role.is_service { "services" } else { "roles" };
        let path = [roles, role.name.as_str()].into_iter().chain(keys.iter().copied());
        Self { path: path.map(str::to_owned).collect(), text }
    }
}

/// All of it, each where the files that make up the job have the key. `name` is that of the job file.
pub fn diagnostics(stack: &Stack, name: &JobName, spec: &JobSpec) -> Vec<Diagnostic> {
    let told = |severity| move |advice: Advice| stack.finding(severity, &advice.path, advice.text);
    let errors = refusals(name, spec).into_iter().map(told(Severity::Error));
    errors.chain(warnings(spec).into_iter().map(told(Severity::Warning))).collect()
}

/// What keeps the job of a file of this name from running under its contract.
pub fn refusals(name: &JobName, spec: &JobSpec) -> Vec<Advice> {
    let name = naming::problem(name.as_str(), spec).map(|text| Advice::of_job("contract", text));
    let mut out: Vec<Advice> = name.into_iter().collect();
    out.extend(gpus::refusals(spec));
    match spec.contract.platform {
        Platform::AzureMl => {
            out.extend(spec.members().filter_map(too_many_places));
            out.extend(inputs_that_nobody_gives(spec));
        }
        Platform::OpenPai => out.extend(spec.members().filter_map(too_small)),
        Platform::ModelArts if spec.contract.profile == Profile::Plain => out.extend(input_called_as_the_output(spec)),
        _ => {}
    }
    out
}

/// What its owner should know.
pub fn warnings(spec: &JobSpec) -> Vec<Advice> {
    let mut out = stores(spec);
    out.extend(gpus::warnings(spec));
    out.extend(uneven_servers(spec));
    out.extend(beyond_the_platform(spec));
    out.extend(lost::roles(spec));
    out.extend(lost::unknown_role(spec));
    out.extend(lost::quotes(spec));
    out.extend(lost::params(spec));
    out.extend(lost::namesake(spec));
    out.extend(switches::switches(spec));
    out.extend(unfilled::places(spec));
    out.extend(ports_on_one_network(spec));
    out
}

fn too_many_places(role: &Role) -> Option<Advice> {
    let (count, most) = (azureml::places(&role.command), azureml::PLACES_MAX);
    let text =
        format!("`command` has {count} places for inputs and outputs, at most {most} are filled: put it into a script");
    (count > most).then(|| Advice::of_role(role, &["command"], text))
}

/// OpenPAI takes whole cores.
fn too_small(role: &Role) -> Option<Advice> {
    let cpu = role.resources.cpu;
    let text =
        format!("under contract openpai a task has 1 core (cpuNumber) at least, role {} has cpu = {cpu}", role.name);
    (cpu < Cpu(1000)).then(|| Advice::of_role(role, &["resources", "cpu"], text))
}

/// Scripts would be given one argument twice, and take the last.
fn input_called_as_the_output(spec: &JobSpec) -> Option<Advice> {
    let name = modelarts::OUTPUT_NAME;
    let called = |dataset: &&Dataset| dataset.channel.as_ref().is_some_and(|channel| channel.as_str() == name);
    spec.datasets.iter().find(called).map(|dataset| {
        let text = format!(
            "`datasets` has {:?}, but under contract modelarts --{name} tells scripts where their output goes: call the \
             channel otherwise",
            dataset.to_string()
        );
        Advice::of_job("datasets", text)
    })
}

fn inputs_that_nobody_gives(spec: &JobSpec) -> Vec<Advice> {
    let sample = Sample::of("job.toml", spec);
    let mut missing: BTreeMap<String, &Role> = BTreeMap::new();
    for task in sample.tasks(spec) {
        let text = match &task.role.command {
            Command::Shell(text) => text.clone(),
            Command::Exec(words) => words.join(" "),
            Command::Default => continue,
        };
        azureml::unknown_inputs(&task, &text).into_iter().for_each(|name| {
            missing.entry(name).or_insert(task.role);
        });
    }
    let advice = |(name, role): (String, &Role)| {
        let text =
            format!("`command` asks for ${{{{inputs.{name}}}}}, but there is no dataset or parameter of that name");
        Advice::of_role(role, &["command"], text)
    };
    missing.into_iter().map(advice).collect()
}

/// Addresses that only a client of the store can read, each store once.
fn stores(spec: &JobSpec) -> Vec<Advice> {
    let named = |store: &ForeignStore| {
        spec.roles.iter().find_map(|role| {
            let keys = keys_that_name(role, store)?;
            Some(Advice::of_role(role, &keys, store_warning(store)))
        })
    };
    FOREIGN.iter().filter_map(named).collect()
}

/// The keys of a role below which an address in the store stands.
fn keys_that_name<'r>(role: &'r Role, store: &ForeignStore) -> Option<Vec<&'r str>> {
    let of_command = match &role.command {
        Command::Shell(text) => store.is_in(text),
        Command::Exec(words) => words.iter().any(|word| store.is_in(word)),
        Command::Default => false,
    };
    let in_param = |param: &Param| match param {
        Param::Value(value) | Param::Plain(value) => store.is_in(value),
        Param::List(values) => values.iter().any(|value| store.is_in(value.as_str())),
        Param::Flag => false,
    };
    let of_env = || role.env.iter().find(|(_, value)| store.is_in(value)).map(|(name, _)| vec!["env", name.as_str()]);
    let of_params =
        || role.params.iter().find(|(_, param)| in_param(param)).map(|(name, _)| vec!["params", name.as_str()]);
    of_command.then(|| vec!["command"]).or_else(of_env).or_else(of_params)
}

fn store_warning(store: &ForeignStore) -> String {
    let copied = store
        .place()
        .map(|place| format!(", or have it copied in: mounts = [{{ source = \"{place}\", target = \"/input\" }}]"));
    format!(
        "it names {}…: Trainyard mounts nothing of {}, so only a client with its own credentials and a way out can \
         read that; put the data into datasets/ and name it in `datasets`{}",
        store.scheme,
        store.name,
        copied.unwrap_or_default()
    )
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
    Some(Advice::of_job("network", text))
}

/// UAI-Train takes as many servers as workers.
fn uneven_servers(spec: &JobSpec) -> Option<Advice> {
    if spec.contract.platform != Platform::Uai {
        return None;
    }
    let sample = Sample::of("job.toml", spec);
    let first = sample.tasks(spec).next()?;
    let (servers, workers) = (topology::called(&first, topology::SERVERS).len(), topology::nodes(&first).len());
    let text = format!("UAI-Train runs one parameter server for each node; the file has {servers} for {workers}");
    let server = topology::called(&first, topology::SERVERS).first()?.role;
    (servers != workers).then(|| Advice::of_role(server, &["count"], text))
}

/// What runs here, and would be refused by the platform itself: told to who will take the job back there.
fn beyond_the_platform(spec: &JobSpec) -> Vec<Advice> {
    let told = |text: String| format!("{text}; it runs here, contract {} itself would refuse it", spec.contract);
    let many =
        |what: &str, count: usize, most: usize| told(format!("there are {count} {what}, {most} at most are allowed"));
    // Of the roles the one that has most.
    let at_most = |key: &str, what: &str, of: fn(&Role) -> usize, most: usize| {
        let role = spec.members().max_by_key(|role| of(role)).filter(|role| of(role) > most)?;
        Some(Advice::of_role(role, &[key], many(what, of(role), most)))
    };
    let variables = || at_most("env", "variables", |role| role.env.len(), 100);
    let mut out: Vec<Advice> = match spec.contract.platform {
        Platform::SageMaker => {
            let longest = |role: &Role| {
                role.params.iter().map(|(_, param)| super::parameters::text(param).chars().count()).max().unwrap_or(0)
            };
            let channels = spec.datasets.len();
            let channels = (channels > 20).then(|| Advice::of_job("datasets", many("channels", channels, 20)));
            let of_params = [
                at_most("params", "hyperparameters", |role| role.params.len(), 100),
                at_most("params", "characters in a hyperparameter", longest, 2500),
            ];
            of_params.into_iter().chain([variables(), channels]).flatten().collect()
        }
        Platform::ModelArts | Platform::Google => variables().into_iter().collect(),
        _ => Vec::new(),
    };
    let own = |role| Some((role, of_the_platform(role)?));
    if spec.contract.platform == Platform::ModelArts
        && let Some((role, name)) = spec.members().find_map(own)
    {
        let text = told(format!("{name} begins as only the platform's own variables do"));
        out.push(Advice::of_role(role, &["env", name], text));
    }
    out
}

/// A variable that is called as ModelArts' own are.
fn of_the_platform(role: &Role) -> Option<&str> {
    role.env.iter().map(|(name, _)| name.as_str()).find(|name| name.starts_with("MA_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Layer;

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
        let of_sagemaker = |more: &str| told(&format!("contract = \"sagemaker\"\ncommand = \"x\"\n{more}"));
        let long = |count: usize| of_sagemaker(&format!("params.a = \"{}\"", "訓".repeat(count)));
        assert!(long(2501).contains("2501 characters in a hyperparameter, 2500 at most") && long(2500).is_empty());
        let channels = |count: u32| {
            let channels: Vec<String> = (0..count).map(|number| format!("c{number}=d")).collect();
            of_sagemaker(&format!("datasets = {channels:?}"))
        };
        assert!(channels(21).contains("21 channels, 20 at most") && channels(20).is_empty(), "{}", channels(20));
        let twice = "contract = \"modelarts\"\ncommand = \"x\"\ndatasets = [\"train_url=d\"]";
        let spec = crate::spec::parse("j.toml", twice).0.unwrap();
        let refused = diagnostics(&Stack::of(Layer::new("j.toml", twice)), &"j".parse().unwrap(), &spec);
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
        assert!(told("command = \"/usr/bin/pip3 install moxing\"").contains("Huawei"), "by its path");
        assert_eq!(told("command = \"pip install moxing-lite && python3 t.py --backend moxing\""), "", "others are");
        assert_eq!(told("contract = \"google\"\ncommand = \"x\"\nenv.MA_X = \"1\""), "");
    }

    fn spec(text: &str) -> JobSpec {
        let (spec, found) = crate::spec::parse("a.toml", text);
        spec.unwrap_or_else(|| panic!("{found:?}"))
    }

    #[test]
    fn what_is_said_stands_where_its_key_does_in_whatever_file() {
        let name: JobName = "j".parse().unwrap();
        let told = |stack: &Stack| {
            let expanded = stack.expand();
            let spec = expanded.spec.unwrap_or_else(|| panic!("{:?}", expanded.diagnostics));
            let found = diagnostics(stack, &name, &spec).into_iter();
            found
                .map(|found| (format!("{}:{}:{}", found.file, found.line, found.column), found.key.unwrap()))
                .collect::<Vec<_>>()
        };
        let at = |place: &str, key: &str| (place.to_owned(), key.to_owned());
        let job = "contract = \"openpai\"\n  command = \"cat gs://x\"\n[roles.w]\n[roles.v]\nresources = { gpu = 0, cpu = 0.5 }\n";
        let stack = Stack::of(Layer::new("j.toml", job));
        let of_command = at("j.toml:2:3", "command");
        assert_eq!(told(&stack), [at("j.toml:5:24", "roles.v.resources.cpu"), of_command.clone()]);
        // The job's own resources are those of the roles that say nothing.
        let mut stack = stack;
        stack.overrides = vec![Layer::new("j.toml.d/1.toml", "\n[resources]\ncpu = 0.2\n")];
        let of_override = at("j.toml.d/1.toml:3:1", "resources.cpu");
        assert_eq!(told(&stack), [of_override, at("j.toml:5:24", "roles.v.resources.cpu"), of_command]);
        let template = "# of all\nenv.A = \"${x}/b\"\ncommand = \"t\"\n[template.params.x]\ntype = \"string\"\n";
        let job = "template = \"t\"\nwith.x = \"obs://a\"\n[sweep]\nroles.w.count = [1]\n";
        let mut stack = Stack::of(Layer::new("j.toml", job));
        stack.template = Some(Layer::new("t.template.toml", template));
        let combinations = stack.combinations(&name).unwrap().unwrap();
        assert_eq!(told(&stack.with(&combinations[0])), [at("t.template.toml:2:5", "env.A")]);
        // A service has its keys elsewhere, and a role that the strategy makes has none.
        let job = "framework = \"mpi\"\ncommand = \"x\"\nparams.a = 1\n[roles.worker]\n[services.s]\ncommand = \"cat s3://x\"\nport = 1\n";
        assert_eq!(told(&Stack::of(Layer::new("j.toml", job))), [at("j.toml:6:1", "services.s.command")]);
    }

    fn refused(contract: &str, name: &str) -> bool {
        !refusals(&name.parse().unwrap(), &spec(&format!("contract = \"{contract}\"\ncommand = \"x\""))).is_empty()
    }

    #[test]
    fn a_command_of_azure_has_so_many_places_and_no_more() {
        let refused = |count: usize, words: bool| {
            let places = "${{inputs.u}} ".repeat(count);
            let command = if words { format!("[\"echo\", \"{places}\"]") } else { format!("\"echo {places}\"") };
            let text = format!("contract = \"azureml\"\nparams.u = \"two words\"\ncommand = {command}");
            refusals(&"job".parse().unwrap(), &spec(&text)).into_iter().map(|advice| advice.text).collect::<String>()
        };
        assert_eq!(refused(256, false), "");
        assert!(refused(257, false).contains("257 places"));
        assert_eq!(refused(257, true), "", "no shell reads it");
    }

    fn told_of(contract: &str, name: &str) -> Advice {
        let spec = spec(&format!("contract = \"{contract}\"\ncommand = \"x\""));
        refusals(&name.parse().unwrap(), &spec).remove(0)
    }

    #[test]
    fn names_follow_the_rules_of_the_platform() {
        let octopus = "volcano/octopus";
        assert!(!refused(octopus, "训练_a-1"));
        assert!(!refused(octopus, &"训".repeat(30)) && refused(octopus, &"训".repeat(31)), "code points, not bytes");
        assert!(refused(octopus, "a.b") && !refused("native", "a.b"));
        // Marks belong to letters, whether or not they are taken for letters by themselves.
        for name in ["क्षत्रिय", "שָׁלוֹם", "மொழி"] {
            assert!(!refused(octopus, name), "{name}");
            assert!(
                told_of("sagemaker", name).text.contains(&format!("\"{name}\"")),
                "{}",
                told_of("sagemaker", name).text
            );
        }
        assert!(!refused("kubeflow/swarm", "tf-train-distributed") && refused("kubeflow/swarm", "a_b"));
        assert!(!refused("kubeflow/swarm", &"a".repeat(64)), "64 characters are the most");
        let no_name = |name: &str| name.parse::<JobName>().unwrap_err().to_string();
        assert!(no_name(&"a".repeat(65)).contains("at most 64"), "{}", no_name(&"a".repeat(65)));
        assert!(no_name("").contains("empty"), "{}", no_name(""));
        assert!(refused("kubeflow/swarm", "训练") && !refused("openpai", "a.b~c_d"));
        assert!(refused("sagemaker", &"a".repeat(64)) && refused("paddle/old", "a_b"));
        // What no contract takes is no name at all; each message has the limit, or the letters.
        for name in ["a b", "a/b", "训练 1"] {
            assert!(name.parse::<JobName>().is_err(), "{name}");
        }
        let told = told_of;
        let long = told(octopus, &"训".repeat(31));
        assert_eq!(long.path, ["contract"]);
        assert!(long.text.contains("30 characters at most") && long.text.ends_with("has 31"), "{}", long.text);
        let dotted = told(octopus, "a.b").text;
        assert!(
            dotted.contains("letters of any script with their marks, digits, '-' and '_'")
                && dotted.contains("\"a.b\""),
            "{dotted}"
        );
        let ends = told("sagemaker", "a-").text;
        assert!(ends.contains("begins and ends with a letter or a digit"), "{ends}");
    }

    #[test]
    fn stores_without_a_directory_are_named() {
        let told = warnings(&spec("command = \"python3 t.py --data gs://bucket/x\"\nenv = { OUT = \"oss://b\" }"));
        let texts: Vec<_> = told.iter().map(|advice| advice.text.as_str()).collect();
        assert!(texts.len() == 2 && texts[0].contains("gs://") && texts[1].contains("Alibaba OSS"), "{texts:?}");
        assert!(warnings(&spec("command = \"cat /dataset/x logs://y us3\"")).is_empty());
    }

    #[test]
    fn an_input_of_azure_that_nobody_gives_is_named() {
        let text = "contract = \"azureml\"\ndatasets = [\"iris\"]\ncommand = \"t ${{inputs.iris}} ${{inputs.lr}}\"";
        let told = refusals(&"a".parse().unwrap(), &spec(text));
        assert!(told.len() == 1 && told[0].text.contains("${{inputs.lr}}"), "{told:?}");
    }
}
