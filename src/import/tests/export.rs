//! What OpenPAI gets of our jobs, and gives back.

use super::*;

#[test]
fn whatever_is_exported_comes_back() {
    for text in [
        "code = { git = \"https://lab/x\", ref = \"v1\" }",
        "retry = { backoff = \"1s\" }",
        "after = [\"\u{915}\u{902}\"]",
        "priority = 80",
        "resources = { gpu = 2, gpu_type = \"A100\" }",
        "network = \"task\"\n[roles.a]\nresources.gpu = 1\n[roles.b]\nresources.gpu = 1",
        "[roles.a.resources]\ngpu_memory = \"20GiB\"\ngpu_memory_over = \"alert\"\n[roles.b.resources]\nmig = \"1g.10gb\"\ngpu = 2",
        "code = \"digits@v2\"",
        "[scalars]\nlog_dir = \"/output/x\"\nlines = 'a=(?<a>\\d+)'\n[tensorboard]\nlog_dir = \"/output\"",
        "framework = \"mpi\"\ncommand = \"x\"\n[roles.worker]\ncount = 2\nslots = 3",
        "expected_duration = \"1h\"\non_overrun = \"stop\"",
        "on_gpu_failure = \"stop\"\nalerts.gpu_idle = { for = \"1h\", then = \"stop\" }",
        "extras.trainyard = 1",
        "extras.a = 1979-05-27",
        "[extras]\nfirst = [{ at = 1979-05-27T07:32:00Z, x = 1.5 }, 07:32:00]\ntrainyard.on = 1979-05-27\nplain = \"1979-05-27\"",
        "[extras]\na = [1.0, 1e3, -0.0, 1e300, 5e-324, 0.1, 9223372036854775807, -9223372036854775808]\nb = { c = inf, d = -inf }",
        "[env]\nb = 1\na = 2",
        "framework = \"horovod\"\n[roles.worker]\ncount = 2\ncommand = \"x\"",
        "command = \"x\"\n[params]\nx = []\ny = [1]\n\"z z\" = true",
        "description = \"a\\n\"",
        "[roles.a]\nenv = { y = 1 }\n[services.s]\ncommand = \"x\"\nport = 1",
        "code = \"a\"\n[roles.w]\ncode = \"b\"\n[roles.v]\n[services.nb]\ncommand = \"x\"\nport = 1",
        "[roles.a]\nuser = \"1\"\n[services.s]\ncommand = \"x\"\nport = 1",
        "[env]\npaiAzRDMA = 1",
    ] {
        let before = spec::parse("x.toml", text).0.unwrap();
        let job = only(&openpai_export::export("x", &before).to_string());
        let (after, found) = spec::parse("x.toml", &job.toml);
        assert_eq!(after, Some(before), "{text} {found:?} {}", job.toml);
        assert_eq!(job.losses, [], "{text}");
    }
    let spec = spec::parse("x.toml", "command = \"true\"").0.unwrap();
    for name in ["训练", "a~0.1", "it.s-_"] {
        let mut document = openpai_export::export(name, &spec);
        let there = document["jobName"].as_str().unwrap().to_owned();
        assert!(openpai_names(&there), "{there}");
        assert_eq!(only(&document.to_string()).name, name);
        // As it was exported before there were digits.
        document["jobName"] = name.replace(|c: char| !c.is_ascii(), "-").into();
        assert_eq!(only(&document.to_string()).name, name);
        document["jobName"] = "other".into();
        assert_eq!(only(&document.to_string()).name, "other");
    }
}

