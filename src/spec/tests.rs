use std::time::Duration;

use super::job::Network;
use super::*;

fn errors(text: &str) -> Vec<String> {
    let (spec, found) = parse("x.toml", text);
    assert_eq!(spec.is_none(), found.iter().any(Diagnostic::is_error), "a job exactly when there is no error");
    found.iter().map(ToString::to_string).collect()
}

fn job(text: &str) -> JobSpec {
    let (spec, found) = parse("x.toml", text);
    spec.unwrap_or_else(|| panic!("{found:?}"))
}

#[test]
fn a_job_of_one_line_gets_every_default() {
    let spec = job("command = \"true\"");
    assert_eq!(spec.roles.len(), 1);
    let role = &spec.roles[0];
    assert_eq!((role.name.as_str(), role.count, role.min_failed), ("main", 1, Some(1)));
    assert_eq!((role.resources.shm, role.resources.gpu), (crate::ids::Bytes(512 << 20), 0));
    assert_eq!(role.command, Command::Shell("true".into()));
    assert_eq!(job("").roles[0].command, Command::Default);
}

#[test]
fn roles_and_params_keep_the_order_of_the_file_and_numbers_their_form() {
    let spec = job(
        "[params]\nz = 1e-4\na = true\nb = [1, 1e-4, 3.50]\nc = false\n[roles.worker]\ncount = 2\n[roles.ps]\nparams.z = 3\n",
    );
    let names: Vec<_> = spec.roles.iter().map(|role| role.name.as_str()).collect();
    assert_eq!(names, ["worker", "ps"]);
    let value = |text: &str| Param::Plain(text.into());
    assert_eq!(
        spec.roles[0].params,
        [
            ("z".into(), value("1e-4")),
            ("a".into(), Param::Flag),
            ("b".into(), Param::List(["1", "1e-4", "3.50"].map(|number| ListItem::Plain(number.into())).to_vec())),
            ("c".into(), value("false"))
        ]
    );
    assert_eq!(spec.roles[1].params[0], ("z".into(), value("3")));
    // Those of lists make no other job: versions before have had them so.
    let list = |items: &str| job(&format!("params.b = [{items}]")).meaning();
    assert!(list("1e-4, 3.50") == list("0.0001, 3.5") && list("3.5") != list("'3.5'") && list("1") != list("1.0"));
    assert!(spec.roles[1].serves && !spec.roles[0].serves);
}

