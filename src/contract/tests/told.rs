//! Numbers and names as scripts are told them: what would meet, or would be another thing, if it were told otherwise.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

#[test]
fn numbers_of_parameters_are_as_python_writes_them() {
    let params = "e = 1e-5\nbig = 1e16\nlist = [1, 2]\nmixed = [\"1\", 1.5, 1e-7, true, \"it's\"]";
    let of =
        |contract: &str| seen(&format!("contract = \"{contract}\"\ncommand = \"python3 t.py\"\n[params]\n{params}"), 0);
    // The oracle: `json.dumps` and `str` of Python 3.
    let amazon = of("sagemaker");
    let hps = r#"{"big":1e+16,"e":1e-05,"list":[1,2],"mixed":["1",1.5,1e-07,true,"it's"]}"#;
    assert_variables(&amazon, &[("SM_HPS", hps), ("SM_HP_E", "1e-05"), ("SM_HP_LIST", "[1,2]")]);
    let words = r#"["--big","1e+16","-e","1e-05","--list","[1, 2]","--mixed","['1', 1.5, 1e-07, True, \"it's\"]"]"#;
    assert_variables(&amazon, &[("SM_USER_ARGS", words)]);
    let environment: Value = serde_json::from_str(&variable(&amazon, "SM_TRAINING_ENV").unwrap()).unwrap();
    assert_eq!(environment["hyperparameters"]["list"], json!([1, 2]));
    let given: Value = serde_json::from_str(&file(&amazon, "/opt/ml/input/config/hyperparameters.json")).unwrap();
    assert_eq!((&given["e"], &given["list"]), (&json!("1e-05"), &json!("[1,2]")));
    let spaced = r#"{"big": 1e+16, "e": 1e-05, "list": [1, 2], "mixed": ["1", 1.5, 1e-07, true, "it's"]}"#;
    assert_variables(&of("tione/1"), &[("TM_HPS", spaced)]);
    let animals = |contract: &str| {
        let params = r#"animals = ["\u732b\t", "\U0001F431\r\u007f"]"#;
        seen(
            &format!("contract = \"{contract}\"\ncommand = \"python3 t.py\"\n[params]\n{params}\nname = \"\u{e4}\""),
            0,
        )
    };
    let hps = r#"{"animals":["\u732b\t","\ud83d\udc31\r\u007f"],"name":"\u00e4"}"#;
    assert_variables(&animals("sagemaker"), &[("SM_HPS", hps), ("SM_HP_NAME", "\u{e4}")]);
    assert_eq!(
        serde_json::from_str::<Value>(&variable(&animals("sagemaker"), "SM_USER_ARGS").unwrap()).unwrap(),
        json!(["--animals", "['\u{732b}\\t', '\u{1f431}\\r\\x7f']", "--name", "\u{e4}"])
    );
    let texts = r#"{"animals":"[\"\\u732b\\t\",\"\\ud83d\\udc31\\r\\u007f\"]","name":"\u00e4"}"#;
    assert_variables(&animals("pai"), &[("PAI_HPS_NAME", "\u{e4}")]);
    let told = r#"{"animals":"['\u732b\\t', '\ud83d\udc31\\r\\x7f']","name":"\u00e4"}"#;
    assert_eq!(file(&animals("pai"), "/ml/input/config/hyperparameters.json"), told);
    for contract in ["sagemaker", "tione/1"] {
        assert_eq!(file(&animals(contract), "/opt/ml/input/config/hyperparameters.json"), texts);
    }
    let channel = seen("contract = \"sagemaker\"\ncommand = \"x\"\ndatasets = [\"训练=a\"]", 0);
    assert_variables(&channel, &[("SM_CHANNELS", r#"["\u8bad\u7ec3"]"#)]);
    for told in [
        file(&channel, "/opt/ml/input/config/inputdataconfig.json"),
        variable(&channel, "SM_INPUT_DATA_CONFIG").unwrap(),
    ] {
        assert!(told.starts_with(r#"{"\u8bad\u7ec3":{"#), "{told}");
    }
    let config = variable(&animals("google"), "TF_CONFIG").unwrap();
    assert!(config.contains(r#""--name=\u00e4""#), "{config}");
    let spaced = hps.replace(',', ", ").replace(':', ": ");
    assert_variables(&animals("tione/1"), &[("TM_HPS", &spaced)]);
}

#[test]
fn the_entry_point_is_the_script_that_a_command_runs_in_the_end() {
    for (command, script) in [
        ("python setup.py install && python train.py", "train.py"),
        ("python prepare.py; python src/train.py --config conf.py | tee log", "src/train.py"),
        ("python prepare.py\npython train.py\necho done", "train.py"),
        ("cd pkg && python ./setup.py develop", ""),
        ("python train.py --note 'a; x.py' \"b && y.py\"", "train.py"),
        ("python train.py > log 2>&1 && echo 'all of (x.py) is done, as y.py'", "train.py"),
        ("exec bash -lc 'cd src; python \"my train.py\" --note z.py' # not w.py", "my train.py"),
        ("sh run.sh --file=x.py", ""),
        ("CMD='python train.py --x'; $CMD", "train.py"),
        ("DATA=x.py python train.py", "train.py"),
        ("mpirun -np 2 bash -c 'python train.py'", "train.py"),
        ("cat > x.py <<E\npython y.py\nE\npython train.py > z.py", "train.py"),
        ("python x.py\npython - <<E | tee log\npython y.py\nE", "x.py"),
        ("bash -e <<'E' || exit\npython train.py\nE", "train.py"),
        ("python train.py --n $(python count.py)", "train.py"),
    ] {
        let of = |contract: &str| seen(&format!("contract = \"{contract}\"\ncommand = {command:?}\n"), 0);
        assert_variables(&of("sagemaker"), &[("SM_USER_ENTRY_POINT", script)]);
        assert_variables(&of("tione/1"), &[("TM_USER_ENTRY_POINT", script)]);
    }
}

#[test]
fn amazon_s_toolkit_runs_a_package_as_a_module_and_a_program_as_it_is() {
    let line = |code: &str, program: &str| {
        let text = format!("contract = \"sagemaker\"\n{code}[params]\nsagemaker_program = \"{program}\"\nx = 1\n");
        command::display(&seen(&text, 0).args)
    };
    let code = "code = \"c\"\n";
    assert_eq!(line("", "t.py"), "python3 t.py -x 1");
    assert_eq!(line(code, "t.sh"), "/bin/sh -c 'chmod +x ./t.sh; exec ./t.sh \"$@\"' t.sh -x 1");
    // Whether the code is a package shows where it runs: to Python itself, as there, for a script.
    let by_python = line(code, "t.py");
    assert!(by_python.starts_with("python3 -c 'import os, sys; ") && by_python.ends_with("' t.py -x 1"), "{by_python}");
    let package = "/bin/sh -c '[ -e setup.py ] && exec python3 -m t \"$@\"; ";
    assert_eq!(line(code, "t"), format!("{package}chmod +x ./t; exec ./t \"$@\"' t -x 1"));
}

#[test]
fn ports_that_a_platform_fixes_do_not_meet_where_tasks_share_a_network() {
    let listening = |text: &str, tasks: usize| -> Vec<u16> {
        let of_cluster = |config: Value| -> Vec<String> {
            let members =
                config["cluster"].as_object().unwrap().values().flat_map(|kind| kind.as_array().unwrap().clone());
            members.map(|endpoint| endpoint.as_str().unwrap().to_owned()).collect()
        };
        let endpoints = match variable(&seen(text, 0), "TF_CONFIG") {
            Some(config) => of_cluster(serde_json::from_str(&config).unwrap()),
            None => {
                variable(&seen(text, 0), "PADDLE_TRAINER_ENDPOINTS").unwrap().split(',').map(str::to_owned).collect()
            }
        };
        let mut ports: Vec<u16> =
            endpoints.iter().map(|endpoint| endpoint.rsplit(':').next().unwrap().parse().unwrap()).collect();
        // Paddle may use as many from the first on.
        let more = variable(&seen(text, 0), "TRAINER_PORTS_NUM").map_or(1, |count| count.parse().unwrap());
        ports = ports.iter().flat_map(|port| *port..*port + more).collect();
        assert!(ports.len() >= tasks, "{ports:?}");
        ports
    };
    let nodes = "framework = \"tensorflow\"\ncommand = \"x\"\n[roles.worker]\ncount = 3\n";
    for (contract, rest) in [
        ("sagemaker", nodes),
        ("uai", nodes),
        ("tione/1", nodes),
        ("kubeflow/arena", PS),
        ("paddle", &nodes.replace("tensorflow", "paddle")),
        ("native", &nodes.replace("tensorflow", "paddle")),
    ] {
        let mut ports = listening(&job(contract, &format!("network = \"job\"\n{rest}")), 3);
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count, "{contract}: {ports:?}");
    }
    let told = |text: &str| -> String {
        advice::warnings(&parse("x.toml", text).0.unwrap()).into_iter().map(|advice| advice.text).collect()
    };
    for (contract, rest) in [
        ("volcano/octopus", NODES),
        ("kubeflow", "framework = \"xgboost\"\ncommand = \"x\"\n[roles.worker]\ncount = 2"),
    ] {
        let text = job(contract, rest);
        assert_eq!(told(&text), "");
        let shared = told(&format!("network = \"job\"\n{text}"));
        assert!(shared.contains("may listen on one and the same port in every task"), "{shared}");
    }
    for rest in [job("openpai", NODES), job("uai", "command = \"x\"")] {
        assert_eq!(told(&format!("network = \"job\"\n{rest}")), "", "its tasks know their ports, or are one");
    }
}

#[test]
fn roles_in_letters_of_other_scripts_have_variables_of_their_own() {
    let roles =
        "command = \"x\"\n[roles.\"训练\"]\ncount = 2\n[roles.\"评估\"]\n[roles.\"a-\"]\n[roles.aé]\n[roles.über]\n";
    for contract in ["native", "volcano"] {
        let first =
            seen(&job(contract, &roles.replace("roles.aé", "roles.\"aé\"").replace("roles.über", "roles.\"über\"")), 0);
        assert_variables(
            &first,
            &[("TRAINYARD____0_COUNT", "2"), ("TRAINYARD____1_COUNT", "1"), ("VC____0_NUM", "2"), ("VC____1_NUM", "1")],
        );
        assert_variables(
            &first,
            &[("TRAINYARD_A__COUNT", "1"), ("TRAINYARD_A__3_COUNT", "1"), ("TRAINYARD__BER_COUNT", "1")],
        );
        assert_variables(&first, &[("TRAINYARD_ROLES", "训练,评估,a-,aé,über")]);
    }
    assert_eq!(
        file(&seen(&job("volcano/octopus", roles.split("[roles.aé]").next().unwrap()), 0), "/etc/volcano/___1.host"),
        "10.213.0.4"
    );
}

/// Whatever a role is called, the task's own variables are its own.
#[test]
fn no_role_s_name_takes_a_variable_that_is_the_task_s_own() {
    let ports = "ports = { count = 2, hosts = 1, ports-x = 1, x = 1 }\n";
    let text = |roles: &str| format!("command = \"x\"\n[roles.main]\ncount = 3\n{ports}{roles}");
    let ours = |view: View| -> Vec<(String, String)> {
        view.env.into_iter().filter(|(name, _)| name.starts_with("TRAINYARD_")).collect()
    };
    let alone = ours(seen(&text(""), 1));
    let own = alone.iter().filter(|(name, _)| !name.starts_with("TRAINYARD_MAIN_") && name != "TRAINYARD_ROLES");
    let own: Vec<_> = own.collect();
    assert!(own.len() > 10, "{own:?}");
    let endings = ["_COUNT", "_HOSTS", "_PORTS_X"];
    let mut met = 0;
    for (name, value) in own {
        let bare = &name["TRAINYARD_".len()..];
        let roles = endings.iter().filter_map(|ending| bare.strip_suffix(ending)).filter(|role| !role.is_empty());
        for role in roles {
            met += 1;
            let roles = format!("[roles.{}]\ncount = 7\nports.x = 1\n", role.to_lowercase().replace('_', "-"));
            let both = ours(seen(&text(&roles), 1));
            assert!(both.contains(&(name.clone(), value.clone())), "{name} of a role {role:?}: {both:?}");
            assert_eq!(both.iter().filter(|(known, _)| known == name).count(), 1, "{both:?}");
        }
    }
    assert!(met >= 4, "TASK_COUNT and PORT_COUNT, PORT_HOSTS, PORT_PORTS_X");
}

/// What stands behind the file's name is ours: the platform's rule is for the file's, and tasks are told what it allows.
#[test]
fn tasks_of_a_sweep_are_told_a_name_that_their_platform_allows() {
    type Allowed = fn(char) -> bool;
    let rules: [(&str, &str, Allowed); 6] = [
        ("sagemaker", "sw-0-1-a-b-c63d14", |c| c.is_ascii_alphanumeric() || c == '-'),
        ("modelarts", "sw-0-1-a-b-c63d14", |c| c.is_ascii_alphanumeric() || c == '-'),
        ("modelarts/1", "sw-0-1-a_b-c63d14", |c| c.is_ascii_alphanumeric() || "-_".contains(c)),
        ("kubeflow/swarm", "sw~0.1~a_b", |_| true),
        ("openpai", "sw~0.1~a_b", |_| true),
        ("paddle/old", "sw~0.1~a-b-c63d14", |c| c != '_'),
    ];
    for (contract, told, may) in rules {
        let text = format!("contract = \"{contract}\"\ncommand = \"x\"\n");
        let (spec, found) = parse("x.toml", &text);
        let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
        let sample = Sample::of("sw~0.1~a_b", &spec);
        let view = view(&sample.tasks(&spec).next().unwrap());
        let all = view.env.iter().filter(|(name, _)| !name.starts_with("TRAINYARD_"));
        let own: Vec<&str> = all
            .flat_map(|(name, value)| [name, value])
            .map(String::as_str)
            .filter(|text| text.contains("sw"))
            .collect();
        for text in &own {
            assert!(may('~') || !text.contains("sw~"), "{contract}: {text}");
        }
        let is_told = own.iter().any(|text| text.contains(told));
        assert!(is_told || contract == "kubeflow/swarm", "{contract}: {own:?}");
        assert!(view.hosts.lines().all(|line| !line.contains('~')), "{contract}: {}", view.hosts);
    }
    // Two that differ in what is cut, or in what becomes `-`, are told two names.
    let spec = parse("x.toml", "contract = \"sagemaker\"\ncommand = \"x\"").0.unwrap();
    let told = |name: &str| {
        let sample = Sample::of(name, &spec);
        variable(&view(&sample.tasks(&spec).next().unwrap()), "TRAINING_JOB_NAME").unwrap()
    };
    let long = |value: &str| format!("{}~{value}", "a".repeat(55));
    let names = [long("---"), long("-----1"), long("-----2"), "sw~1.5".to_owned(), "sw~1-5".to_owned()];
    let all: Vec<String> = names.iter().map(|name| told(name)).collect();
    for (name, told) in names.iter().zip(&all) {
        assert!(told.len() <= 63 && told.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{name}: {told}");
        assert_eq!(all.iter().filter(|other| *other == told).count(), 1, "{all:?}");
    }
    let cut = all[0].rsplit_once('-').unwrap();
    assert_eq!((cut.0, cut.1.len()), ("a".repeat(55).as_str(), 6), "{all:?}");
    assert_eq!(told("sw-1"), "sw-1", "what is allowed stays");
}

/// Every name in the hosts files of a job's tasks, with the address it stands for.
fn called(contract: &str, job: &str) -> BTreeMap<String, String> {
    let roles = "[roles.worker]\nserves = true\ncount = 2\n[roles.train]\ncount = 2\n[roles.ps]\ncount = 11\n[roles.ps1]\n[roles.task0]\n";
    let text = format!("contract = \"{contract}\"\nframework = \"tensorflow\"\ncommand = \"x\"\n{roles}");
    let (spec, found) = parse("x.toml", &text);
    let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
    let sample = Sample::of(job, &spec);
    let view = view(&sample.tasks(&spec).next().unwrap());
    let mut out = BTreeMap::new();
    for line in view.hosts.lines().skip(2) {
        let (address, names) = line.split_once(' ').unwrap();
        for name in names.split(' ') {
            let other = out.insert(name.to_owned(), address.to_owned()).filter(|other| other != address);
            assert_eq!(other, None, "{contract}: {name} is two tasks in {}", view.hosts);
        }
    }
    for name in variable(&view, "VC_WORKER_HOSTS").iter().flat_map(|hosts| hosts.split(',')) {
        let is_known = out.contains_key(name) || name.parse::<Ipv4Addr>().is_ok();
        assert!(is_known, "{contract}: {name} is nobody in {}", view.hosts);
    }
    out
}

#[test]
fn a_host_s_name_is_that_of_one_task_and_where_it_has_the_job_s_of_one_job() {
    for contract in catalogue::ABOUT {
        called(contract.name, "sw~1.5");
    }
    let jobs = ["sw~1.5", "sw~1-5", "sw-1-5", "Sw-1-5", "sw_1-5", "训练_a-1", "训练_a-2"];
    let all: Vec<_> = jobs.iter().flat_map(|job| called("modelarts", job)).map(|(name, _)| name).collect();
    let with_job =
        |name: &&String| !["worker-", "train-", "ps-", "ps1-", "task0-"].iter().any(|role| name.starts_with(role));
    let own: Vec<_> = all.iter().filter(with_job).collect();
    assert_eq!(own.len(), jobs.len() * 34);
    assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), own.len(), "{own:?}");
    assert!(called("modelarts", "digits").contains_key("digits-worker-0.digits"), "what is a label stays");
    assert!(called("modelarts", "My_Job").keys().any(|name| name.starts_with("my-job-")), "people know it again");
}

#[test]
fn what_many_roles_are_told_of_each_other_is_known_soon() {
    // Where each task works out anew what all are told this takes longer than any test may.
    let roles: String = (0..64).map(|number| format!("[roles.r{number}]\ncount = 15\n")).collect();
    let spec = parse("j.toml", &job("sagemaker", &format!("command = \"x\"\n{roles}"))).0.unwrap();
    let sample = Sample::of("j.toml", &spec);
    assert_eq!(sample.tasks(&spec).count(), 960);
}