/// What OpenPAI's schema of v0.14 has for names of jobs: `/^[A-Za-z0-9\-._]+$/`.
fn openpai_names(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

#[test]
fn jobs_of_a_sweep_are_exported_by_names_that_openpai_takes_and_come_back() {
    let spec = spec::parse("x.toml", "command = \"true\"").0.unwrap();
    let names = ["digits~0.1~1", "d~1~2", "d~1-2", "d-1-2", "训练~1", "训~1", "训练", "plain_1.x"];
    let exported = |name: &str| openpai_export::export(name, &spec)["jobName"].as_str().unwrap().to_owned();
    let there: std::collections::BTreeSet<String> = names.iter().map(|name| exported(name)).collect();
    assert!(
        there.len() == names.len() && there.iter().all(|name| openpai_names(name)),
        "each has a name of its own: {there:?}"
    );
    assert_eq!((exported("plain_1.x").as_str(), exported("d-1-2").as_str()), ("plain_1.x", "d-1-2"));
    assert!(exported("digits~0.1~1").starts_with("digits-0.1-1-"), "{there:?}");
    assert!(exported("训a~1训").starts_with("a-1-") && exported("训练").starts_with("job-"), "what is left of it");
    for name in names {
        assert_eq!(only(&openpai_export::export(name, &spec).to_string()).name, name);
    }
}

/// Numbers of notes as they are written: whole, or with a point.
#[test]
fn numbers_of_extras_stay_the_numbers_that_they_are() {
    let json = r#"{"jobName": "j", "image": "i", "retryCount": 2.0, "taskRoles": [{"name": "w", "command": "x"}],
        "extras": {"a": 1.0, "b": 1e3, "c": [-1E-5, -7, 9223372036854775807],
                   "d": 12345678901234567890}}"#;
    let yaml = "protocolVersion: 2\nname: j\ntype: job\nprerequisites:\n  - {type: dockerimage, name: i, uri: i}\n\
        taskRoles:\n  w:\n    dockerImage: i\n    commands: [x]\n    resourcePerInstance: {cpu: 1, memoryMB: 128, gpu: 0}\n\
        extras:\n  a: 1.0\n  b: 1e3\n  c: [-1E-5, -7, 9223372036854775807]\n  d: 12345678901234567890\n  e: -inf\n";
    for (text, line) in [(json, 3), (yaml, 15)] {
        let job = only(text);
        let spec = spec::parse("j.toml", &job.toml).0.unwrap_or_else(|| panic!("{}", job.toml));
        let of = |name: &str| spec.extras.iter().find(|(known, _)| *known == name).unwrap().1.clone();
        assert_eq!((of("a"), of("b")), (1.0.into(), 1000.0.into()), "{}", job.toml);
        assert_eq!(of("c"), vec![toml::Value::from(-1e-5), (-7).into(), i64::MAX.into()].into(), "{}", job.toml);
        assert_eq!(of("d"), "12345678901234567890".into());
        let lost =
            job.losses.iter().find(|loss| loss.field == "extras.d").unwrap_or_else(|| panic!("{:?}", job.losses));
        assert!(lost.line == line && lost.why.contains("larger number"), "{lost:?}");
    }
    let spec = spec::parse("j.toml", &only(yaml).toml).0.unwrap();
    assert!(spec.extras.iter().any(|(name, value)| name == "e" && value.as_str() == Some("-inf")), "{:?}", spec.extras);
}

proptest::proptest! {
    #[test]
    fn any_number_of_extras_is_exported_and_comes_back(whole: i64, with_point in proptest::num::f64::NORMAL | proptest::num::f64::ZERO) {
        let before = spec::parse("x.toml", &format!("extras.a = [{whole}, {}]", toml::Value::Float(with_point))).0.unwrap();
        let job = only(&openpai_export::export("x", &before).to_string());
        proptest::prop_assert_eq!(spec::parse("x.toml", &job.toml).0, Some(before), "{}", job.toml);
    }
}

#[test]
fn a_port_that_openpai_gives_is_exported_where_the_job_asks_for_it_itself() {
    let labels = |contract: &str| {
        let text = format!("contract = \"{contract}\"\ncommand = \"true\"\n[roles.main]\nports = {{ http = 1 }}\n");
        let document = openpai_export::export("j", &spec::parse("j.toml", &text).0.unwrap());
        document["taskRoles"][0]["portList"].as_array().unwrap().len()
    };
    assert_eq!((labels("native"), labels("openpai")), (1, 0));
}

/// What OpenPAI's schema of v0.14 has for names of roles and labels of ports.
fn openpai_takes(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._~".contains(c))
}