#[test]
fn every_error_names_its_place_and_what_to_do() {
    let cases = [
        ("comand = \"x\"", "x.toml:1:1: unknown key `comand`; did you mean `command`?"),
        ("\n[roles.w]\ncuont = 1", "x.toml:3:1: unknown key `roles.w.cuont`; did you mean `count`?"),
        ("cpu = 1", "x.toml:1:1: unknown key `cpu`; it belongs at `resources.cpu`"),
        ("cmd = 1", "x.toml:1:1: unknown key `cmd`; did you mean `command`?"),
        ("gpu_count = 1", "x.toml:1:1: unknown key `gpu_count`; it belongs at `resources.gpu`"),
        ("[roles.w]\ngpus = 1", "x.toml:2:1: unknown key `roles.w.gpus`; it belongs at `roles.w.resources.gpu`"),
        ("[roles.w]\nreplicas = 1", "x.toml:2:1: unknown key `roles.w.replicas`; did you mean `count`?"),
        ("num_workers = 1", "x.toml:1:1: unknown key `num_workers`; it belongs at `roles.NAME.count`"),
        (
            "[roles.w]\nminSucceeded = 1",
            "x.toml:2:1: unknown key `roles.w.minSucceeded`; did you mean `min_succeeded`?",
        ),
        ("[resources]\nram = 1", "x.toml:2:1: unknown key `resources.ram`; did you mean `memory`?"),
        ("[roles.w]\ntaskNumber = 1", "x.toml:2:1: unknown key `roles.w.taskNumber`; did you mean `count`?"),
        (
            "[roles.w]\nname = 'x'",
            "x.toml:2:1: unknown key `roles.w.name`; the keys here are count, main, serves, min_failed, min_succeeded, retries, slots, image, user, code, command, params, env, resources, ports",
        ),
        ("depends_on = 1", "x.toml:1:1: unknown key `depends_on`; did you mean `after`?"),
        ("name = 'x'", "x.toml:1:1: unknown key `name`; a job is called as its file is, without .toml"),
        (
            "workdir = 'x'",
            "x.toml:1:1: unknown key `workdir`; a command starts in /code; begin it with `cd DIR &&` for another place",
        ),
        ("retries = \"two\"", "x.toml:1:11: `retries` takes an integer, not a string"),
        ("priority = 101", "x.toml:1:12: `priority`: is 101, must be at least 0 and at most 100"),
        (
            "priority = \"urgent\"",
            "x.toml:1:12: `priority`: is \"urgent\", must be \"low\" or \"normal\" or \"high\", or an integer from 0 to 100",
        ),
        ("roles.w.main = \"yes\"", "x.toml:1:16: `roles.w.main`: is \"yes\", must be \"first\", or true or false"),
        (
            "roles.w.min_failed = \"x\"",
            "x.toml:1:22: `roles.w.min_failed`: is \"x\", must be \"never\", or an integer from 1 on",
        ),
        ("resources.mem = 1", "x.toml:1:11: unknown key `resources.mem`; did you mean `memory`?"),
        ("resources.gpus = 1", "x.toml:1:11: unknown key `resources.gpus`; did you mean `gpu`?"),
        ("roles.w.cpu = 1", "x.toml:1:9: unknown key `roles.w.cpu`; it belongs at `roles.w.resources.cpu`"),
        ("roles.w.resources.mem = 1", "x.toml:1:19: unknown key `roles.w.resources.mem`; did you mean `memory`?"),
        ("services.n.cpu = 1", "x.toml:1:12: unknown key `services.n.cpu`; it belongs at `services.n.resources.cpu`"),
        ("wibble = \"x\"", "x.toml:1:1: unknown key `wibble`; `trainyard explain` lists all keys"),
        (
            "[env]\nbig = 99999999999999999999",
            "x.toml:2:7: `env.big`: the number is too large; in quotes it is a string of any length",
        ),
        (
            "params.a = [1, 0xffffffffffffffff]",
            "x.toml:1:12: `params.a`: the number is too large; in quotes it is a string of any length",
        ),
        (
            "[extras]\nx = { y = [18446744073709551615] }",
            "x.toml:2:5: `extras.x`: the number is too large; in quotes it is a string of any length",
        ),
        ("retries = 99999999999999999999", "x.toml:1:11: `retries`: the number is too large"),
        ("retries = 1\nretries = 2", "x.toml:2:1: `retries` stands here a second time"),
        ("[env]\nA = 1\n  A = 2", "x.toml:3:3: `A` stands here a second time"),
        ("env.A = 1\nenv.A = 2", "x.toml:2:5: `env.A` stands here a second time"),
        ("env = { A = 1, A = 2 }", "x.toml:1:16: `A` stands here a second time"),
        ("[roles.w]\ncount = 1\n[roles.w]\ncount = 2", "x.toml:3:8: `roles.w` stands here a second time"),
        ("[roles.\"w\"]\n[roles.\"w\"]", "x.toml:2:8: `roles.\"w\"` stands here a second time"),
        ("retries = -1", "x.toml:1:11: `retries`: is -1, must be at least 0 and at most 1000"),
        ("state = \"go\"", "x.toml:1:9: `state`: is \"go\", must be \"run\" or \"held\" or \"stopped\""),
        (
            "alerts.gpu_idle.for = \"9s\"",
            "x.toml:1:23: `alerts.gpu_idle.for`: is 9s, must be at least 10s and at most 30d",
        ),
        ("stop_grace = \"1000d\"", "x.toml:1:14: `stop_grace`: is 1000d, must be at least 0s and at most 1h"),
        ("max_duration = \"0s\"", "x.toml:1:16: `max_duration`: is 0s, must be at least 1s and at most 3650d"),
        ("retry.backoff = \"400d\"", "x.toml:1:17: `retry.backoff`: is 400d, must be at least 0s and at most 1h"),
        (
            "on_gpu_failure = \"retry\"",
            "x.toml:1:18: warning: `on_gpu_failure` = \"retry\" makes another attempt only of those that `retries` allows, which is 0",
        ),
        (
            "[roles.w]\ncount = 2\nmin_failed = 3",
            "x.toml:3:14: `roles.w.min_failed` is 3, but the role has only 2 task(s)",
        ),
        (
            "[roles.\"a/b\"]",
            "x.toml:1:8: \"a/b\" is not a role name: a name holds letters with their marks, digits, '-', '_', '.' and '~', not '/'",
        ),
        (
            "[roles]\na-b = {}\na_b = {}",
            "x.toml:3:1: the roles \"a-b\" and \"a_b\" would both be A_B in the environment; rename one",
        ),
        (
            "roles.a.ports.count = 1\nroles.a-ports = {}",
            "x.toml:2:7: the roles \"a\" and \"a-ports\" would both be A_PORTS_COUNT in the environment; rename one",
        ),
        (
            "roles = { \"é-1\" = {}, a.ports.\"端口\" = 1 }",
            "x.toml:1:31: a port label holds letters A–Z and a–z, digits, '-', '_', '.' and '~'",
        ),
        (
            "[roles.训练]",
            "x.toml:1:8: invalid unquoted key, expected letters, numbers, `-`, `_`; put a name in other letters than A–Z and a–z in \
             quotes, as in [roles.\"训练\"]",
        ),
        (
            "[resources]\nmemory = \"1KiB\"",
            "x.toml:2:10: `resources.memory`: is 1KiB, must be at least 100MB and at most 1024TiB",
        ),
        (
            "code = \"obs://b/x\"",
            "x.toml:1:8: `code`: \"obs://b/x\" is an address in Huawei OBS: write code = \"s3:POOL/PREFIX\", with a pool of trainyard.toml",
        ),
        (
            "code = \"gs://b/x\"",
            "x.toml:1:8: `code`: \"gs://b/x\" is an address in Google Cloud Storage: put the code into code/",
        ),
        (
            "datasets = [\"a=gs://b/x\"]",
            "x.toml:1:13: `datasets`: \"gs://b/x\" is an address in Google Cloud Storage, not the name of a dataset: put the data into datasets/",
        ),
        (
            "datasets = [\"cosn://b\"]",
            "x.toml:1:13: `datasets`: \"cosn://b\" is an address in Tencent COS, not the name of a dataset: put the data into datasets/, or \
             have it copied in from a pool of trainyard.toml: mounts = [{ source = \"s3:POOL/PREFIX\", target = \"/input\" }]",
        ),
        ("command = []", "x.toml:1:11: `command`: the array names no program"),
        (
            "image = \"oci:torch\"",
            "x.toml:1:9: `image`: \"oci:torch\": write the path from the root, as in \"oci:/images/torch\"",
        ),
        (
            "debug = true\ninit = false",
            "x.toml:1:9: `debug` keeps a container by Trainyard's own first process: it cannot be had with init = false",
        ),
        (
            "roles.w = { count = 4, ports = { http = { begin = 65200, count = 100 } } }",
            "x.toml:1:41: `roles.w.ports.http` for 4 tasks, one after another, reaches beyond port 65535",
        ),
        ("user = \"a/b\"", "x.toml:1:8: `user`: \"a/b\" is no user; write NAME, UID, NAME:GROUP or UID:GID"),
        (
            "code = \"../etc\"",
            "x.toml:1:8: `code`: \"../etc\" is not a name: a name starts with a letter or a digit, this one with '.'",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(errors(text), [expected], "{text}");
    }
}

#[test]
fn syntax_errors_and_doubled_roles_have_a_place() {
    for (text, place) in [
        ("a = ", "x.toml:1:"),
        ("[roles.a]\n[roles.a]", "x.toml:2:"),
        ("x", "x.toml:1:"),
        ("a = 1\nb = \"", "x.toml:2:"),
    ] {
        let found = errors(text);
        assert!(!found.is_empty() && found[0].starts_with(place), "{text}: {found:?}");
    }
    let (_, found) = parse_bytes("x.toml", b"a = 1\n\xff");
    assert_eq!(found[0].to_string(), "x.toml:2:1: not UTF-8 text, so not a job file");
}

#[test]
fn several_errors_are_told_at_once() {
    assert_eq!(errors("comand = 1\nretries = -1\nstate = 3").len(), 3);
    let twice = "[roles.w]\ncount = 1\n[roles.w]\ncount = 2\n[roles.x]\ncount = 1\ncount = 2\n[roles.x]\ncount = 3";
    let places = ["x.toml:3:8: `roles.w`", "x.toml:7:1: `count`", "x.toml:8:8: `roles.x`"];
    assert_eq!(errors(twice), places.map(|place| format!("{place} stands here a second time")));
}

#[test]
fn the_meaning_ignores_comments_order_of_tables_and_live_keys() {
    let a = job("command = \"x\"\n[env]\nA = 1");
    let b = job("# hello\ndescription = \"d\"\nstate = \"held\"\ncommand   = 'x'\nenv = { A = 1 }");
    assert_eq!(a.meaning(), b.meaning());
    assert_ne!(a.meaning(), job("command = \"y\"\n[env]\nA = 1").meaning());
}

#[test]
fn far_too_low_bounds_are_a_warning_naming_both() {
    let found = errors("[roles.w]\ncount = 10\nmin_failed = 1\nmin_succeeded = 2");
    assert!(
        found.len() == 1 && found[0].contains("warning") && found[0].contains('2') && found[0].contains('1'),
        "{found:?}"
    );
}

#[test]
fn who_asks_for_more_than_the_file_allows_gets_less_and_is_told() {
    let counts = |text: &str| job(text).roles.iter().map(|role| role.count).collect::<Vec<_>>();
    let of_two = "[roles.ps]\n[roles.a]\ncount = 3\n[roles.b]\ncount = 3\nmin_failed = 3\nmin_succeeded = 3\n";
    let text = format!("max_nodes = 4\n{of_two}");
    assert_eq!(counts(&text), [1, 3, 1], "the last ones are left out; who only serves does not count");
    let cut = &job(&text).roles[2];
    assert_eq!((cut.min_failed, cut.min_succeeded), (Some(1), MinSucceeded::Count(1)));
    let told = parse("x.toml", &text).1;
    let cut = told.iter().find(|found| !found.is_error() && found.to_string().contains("max_nodes")).unwrap();
    assert!(cut.to_string().contains("role b has 1 of the 3 tasks that it asks for: `max_nodes` is 4"), "{cut}");
    assert_eq!(counts(&format!("max_nodes = 6\n{of_two}")), [1, 3, 3]);
    assert!(errors(&format!("max_nodes = 1\n{of_two}"))[0].contains("2 roles compute"));

    let cards = |text: &str| job(text).roles.iter().map(|role| role.resources.gpu).collect::<Vec<_>>();
    let of_two = "[roles.a]\nresources.gpu = 4\n[roles.b]\ncount = 2\nresources.gpu = 1\n";
    assert_eq!(cards(&format!("max_gpu = 5\n{of_two}")), [3, 1]);
    assert_eq!(cards(&format!("max_gpu = 6\n{of_two}")), [4, 1]);
    assert_eq!(cards(&format!("max_gpu = 0\n{of_two}")), [0, 0], "training on cores");
    assert!(errors(&format!("max_gpu = 2\n{of_two}"))[0].contains("3 tasks that want one each"));
    let service = "[services.s]\ncommand = 'x'\nport = 1\nresources.gpu = 2\n";
    assert_eq!(
        cards(&format!("max_gpu = 5\n{of_two}{service}")),
        [1, 1, 2],
        "what a service has is not left for tasks"
    );
    assert!(errors(&format!("max_gpu = 1\n{of_two}{service}"))[0].contains("the services alone have 2"));
    // A share and a slice are a card each, and so are those of a board that each task has.
    let shares = "[services.s]\ncommand = 'x'\nport = 1\nresources.gpu_memory = '10GiB'\n\
                  [services.t]\ncommand = 'x'\nport = 2\nresources = { mig = '1g.10gb', gpu = 2 }\n";
    assert_eq!(cards(&format!("max_gpu = 6\n{of_two}{shares}")), [1, 1, 1, 2]);
    assert!(errors(&format!("max_gpu = 2\n{of_two}{shares}"))[0].contains("the services alone have 3"));
    let boards = "[tensorboard]\neach_task = true\nresources.gpu_memory = '1GiB'\n";
    assert_eq!(cards(&format!("max_gpu = 6\n{of_two}{boards}")), [1, 1, 1, 1, 1]);
    assert!(errors(&format!("max_gpu = 2\n{of_two}{boards}"))[0].contains("the services alone have 3"));
}

#[test]
fn what_is_said_of_cards_that_nobody_asks_for_is_warned_of_where_it_stands() {
    let warned = |text: &str| {
        let found = parse("x.toml", text).1;
        assert!(found.iter().all(|found| !found.is_error()), "{found:?}");
        found.iter().map(ToString::to_string).filter(|found| found.contains("gpu_")).collect::<Vec<_>>()
    };
    let (kind, over) =
        ("`gpu_type` is the kind of cards that nobody asks for", "`gpu_memory_over` is about shares of a card");
    for (text, said) in [
        ("[roles.w]\nresources.gpu_type = 'H100'\n", kind),
        ("[roles.w]\nresources = { gpu = 1, gpu_memory_over = 'alert' }\n", over),
        ("resources.gpu_memory_over = 'alert'\ncommand = 'x'\n", over),
        ("command = 'x'\n[services.s]\ncommand = 'x'\nport = 1\nresources.gpu_memory_over = 'stop'\n", over),
    ] {
        let found = warned(text);
        assert!(found.len() == 1 && found[0].contains(said), "{text}: {found:?}");
    }
    let right = "resources = { gpu_type = 'H100', gpu_memory_over = 'alert' }\n[roles.a]\nresources.gpu_memory = '1GiB'\n[roles.b]\n";
    assert_eq!(warned(right), Vec::<String>::new());
}

#[test]
fn nodes_of_uai_are_two_to_four_or_what_the_file_allows() {
    let nodes = |more: &str, count: u32| {
        errors(&format!(
            "contract = 'uai'\nframework = 'mxnet'\ncommand = 'x'\n{more}[roles.worker]\ncount = {count}\n"
        ))
    };
    for count in [1, 2, 4] {
        assert!(nodes("", count).is_empty(), "{count}");
    }
    let told = nodes("", 5);
    assert!(told.len() == 1 && told[0].contains("2 to 4 nodes (by UAI-Train's console"), "{told:?}");
    let cut = nodes("max_nodes = 4\n", 8);
    assert!(cut.len() == 1 && cut[0].contains("role worker has 4 of the 8 tasks"), "{cut:?}");
    assert!(nodes("max_nodes = 6\n", 6).is_empty(), "the machine may have room for more");
    let alone = "contract = 'uai'\nframework = 'tensorflow'\ncommand = 'x'\n[roles.ps]\n[roles.worker]\n";
    assert!(errors(alone)[0].contains("and this one 1"), "{:?}", errors(alone));
    let one = errors(&format!("max_nodes = 1\n{alone}"));
    assert!(one[0].contains("has 2 nodes at least (by UAI-Train's console), and `max_nodes` is 1"), "{one:?}");
}

#[test]
fn every_key_of_the_table_is_read_by_the_wire_types() {
    // Put in before a job is read: tested with `layers`.
    let layered = ["template", "with.*", "sweep.*"];
    let is_layered = |path: &str| layered.contains(&path) || path.ends_with("resources.spec");
    let single = keys::KEYS.iter().filter(|key| !is_layered(key.path));
    for key in single.filter(|key| key.support == keys::Support::Now && key.kind != keys::Kind::Table) {
        let value = match key.kind {
            keys::Kind::Text if key.path.ends_with("image") => "\"host\"",
            keys::Kind::Text if key.path == "contract" => "\"openpai\"",
            keys::Kind::Choice(_) if key.path == "strategy" => "\"ps\"\nframework = \"tensorflow\"",
            keys::Kind::Text if key.path.ends_with(".mig") => "\"1g.10gb\"",
            keys::Kind::Text if key.path.ends_with("code.git") => "\"https://lab/x\"",
            keys::Kind::Text if key.path.ends_with("code.password") => {
                "\"secret:x\"\nCODE.user = \"x\"\nCODE.git = \"https://lab/x\""
            }
            keys::Kind::Text if key.path.contains("code.") => "\"x\"\nCODE.git = \"https://lab/x\"",
            keys::Kind::Bool if key.path.contains("code.") => "true\nCODE.git = \"https://lab/x\"",
            keys::Kind::Text if key.path == "tensorboard.log_dir" => "\"/x\"",
            keys::Kind::Text if key.path == "scalars.log_dir" => "\"/x\"",
            keys::Kind::Text if key.path == "scalars.lines" => "\"(?<loss>.*)\"",
            keys::Kind::Bool if key.path == "requirements" => "true\ncode = \"x\"",
            keys::Kind::Tables => "[{ source = \"/x\", target = \"/y\", read_only = true }]",
            // Written with the table that they are in.
            _ if key.path.starts_with("mounts.") => continue,
            keys::Kind::TextOrTable => "\"x\"",
            keys::Kind::Texts if key.path == "retry.on" => "[\"oom\"]",
            keys::Kind::BoolOr(words) => &format!("{:?}", words[0]),
            keys::Kind::Text | keys::Kind::Command | keys::Kind::Scalar | keys::Kind::Param => "\"x\"",
            keys::Kind::Bool => "true",
            keys::Kind::Size { .. } => "\"128MiB\"",
            keys::Kind::Duration { .. } => "\"1h\"",
            keys::Kind::Texts => "[\"x\"]",
            keys::Kind::Choice(words) => &format!("{:?}", words[0]),
            keys::Kind::Integer { min: 8, .. } => "8",
            _ => "1",
        };
        let value = value.replace("CODE", &key.path[..key.path.rfind('.').unwrap_or(0)].replace('*', "n"));
        let path = key.path.replace('*', "n");
        let mut text = format!("{path} = {value}");
        if path.starts_with("services.") {
            let needed = ["command = \"x\"", "port = 1"].map(|line| format!("\nservices.n.{line}"));
            text.extend(needed.into_iter().filter(|line| !line.contains(&format!("{path} "))));
        }
        job(&text);
    }
}

#[test]
fn bounds_are_told_with_each_number_size_and_duration_and_hold_but_for_what_was_accepted() {
    for key in keys::KEYS {
        let beyond = match key.kind {
            keys::Kind::Integer { min, max } => {
                [Some((min - 1).to_string()), max.checked_add(1).map(|n| n.to_string())]
            }
            keys::Kind::Number { min, max } => [Some((min / 2.0).to_string()), Some((max * 2.0).to_string())],
            keys::Kind::Size { min, max } => [min - 1, max + 1].map(|bytes| Some(format!("\"{bytes}B\""))),
            keys::Kind::Duration { min, max } => {
                [min.checked_sub(1), Some(max + 1)].map(|millis| millis.map(|millis| format!("\"{millis}ms\"")))
            }
            _ => continue,
        };
        for value in beyond.into_iter().flatten() {
            let path = key.path.replace('*', "n");
            let text = format!("{path} = {value}");
            let (_, found) = parse("x.toml", &text);
            let told = found.iter().find(|found| found.message.contains("must be at least"));
            let told = told.unwrap_or_else(|| panic!("{text}: {found:?}")).message.clone();
            let (_, bounds) = told.split_once("must be at least ").unwrap();
            let (least, most) = bounds.split_once(" and at most ").unwrap_or((bounds, ""));
            assert!(key.bounds.starts_with(&format!("{least} ")), "{path}: {:?}, {told}", key.bounds);
            assert!(key.bounds.split([' ', ',']).any(|word| word == most) || most.is_empty(), "{path}: {told}");
            if matches!(key.kind, keys::Kind::Duration { .. }) {
                let accepted = parse_accepted(&text, None).unwrap();
                assert_eq!(accepted.refused, [], "{text}: what runs goes on");
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
        let _ = parse("x.toml", &text);
    }

    #[test]
    fn no_mix_of_keys_and_values_makes_it_panic(picks in proptest::collection::vec((0..keys::KEYS.len(), 0..6usize), 0..8)) {
        let values = ["1", "\"x\"", "true", "[1]", "{}", "-0.5e9"];
        let text: String = picks.iter().map(|(key, value)| format!("{} = {}\n", keys::KEYS[*key].path.replace('*', "n"), values[*value])).collect();
        let _ = parse("x.toml", &text);
    }
}

#[test]
fn tasks_that_share_a_network_cannot_name_the_same_ports() {
    let text = |network: &str| {
        format!(
            "network = {network:?}\n[roles.a]\ncount = 2\nports = {{ x = {{ begin = 8000, count = 2 }} }}\n\
             [roles.b]\nports = {{ x = {{ begin = 8003 }} }}\n"
        )
    };
    assert!(parse("x.toml", &text("task")).0.is_some(), "each has a network of its own");
    for network in ["job", "host"] {
        let (spec, found) = parse("x.toml", &text(network));
        assert!(spec.is_none());
        let told = found.iter().map(ToString::to_string).collect::<String>();
        assert!(told.contains("roles.a.ports.x") && told.contains("roles.b.ports.x"), "{told}");
        let service = "[services.n]\ncommand = \"x\"\nport = 8001\n";
        let told =
            errors(&format!("network = {network:?}\nroles.a.ports.x = {{ begin = 8000, count = 2 }}\n{service}"));
        assert!(told[0].contains("`services.n.port` and `roles.a.ports.x` name the same ports"), "{told:?}");
    }
}

#[test]
fn repositories_are_named_safely_or_refused_by_what_is_wrong() {
    let code = |text: &str| {
        let (spec, found) = parse("a.toml", &format!("code = {{ {text} }}"));
        (spec.and_then(|spec| spec.roles[0].code.clone()), found.iter().map(ToString::to_string).collect::<String>())
    };
    let (good, told) =
        code("git = \"https://lab/team/x.git\", ref = \"v1\", user = \"ada\", password = \"secret:git\"");
    let Some(Code::Git(good)) = good else { panic!("{told}") };
    assert_eq!((good.reference.as_deref(), good.submodules), (Some("v1"), Submodules::Left));
    for (text, words) in [
        ("git = \"git@lab:team/x.git\"", "not by ssh"),
        ("git = \"ssh://lab/x\"", "not by ssh"),
        ("git = \"file:///etc\"", "no address of a repository"),
        ("git = \"--upload-pack=x\"", "no address of a repository"),
        ("git = \"https://ada:s3cret@lab/x\"", "does not belong into the address"),
        ("git = \"https://lab/x\", ref = \"--force\"", "no branch, tag or commit"),
        ("git = \"https://lab/x\", user = \"ada\", password = \"s3cret\"", "does not belong into a job file"),
        ("git = \"https://lab/x\", password = \"secret:x\"", "needs a user"),
        ("git = \"https://lab/x\", branch = \"main\"", "unknown key `code.branch`"),
        ("ref = \"main\"", "git"),
    ] {
        let (code, told) = code(text);
        assert!(code.is_none() && told.contains(words), "{text}: {told}");
        assert!(!told.contains("s3cret"), "{told}");
    }
}

#[test]
fn tasks_with_cards_share_a_network_unless_the_file_says_otherwise() {
    for (text, wanted) in [
        ("", Network::Task),
        ("resources.gpu = 8", Network::Task),
        ("resources.gpu = 1\nroles.w.count = 2", Network::Job),
        ("roles.a.resources.gpu = 1\nroles.b.resources.gpu = 1", Network::Job),
        ("roles.ps.count = 2\nroles.w.resources.gpu = 4", Network::Task),
        ("network = \"task\"\nresources.gpu = 1\nroles.w.count = 2", Network::Task),
        ("network = \"host\"\nresources.gpu = 1\nroles.w.count = 2", Network::Host),
        // A notebook is none of those who talk to each other.
        ("resources.gpu = 1\n[services.n]\ncommand = \"x\"\nport = 1\nresources.gpu = 1", Network::Task),
        // Scripts of other platforms listen on the same port in each task, but for OpenPAI's, which ask for theirs.
        ("contract = \"sagemaker\"\nresources.gpu = 1\nroles.w.count = 2", Network::Task),
        ("contract = \"volcano/octopus\"\nresources.gpu = 1\nroles.w.count = 2", Network::Task),
        ("contract = \"uai\"\nnetwork = \"job\"\nresources.gpu = 1\nroles.w.count = 2", Network::Job),
        ("contract = \"openpai\"\nresources.gpu = 1\nroles.w.count = 2", Network::Job),
        // A launcher tells hosts apart by their addresses.
        ("framework = \"mpi\"\nresources.gpu = 1\nroles.worker.count = 2", Network::Task),
    ] {
        assert_eq!(job(&format!("command = \"x\"\n{text}")).network, wanted, "{text}");
    }
    let same = "resources.gpu = 1\nroles.a.ports.x = { begin = 80 }\nroles.b.ports.x = { begin = 80 }";
    assert!(errors(same)[0].contains("network = \"task\""), "{:?}", errors(same));
}

#[test]
fn services_are_roles_of_their_own_size_that_no_peer_is_told_of() {
    let spec = job(
        "command = \"x\"\nimage = \"lab/a\"\nenv.A = \"1\"\nparams.p = 1\nresources = { memory = \"64GiB\", gpu = 4 }\n\
         [services.notebook]\ncommand = \"jupyter\"\nport = 8888\nresources.cpu = 2\n[tensorboard]\nimage = \"lab/tb\"",
    );
    let [main, notebook, board] = spec.roles.as_slice() else { panic!("{:?}", spec.roles) };
    assert_eq!(spec.members().count(), 1);
    assert!(!main.is_service && notebook.is_service && board.is_service && notebook.serves);
    assert_eq!((notebook.resources.memory, notebook.resources.gpu), (crate::ids::Bytes(1 << 30), 0));
    assert_eq!((notebook.resources.cpu.0, notebook.params.len(), notebook.env.len()), (2000, 0, 1));
    assert_eq!((notebook.image.to_string(), board.image.to_string()), ("lab/a".into(), "lab/tb".into()));
    assert_eq!((notebook.ports[0].begin, notebook.ports[0].outside), (Some(8888), OutsidePort::Any));
    assert_eq!((spec.fixed_ports(), notebook.min_failed), (vec![], None), "it waits for no port and fails no job");
    let words = ["tensorboard", "--logdir", "/output", "--host", "0.0.0.0", "--port", "6006"].map(str::to_owned);
    assert_eq!(board.command, Command::Exec(words.to_vec()));
    for (text, word) in [
        ("[services.n]\nport = 1", "`services.n` needs a `command`"),
        ("[services.n]\ncommand = \"x\"", "`services.n` needs a `port`"),
        ("[services.n]\ncommand = \"x\"\nport = 70000", "at most 65535"),
        ("[services.main]\ncommand = \"x\"\nport = 1", "two roles or services are called \"main\""),
        ("[services.n]\ncommand = \"x\"\nport = 1\ncount = 2", "unknown key `services.n.count`"),
        ("[tensorboard]\nlog_dir = \"logs\"", "is a place in the tasks"),
        ("tensorboard.each_task = true\n[roles.w]\ncount = 33", "32 tasks at most, and 33 compute"),
        ("[scalars]\nlog_dir = \"logs\"", "is a place in the tasks"),
        ("[scalars]\nlines = \"loss=([0-9]+)\"", "no named group"),
        ("[scalars]\nlines = \"(?<a>\"", "`scalars.lines`: it is no regular expression: unclosed group"),
        ("[services.tensorboard]\ncommand = \"x\"\nport = 1\n[tensorboard]", "are called \"tensorboard\""),
    ] {
        assert!(errors(text).iter().any(|error| error.contains(word)), "{text}: {:?}", errors(text));
    }
}

#[test]
fn mounts_name_a_place_here_and_one_in_the_tasks() {
    let mount = |mount: &str| format!("mounts = [{{ {mount} }}]");
    let spec = job(
        "mounts = [{ source = \"/b/\", target = \"/y//z\" }, { source = \"/a\", target = \"/x\", read_only = true }]",
    );
    let seen: Vec<_> = spec.mounts.iter().map(|mount| (mount.target.to_str().unwrap(), mount.read_only)).collect();
    assert_eq!(seen, [("/x", true), ("/y/z", false)]);
    for (text, word) in [
        (mount("target = \"/x\""), "needs the place on this machine"),
        (mount("source = \"/x\""), "needs the place at which tasks see it"),
        (mount("source = \"x\", target = \"/x\""), "is not the absolute path"),
        (mount("source = \"/x/../y\", target = \"/x\""), "is not the absolute path"),
        (mount("source = \"/x\", target = \"/x/..\""), "is not an absolute path"),
        (mount("source = \"/\", target = \"/x\""), "the whole machine"),
        (mount("source = \"/proc/1\", target = \"/x\""), "is the kernel's"),
        (mount("source = \"/srv/trainyard/default/code\", target = \"/x\""), "jobs see workspaces by `code` and"),
        (mount("source = \"/x\", target = \"/dev/shm\""), "nothing can be put"),
        (mount("source = \"/x\", target = \"/run/trainyard/x\""), "nothing can be put"),
        (mount("source = \"/x\", target = \"/output\""), "is the run's own"),
        (mount("source = \"/x\", target = \"/\""), "the root is the image's"),
        (mount("source = \"/x\", target = \"/x\", sync = \"end\""), "is for stores"),
        (mount("source = \"ftp:pool/x\", target = \"/x\""), "ftp: is no kind of store"),
        (mount("source = \"s3:\", target = \"/x\""), "names no pool"),
        (mount("source = \"s3://bucket/x\", target = \"/x\""), "names no pool"),
        (mount("source = \"s3:lab/../x\", target = \"/x\""), "is no path in a store"),
        (mount("source = \"s3:lab/a//x\", target = \"/x\""), "is no path in a store"),
        (mount("source = \"s3:lab/x\", target = \"/model\""), "is the run's own"),
        (mount("source = \"s3:lab/x\", target = \"/x\", sync = \"5m\""), "what is copied back is the output"),
        (mount("source = \"s3:lab/x\", target = \"/output\", sync = \"1s\""), "is too often"),
        (mount("source = \"s3:lab/x\", target = \"/output\", sync = \"often\""), "neither \"end\" nor a duration"),
        (mount("source = \"s3:lab/x\", target = \"/output\", read_only = true"), "leave it out"),
        (mount("source = \"/x\", target = \"/x\", mode = 1"), "unknown key `mounts.mode`"),
        (
            "mounts = [\"/x\"]".to_owned(),
            "takes an array of tables, as in `[[mounts]]` with `source = …` below it, not a string",
        ),
        ("mounts = \"/x\"".to_owned(), "takes an array of tables"),
        (
            "mounts = [{ source = \"/a\", target = \"/x\" }, { source = \"/b\", target = \"/x/\" }]".to_owned(),
            "has two for /x",
        ),
    ] {
        assert!(errors(&text).iter().any(|error| error.contains(word)), "{text}: {:?}", errors(&text));
    }
}

#[test]
fn mounts_name_stores_of_other_machines() {
    let spec = job(
        "mounts = [{ source = \"s3:lab/sets/a b/\", target = \"/input\" }, { source = \"oss:out/{job}/{run}\", target = \"/output\", sync = \"5m\" }]",
    );
    let read: Vec<_> = spec.remotes.iter().map(|remote| (remote.to_string(), remote.sync)).collect();
    let every = SyncAt::Every(Duration::from_secs(300));
    assert_eq!(read, [("s3:lab/sets/a b".into(), None), ("oss:out/{job}/{run}".into(), Some(every))]);
    let prefix = spec.copied_out().unwrap().prefix_of(&"train".parse().unwrap(), 3);
    assert_eq!(prefix, "train/3");
    let plain = job("mounts = [{ source = \"s3:lab\", target = \"/output\" }]");
    assert_eq!(plain.copied_out().unwrap().sync, Some(SyncAt::End));
    assert!(spec.needs_preparation() && spec.comes_from_elsewhere() && !plain.comes_from_elsewhere());
}

#[test]
fn requirements_are_those_of_the_code_and_installed_by_our_init() {
    assert_eq!(job("code = \"x\"\nrequirements = true").requirements, Some(true));
    assert_eq!(job("requirements = false").requirements, Some(false));
    assert!(errors("requirements = true")[0].contains("name that as well"));
    assert!(errors("code = \"x\"\nrequirements = true\ninit = false")[0].contains("init = false"));
}

#[test]
fn a_run_begins_as_the_last_one_ended_where_the_file_or_its_platform_says_so() {
    let of = |text: &str| job(text).resumed();
    assert_eq!([of(""), of("contract = \"modelarts\""), of("contract = \"uai\"\nresume = false")], [None; 3]);
    assert_eq!([of("contract = \"uai\""), of("contract = \"modelarts\"\nresume = true")], [Some(""); 2]);
    assert_eq!(of("contract = \"pai\"\nresume = true"), Some("checkpoints"));
    assert!(job("resume = true").needs_preparation() && job("resume = true").comes_from_elsewhere());
}

// What fuzzing has found.

#[test]
fn a_name_of_an_argument_is_one() {
    for name in ["a\\u0000b", "", "e=f", "--x", "a\\nb"] {
        let found = errors(&format!("command = \"x\"\n[params]\n\"{name}\" = 1\n"));
        assert!(found[0].contains("cannot be the name of an argument"), "{found:?}");
    }
}

#[test]
fn a_file_of_nothing_but_errors_is_told_of_soon_and_in_part() {
    let keys = (0..20_000).map(|number| format!("key{number} = 1\n")).collect();
    let twice = format!("[a]\n[a]\nx = {{ {}b = 1 }}", "b=1,".repeat(60_000));
    for text in ["=\n".repeat(130_000), "a\n".repeat(130_000), keys, format!("{} = 1", "a".repeat(250_000)), twice] {
        let begun = std::time::Instant::now();
        assert!(errors(&text).len() <= 100);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}

#[test]
fn roles_and_tasks_are_bounded() {
    let env: String = (0..2000).map(|number| format!("a{number} = 1\n")).collect();
    let roles =
        |count: usize, with: &str| (0..count).map(|number| format!("r{number} = {{{with}}}\n")).collect::<String>();
    assert!(errors(&format!("[env]\n{env}[roles]\n{}", roles(2000, "")))[0].contains("64 roles at most"));
    assert!(errors(&format!("[roles]\n{}", roles(60, "count = 17")))[0].contains("1000 tasks at most"));
    assert_eq!(job(&format!("[roles]\n{}", roles(50, "count = 20"))).tasks().count(), 1000);
}

#[test]
fn a_finding_is_one_line_and_a_name_with_a_dot_is_one_name() {
    let found = errors("\"a\\nfake.toml:1:1: ok\\u001b[31m\" = 1");
    assert!(!found[0].contains(char::is_control), "{}", found[0]);
    assert!(errors("\"retry.on\" = [\"oom\"]")[0].contains("unknown key"));
    assert_eq!(job("command = \"x\"\nenv.\"a.b\" = 1").roles[0].env[0].0, "a.b");
}

#[test]
fn dates_in_extras_are_shown_as_they_are_written() {
    let spec = job("extras = { when = 1979-05-27, list = [1.5, { a = true }] }");
    assert_eq!(spec.extras_as_json().to_string(), r#"{"list":[1.5,{"a":true}],"when":"1979-05-27"}"#);
}

#[test]
fn labels_of_ports_are_told_apart_in_variables() {
    assert_eq!(job("command = \"x\"\nroles.a.ports.\"x.y~z\" = 1").roles[0].ports[0].label, "x.y~z");
    assert!(errors("command = \"x\"\n[roles.a.ports]\n\"a.b\" = 1\na_b = 1")[0].contains("would both be A_B"));
}

#[test]
fn cards_are_asked_for_whole_in_shares_or_in_slices_and_of_a_kind() {
    let wanted = |text: &str| {
        let spec = job(text);
        let of = |role: &Role| (role.resources.gpu, role.resources.gpu_part.clone(), role.resources.gpu_type.clone());
        (spec.roles.iter().map(of).collect::<Vec<_>>(), spec.network)
    };
    let share = |gib: u64, over| GpuPart::Share { memory: crate::ids::Bytes(gib << 30), over };
    let slice = || GpuPart::Slice("1g.10gb".to_owned());
    let kind = Some("H100".to_owned());
    let whole = vec![(2, GpuPart::Whole, kind.clone())];
    assert_eq!(wanted("resources = { gpu = 2, gpu_type = \" H100 \" }"), (whole, Network::Task));
    assert_eq!(wanted("resources.gpu_memory = \"20GiB\"").0, [(1, share(20, ShareOver::Stop), None)]);
    // Parts of cards do not reach each other.
    let text = "resources = { mig = \"1G.10GB\", gpu = 2 }\n[roles.w]\ncount = 4";
    assert_eq!(wanted(text), (vec![(2, slice(), None)], Network::Task));
    // Roles say more, or something else; none at all as well.
    let text = "resources = { gpu_memory = \"20GiB\", gpu_type = \"H100\", gpu_memory_over = \"alert\" }\n[roles.ps.resources]\n\
                gpu = 0\n[roles.a.resources]\ngpu_memory = \"10GiB\"\n[roles.b.resources]\nmig = \"1g.10gb\"";
    let (ps, a, b) = (share(20, ShareOver::Alert), share(10, ShareOver::Alert), slice());
    assert_eq!(wanted(text).0, [(0, ps, kind.clone()), (1, a, kind.clone()), (1, b, kind)]);
}

#[test]
fn cards_that_cannot_be_are_told_where_they_are_asked_for() {
    let cases = [
        ("resources = { gpu_memory = \"1GiB\", gpu = 2 }", "`gpu` is 2, but `gpu_memory` is a share of one card"),
        ("resources = { gpu_memory = \"1GiB\", mig = \"1g.10gb\" }", "say one of them"),
        ("resources.gpu_memory = \"1MiB\"", "64MiB"),
        ("resources.mig = \"half\"", "\"half\" is no profile of MIG, such as \"1g.10gb\""),
        ("resources = { gpu = 1, gpu_type = \" \" }", "`gpu_type` is part of the name of a card"),
        ("resources.gpu_type = \"H100\"", "is the kind of cards that no task asks for"),
        ("resources = { gpu = 0, gpu_memory = \"1GiB\" }", "`gpu_memory` is a part of a card, and nobody here has one"),
        (
            "resources.gpu = 0\nroles.w.resources.mig = \"1g.10gb\"",
            "`mig` is a part of a card, and nobody here has one",
        ),
        ("resources.gpu_memory_over = \"kill\"", "\"alert\" or \"stop\""),
    ];
    for (text, said) in cases {
        let found = errors(text);
        assert!(found.iter().any(|found| found.contains(said)), "{text}: {found:?}");
    }
}

#[test]
fn what_was_accepted_once_is_read_though_rules_have_become_stricter() {
    let text = "command = \"x\"\nresources = { cpu = 2, memory = \"64MiB\" }\nmax_duration = \"1h\"\n";
    assert!(parse("x.toml", text).0.is_none(), "it is refused now");
    let Accepted { spec, refused } = parse_accepted(text, None).unwrap();
    assert_eq!(refused, [], "a bound is not held against it");
    let role = &spec.roles[0];
    assert_eq!((role.resources.memory.0, role.resources.cpu.0), (64 << 20, 2000));
    let strict = text.replace("64MiB", "100MB");
    assert_eq!(parse_accepted(&strict, None).map(|read| read.spec), parse("x.toml", &strict).0);
    assert!(parse_accepted("no toml", None).is_none());
    // What has a default in its place is none that may be begun.
    let with_mount = "command = \"x\"\n[[mounts]]\nsource = \"data\"\ntarget = \"/data\"\n";
    for (text, key) in [
        ("command = \"x\"\nimage = \"a b\"\n", "image"),
        ("command = \"x\"\nuser = \":\"\n", "user"),
        ("command = \"x\"\nresources.memory = \"much\"\n", "resources.memory"),
        ("command = \"x\"\nmax_gpu = 1\n[roles.a]\ncount = 2\nresources.gpu = 1\n", "max_gpu"),
        (with_mount, "mounts.source"),
    ] {
        let read = parse_accepted(text, None).unwrap();
        let keys: Vec<_> = read.refused.iter().filter_map(|found| found.key.as_deref()).collect();
        assert_eq!(keys, [key], "{text}");
    }
}

#[test]
fn of_what_cannot_be_read_at_all_what_runs_is_saved() {
    let begun = |roles: &[(&str, u32)]| roles.iter().map(|(name, count)| (name.parse().unwrap(), *count)).collect();
    let text = "command = \"x\"\nmax_duration = \"1h\"\nnot_yet = 3\nretries = \"many\"\n[roles.w]\ncount = 2\nold.key = 1\n\
        resources.memory = \"3GiB\"\n";
    assert!(parse_accepted(text, None).is_none());
    let Accepted { spec, refused } = salvage(text, &begun(&[("w", 2)])).unwrap();
    let keys: Vec<_> = refused.iter().filter_map(|found| found.key.as_deref()).collect();
    assert_eq!(keys, ["not_yet", "retries", "roles.w.old"]);
    let role = &spec.roles[0];
    assert_eq!((role.name.as_str(), role.count, role.resources.memory.0), ("w", 2, 3 << 30), "what is read is kept");
    assert_eq!((spec.max_duration.map(|time| time.as_secs()), spec.retries), (Some(3600), 0));
    // Nothing of it can be read, or not what runs.
    for text in
        ["no toml", "roles = 3", "[roles.other]\ncount = 2", "contract = \"of the past\"", "[[mounts]]\nfrom = \"x\""]
    {
        let Accepted { spec, refused } = salvage(text, &begun(&[("ps", 1), ("w", 3)])).unwrap();
        let roles: Vec<_> = spec.roles.iter().map(|role| (role.name.as_str(), role.count)).collect();
        assert_eq!(roles, [("ps", 1), ("w", 3)], "{text}");
        assert!(text.contains("other") || !refused.is_empty(), "{text}");
        assert!(salvage(text, &begun(&[])).is_some(), "{text}");
    }
}

#[test]
fn what_a_table_is_made_of_is_said_where_something_else_stands() {
    for (text, said) in [
        ("roles = 4", "`roles` takes a table for each name, as in `[roles.NAME]` with keys below it, not an integer"),
        (
            "roles.worker = 4",
            "`roles.worker` takes a table, as in `[roles.worker]` with `count = …` below it, not an integer",
        ),
        ("env = \"A=1\"", "`env` takes a table, as in `[env]` with `NAME = …` below it, not a string"),
        ("resources = []", "`resources` takes a table, as in `[resources]` with"),
        ("services = true", "as in `[services.NAME]`"),
        ("rerun = []", "`rerun` takes"),
    ] {
        let found = errors(text);
        assert!(found.iter().any(|found| found.contains(said)), "{text}: {found:?}");
    }
}

#[test]
fn what_the_kernel_would_start_no_program_with_is_told_by_its_name() {
    let most = "x".repeat((128 << 10) - 1);
    let fits = &most[..(128 << 10) - "A=\0".len()];
    for (text, said) in [
        (format!("env.A = \"{fits}\""), None),
        (format!("env.A = \"{fits}x\""), Some("the variable A has")),
        (format!("roles.w.env.BIG = \"{most}\""), Some("`roles.w.env`: the variable BIG has")),
        (format!("params.list = [\"{most}\"]"), Some("the argument --list has")),
        (format!("command = \"{most}\""), None),
        (format!("command = \"{most}x\""), Some("`command`: has a string of 128KiB")),
        (format!("command = [\"true\", \"{most}x\"]"), Some("`command`: has a string of 128KiB")),
    ] {
        let found = errors(&text);
        let is_as_said = said.map_or(found.is_empty(), |said| found.iter().any(|found| found.contains(said)));
        assert!(is_as_said, "{said:?}: {:?}", found.iter().map(|one| &one[..one.len().min(200)]).collect::<Vec<_>>());
    }
}

#[test]
fn no_master_is_added_beside_tasks_that_an_earlier_version_has_begun_without_one() {
    let text =
        "framework = \"tensorflow\"\nstrategy = \"master-worker\"\n[roles.worker]\ncount = 1\nresources.gpu = 1\n";
    let read = |begun: Option<&[&str]>| {
        let begun = begun.map(|names| names.iter().map(|name| name.parse().unwrap()).collect());
        let spec = parse_accepted(text, begun.as_ref()).unwrap().spec;
        (spec.roles.iter().map(|role| role.name.to_string()).collect::<Vec<_>>().join(" "), spec.network)
    };
    assert_eq!(read(None), ("chief worker".into(), Network::Job));
    assert_eq!(read(Some(&["worker"])), ("worker".into(), Network::Task), "as it was begun");
    assert_eq!(read(Some(&["master", "worker"])), ("master worker".into(), Network::Job));
    assert_eq!(read(Some(&["chief", "worker"])), read(None));
}