#[test]
fn roles_and_labels_are_exported_by_names_that_openpai_takes_and_come_back() {
    let text = "command = \"x\"\n[roles.b-c]\ncount = 2\nmain = true\nports = { \"a-b\" = 2, plain = { count = 1, begin = 9000 } }\n\
        [roles.d]\nports.a_b = 1\n[roles.\"角色\"]\nenv.A = \"1\"\n[roles.\"训练\"]\nuser = \"7\"\n";
    let before = spec::parse("x.toml", text).0.unwrap();
    let document = openpai_export::export("x", &before);
    let roles = document["taskRoles"].as_array().unwrap();
    let names: Vec<&str> = roles.iter().map(|role| role["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b_c", "d", "__", "___2"]);
    let ports = |index: usize| roles[index]["portList"].as_array().unwrap().iter();
    let labels: Vec<&str> = (0..4).flat_map(ports).map(|port| port["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["a_b", "plain", "a_b"]);
    assert!(names.iter().chain(&labels).all(|name| openpai_takes(name)));
    let job = only(&document.to_string());
    assert_eq!((spec::parse("x.toml", &job.toml).0, job.losses), (Some(before), vec![]), "{}", job.toml);
    // A name that another role has is none that is free.
    let near = "command = \"x\"\n[roles.\"a\u{e9}\"]\n[roles.a_]\n";
    let near = openpai_export::export("x", &spec::parse("x.toml", near).0.unwrap());
    assert_eq!((&near["taskRoles"][0]["name"], &near["taskRoles"][1]["name"]), (&"a__2".into(), &"a_".into()));
    // Whoever gives a role another name there has another role.
    let mut renamed = document.clone();
    renamed["taskRoles"][2]["name"] = "other".into();
    let job = only(&renamed.to_string());
    assert!(job.toml.contains("[roles.other]") && !job.toml.contains("角色]"), "{}", job.toml);
}

#[test]
fn what_openpai_cannot_run_is_told_and_what_it_can_is_not() {
    let told = |text: &str| {
        let (spec, found) = spec::parse("x.toml", text);
        let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
        openpai_lacks::lacks(&spec).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let image = "image = \"lab/x:1\"\ncommand = \"x\"\n";
    for (more, word) in [
        ("[roles.a]\nimage = \"host\"\n", "roles.a.image: \"host\" is this machine's own system"),
        ("[roles.a]\nimage = \"oci:/images/x:1\"\n", "roles.a.image: oci:/images/x:1 is a file of this machine"),
        ("[roles.a]\n[roles.b]\nimage = \"lab/y\"\n", "roles.b.image: one image is for all roles there, lab/x:1"),
        ("[roles.a]\nmain = \"first\"\ncount = 2\n[roles.b]\n", "roles.a.main: \"first\""),
        ("[roles.a]\n[roles.b]\nserves = true\n", "roles.b.serves: OpenPAI waits for this role"),
        ("[roles.b-c]\n[roles.d]\n", "roles.b-c: is called b_c there"),
        ("[roles.d]\nports.a-b = 1\n", "roles.d.ports.a-b: is called a_b there"),
        (
            "[roles.a]\nenv.X = \"1\"\n[roles.b]\n",
            "roles.a.env: a role has no variables of its own there, so X is not set",
        ),
        ("[roles.a]\nuser = \"7\"\n", "roles.a.user: "),
        ("[roles.a]\nresources.gpu_memory = \"1GiB\"\n", "roles.a.resources: "),
        ("[services.s]\ncommand = \"x\"\nport = 1\n", "services: are not started there"),
        ("[roles.a]\ncode = \"a\"\n", "code: "),
        ("datasets = [\"d\"]\n", "datasets: "),
        ("mounts = [{ source = \"/a\", target = \"/b\" }]\n", "mounts: "),
        ("framework = \"pytorch\"\n", "framework: "),
        ("contract = \"sagemaker\"\n", "framework: "),
        ("state = \"held\"\n", "state: \"held\" is not known there: it starts as soon"),
        ("state = \"stopped\"\n", "state: \"stopped\" is not known there"),
        ("after = [\"b\"]\n", "after: is not known there: it waits for no other job"),
        ("max_duration = \"1h\"\n", "max_duration: is not known there"),
        ("on_overrun = \"stop\"\nexpected_duration = \"1h\"\n", "on_overrun: \"stop\" is not known there"),
        ("retry.on = [\"oom\"]\n", "retry.on: is not known there"),
        ("priority = \"high\"\n", "priority: is not known there"),
        ("stop_grace = \"5s\"\n", "stop_grace: is not known there"),
    ] {
        let text = told(&format!("{image}{more}"));
        assert!(text.lines().any(|line| line.starts_with(word)), "{more}: {text}");
        assert_eq!(text.lines().count(), 1, "{more}: {text}");
    }
    assert!(told("image = \"lab/x:1\"").contains("roles.main.command: is the image's own"));
    for known in [
        "",
        "contract = \"openpai\"\n",
        "env.X = \"1\"\n[roles.a]\nmain = true\n[roles.b]\n",
        "extras.a = 1\nretries = 2\nretry.backoff = \"1s\"\nexpected_duration = \"1h\"\nstate = \"run\"\n",
        "[roles.a]\nmain = true\n[roles.b]\nserves = true\n",
    ] {
        assert_eq!(told(&format!("{image}{known}")), "", "{known}");
    }
}
