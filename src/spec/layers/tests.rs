use super::*;
use crate::spec::sweep::told_once;

const TEMPLATE: &str = r#"
command = "train --data ${data} --home ${HOME} --lr ${lr}"
retries = "${tries}"
[params]
lr = "${lr}"
base = 1e-3
[roles.worker]
count = "${workers}"
[template]
description = "d"
[template.params.data]
help = "where the data is"
[template.params.lr]
default = 1e-4
max = 1
[template.params.tries]
default = 2
[template.params.workers]
type = "integer"
default = 2
min = 1
max = 8
[template.params.kind]
default = "sgd"
choices = ["sgd", "adam"]
[template.params.memory]
type = "size"
default = "1GiB"
max = "8GiB"
[template.params.limit]
type = "duration"
default = "1h"
min = "1m"
"#;

fn stack(job: &str, overrides: &[&str], template: Option<&str>) -> Stack {
    let number = |(number, text): (usize, &&str)| Layer::new(&format!("j.toml.d/{number}.toml"), text);
    Stack {
        overrides: overrides.iter().enumerate().map(number).collect(),
        template: template.map(|text| Layer::new("t.template.toml", text)),
        ..Stack::of(Layer::new("j.toml", job))
    }
}

fn problems(job: &str, overrides: &[&str], template: Option<&str>) -> Vec<String> {
    let expanded = stack(job, overrides, template).expand();
    assert!(expanded.spec.is_none(), "{}", expanded.text);
    expanded.diagnostics.iter().map(ToString::to_string).collect()
}

/// As they come after the command.
fn arguments(role: &crate::spec::Role) -> Vec<String> {
    use crate::spec::Param;
    let one = |(key, param): &(String, Param)| match param {
        Param::Flag => vec![format!("--{key}")],
        Param::Value(value) | Param::Plain(value) => vec![format!("--{key}={value}")],
        Param::List(values) => values.iter().map(|value| format!("--{key}={}", value.as_str())).collect(),
    };
    role.params.iter().flat_map(one).collect()
}

#[test]
fn a_single_file_is_left_as_it_is() {
    for text in ["# with a template\ncommand = 'x'\n", "command = 'x'", "comand = 1"] {
        let expanded = stack(text, &[], None).expand();
        let (spec, found) = parse("j.toml", text);
        assert_eq!((expanded.spec, expanded.diagnostics, expanded.text.as_str()), (spec, found, text));
    }
}

#[test]
fn overrides_lie_on_top_in_order_and_arrays_are_replaced() {
    let job = "command = ['a', 'b']\nretries = 1\n[params]\nz = 1\na = 1e-4\nlist = [1, 2]\n[roles.w]\ncount = 2\n[roles.w.ports]\np = 1";
    let over =
        ["params.a = 2\nparams.new = 3\nparams.list = [3]\nroles.w.count = 4", "roles.w.count = 3\ncommand = ['c']"];
    let expanded = stack(job, &over, None).expand();
    let spec = expanded.spec.unwrap_or_else(|| panic!("{:?}\n{}", expanded.diagnostics, expanded.text));
    assert_eq!((spec.retries, spec.roles[0].count), (1, 3));
    assert_eq!(spec.roles[0].command, crate::spec::Command::Exec(vec!["c".into()]));
    assert_eq!(arguments(&spec.roles[0]), ["--z=1", "--a=2", "--list=3", "--new=3"]);
    assert_eq!(spec.roles[0].ports[0].label, "p");
    assert!(expanded.text.starts_with("# Put together from j.toml, j.toml.d/0.toml, j.toml.d/1.toml\n"));
    assert_eq!(parse("x", &expanded.text).0, Some(spec), "what is stored means the same");
}

#[test]
fn numbers_stay_as_they_were_written() {
    let expanded = stack("[params]\na = 1e-4\nb = 0x10\n'c d' = '''x\ny'''", &["env.A = 1.50"], None).expand();
    let spec = expanded.spec.unwrap();
    assert_eq!(arguments(&spec.roles[0]), ["--a=1e-4", "--b=16", "--c d=x\ny"]);
    assert_eq!(spec.roles[0].env, [("A".to_owned(), "1.50".to_owned())]);
}

#[test]
fn what_is_wrong_is_told_where_it_was_written() {
    let job = "command = 'x'\n[roles.w]\ncount = 2\n";
    assert_eq!(problems(job, &["\n\nretries = 'x'", "comand = 1"], None).len(), 2, "each file is checked by itself");
    let found = problems(job, &["# a\nroles.w.min_failed = 3"], None);
    assert!(found[0].starts_with("j.toml.d/0.toml:2:22: `roles.w.min_failed` is 3"), "{found:?}");
    let found = problems("roles.w.min_failed = 3\n[roles.w]\n", &[], None);
    assert!(!found.is_empty());
    let found = problems("roles.w = { count = 5, min_failed = 4 }", &["roles.w.count = 2"], None);
    assert!(found[0].starts_with("j.toml:1:37: "), "{found:?}");
    let found = problems("datasets = ['a']", &["datasets = ['b', '.c']"], None);
    assert!(found[0].starts_with("j.toml.d/0.toml:1:18: "), "{found:?}");
    let found = problems("command = 'x", &["retries = 1"], None);
    assert!(found[0].starts_with("j.toml:1:"), "{found:?}");
    let found = problems("template = 't'\nwith.data = 'd'", &[], Some("[template]\n[roles.a-b]\n[roles.a_b]"));
    assert!(found[0].contains("no parameter `data`"), "{found:?}");
    let found = problems("template = 't'", &[], Some("[template]\n[roles.a-b]\n[roles.a_b]"));
    assert!(found[0].starts_with("t.template.toml:3:8: the roles"), "{found:?}");
}

#[test]
fn parameters_take_the_type_of_their_place() {
    let job = "template = 't'\nwith = { data = '/d', workers = 3 }\nparams.own = true";
    let expanded = stack(job, &["with.lr = 5e-1"], Some(TEMPLATE)).expand();
    let spec = expanded.spec.unwrap_or_else(|| panic!("{:?}", expanded.diagnostics));
    assert_eq!(spec.roles[0].command, crate::spec::Command::Shell("train --data /d --home ${HOME} --lr 5e-1".into()));
    assert_eq!(arguments(&spec.roles[0]), ["--lr=5e-1", "--base=1e-3", "--own"]);
    assert_eq!((spec.roles[0].count, spec.retries), (3, 2));
    assert!(!expanded.text.contains("[template") && !expanded.text.contains("with"), "{}", expanded.text);
}

#[test]
fn every_wrong_parameter_is_told_in_the_job_file() {
    let cases = [
        ("lr = 0.1", "j.toml:1:12: template \"t\" needs `with.data` (where the data is)"),
        ("data = 1", "j.toml:3:8: `with.data`: is 1, but takes a string"),
        ("data = ''\nlr = 'x'", "j.toml:4:6: `with.lr`: is 'x', but takes a number"),
        ("data = ''\nlr = 2", "j.toml:4:6: `with.lr`: is 2, must be at most 1"),
        ("data = ''\nworkers = 0", "`with.workers`: is 0, must be at least 1"),
        ("data = ''\nworkers = 1.5", "is 1.5, but takes an integer"),
        ("data = ''\nkind = 'x'", "is 'x', must be \"sgd\" or \"adam\""),
        ("data = ''\nmemory = '9GiB'", "must be at most \"8GiB\""),
        ("data = ''\nmemory = 'lots'", "is not a size"),
        ("data = ''\nlimit = '1s'", "must be at least \"1m\""),
        ("data = ''\nworker = 1", "j.toml:4:1: template \"t\" has no parameter `worker`; it has data, lr,"),
    ];
    for (with, expected) in cases {
        let found = problems(&format!("template = 't'\n[with]\n{with}"), &[], Some(TEMPLATE));
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?} instead of {expected}");
    }
}

#[test]
fn a_template_is_checked_by_itself() {
    let cases = [
        ("template = 'other'", "a template cannot lie on top of another one"),
        ("state = 'held'", "`state` is for job files"),
        ("[template]\nhelp = 1", "unknown key `template.help`"),
        ("[template.params.x]\ntype = 'float'", "must be \"string\" or"),
        ("[template.params.x]\ntype = 'integer'\ndefault = 'y'", "takes an integer"),
        ("[template.params.x]\nmin = 1", "is for amounts"),
        ("[template.params.'x y']", "cannot be a parameter"),
        ("retries = '${x}'", "takes an integer, not a string"),
        ("retries = ", "t.template.toml:1:"),
    ];
    for (text, expected) in cases {
        let found = problems("template = 't'", &[], Some(text));
        assert!(found[0].contains(expected), "{found:?} instead of {expected}");
    }
    let found = problems("template = 'x'", &[], None);
    assert_eq!(found, ["j.toml:1:12: there is no template \"x\" in this workspace or in the default one"]);
    assert!(problems("[with]\na = 1", &[], None)[0].contains("no `template` is named"));
}

#[test]
fn what_only_the_template_says_is_not_the_job_s_own() {
    let own = |job: &str, template: &str| stack(job, &[], Some(template)).expand().template.unwrap().own;
    let first = own("template = 't'\nparams.a = 1\n[env]\nA = '1'", "command = 'x'");
    assert_eq!(
        first,
        own("# more\nenv = { A = \"1\" }\nparams = {a=1}\ntemplate = \"t\"\nstate = 'held'", "command = 'y'")
    );
    assert_ne!(first, own("template = 't'\nparams.a = 2\n[env]\nA = '1'", "command = 'x'"));
    let live = |job: &str| Vec::from_iter(stack(job, &[], Some("[template]")).expand().template.unwrap().own_live);
    assert_eq!(live("template = 't'"), Vec::<String>::new());
    assert_eq!(
        live("template = 't'\npriority = 'high'\nmax_duration = '1h'\nretries = 1"),
        ["max_duration", "priority"]
    );
    // No such key makes another run, as without a template.
    let plain = own("template = 't'\ncommand = 'x'", "[template]");
    for key in [
        "priority = 'high'",
        "expected_duration = '1h'",
        "max_duration = '1h'",
        "on_overrun = 'stop'",
        "on_gpu_failure = 'stop'",
        "alerts = { gpu_idle = { below = 9 } }",
        "extras = { a = 1 }",
        "on_edit = 'restart'",
        "rerun = 2",
        "description = 'd'",
    ] {
        assert_eq!(own(&format!("template = 't'\ncommand = 'x'\n{key}"), "[template]"), plain, "{key}");
        let meaning = |text: &str| parse("j.toml", text).0.unwrap().meaning();
        assert_eq!(meaning(&format!("command = 'x'\n{key}")), meaning("command = 'x'"), "{key}");
    }
}

#[test]
fn what_is_put_in_is_bounded() {
    let template = format!(
        "[template.params.x]\n[env]\n{}",
        (0..2000).map(|n| format!("E{n} = '${{x}}${{x}}'\n")).collect::<String>()
    );
    let job = format!("template = 't'\nwith.x = '{}'", "y".repeat(10_000));
    assert!(problems(&job, &[], Some(&template))[0].contains("more than 256 KiB"));
}

#[test]
fn a_saved_job_is_a_template() {
    let job = "command = 'x'\nstate = 'held'\nrerun = 3\n[params]\na = 1e-4";
    let text = stack(job, &[], None).as_template("from \"j\"").unwrap();
    let template = Template::read(&Layer::new("t", &text)).unwrap();
    assert_eq!(template.description, "from \"j\"");
    let spec = stack("template = 't'", &[], Some(&text)).expand().spec.unwrap();
    assert_eq!(arguments(&spec.roles[0]), ["--a=1e-4"]);
}

proptest::proptest! {
    #[test]
    fn what_is_put_together_reads_back(values in proptest::collection::vec((0..6usize, 0..5usize), 1..12), cut in 0..12usize) {
        let paths = ["params.a", "params.b", "env.A", "roles.w.count", "roles.w.params.x", "resources.cpu"];
        let numbers = ["1", "2", "3", "4", "5"];
        let file = |values: &[(usize, usize)]| {
            let mut seen = Vec::new();
            let first = |value: &&(usize, usize)| !seen.contains(&value.0) && { seen.push(value.0); true };
            values.iter().filter(first).map(|(path, number)| format!("{} = {}\n", paths[*path], numbers[*number])).collect::<String>()
        };
        let (below, top) = values.split_at(cut.min(values.len()));
        let expanded = stack(&file(below), &[&file(top)], None).expand();
        let spec = expanded.spec.expect("each of these is a job");
        assert_eq!(parse("x", &expanded.text).0, Some(spec));
        let again = stack(&expanded.text, &[&file(top)], None).expand();
        assert_eq!(again.spec, parse("x", &expanded.text).0, "the same on top again changes nothing");
    }

    #[test]
    fn no_text_makes_it_panic(job in "\\PC{0,80}", over in "\\PC{0,80}", template in "\\PC{0,80}") {
        let _ = stack(&job, &[&over], Some(&template)).expand();
        let _ = stack(&format!("template = 't'\nwith.x = 1\n{job}"), &[&over], Some(&template)).expand();
        let _ = stack("template = 't'", &[], Some(&format!("env.A = {template:?}\n[template.params.A]\ndefault = 1"))).expand();
    }
}

#[test]
fn a_template_is_judged_by_the_job_that_its_defaults_make() {
    let found = |text: &str| {
        let found = Stack::of_template(Layer::new("t.template.toml", text)).problems_of_template();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (text, told) in [
        (
            "resources.cpu = '${cpu}'\n[template.params.cpu]\ndefault = 0",
            "t.template.toml:3:11: as a job of the template's defaults: `resources.cpu`: is 0",
        ),
        (
            "contract = '${c}'\n[template.params.c]\ndefault = 'nope'",
            "as a job of the template's defaults: `contract`: ",
        ),
        (
            "resources.cpu = '${cpu}'\n[template.params.cpu]\ntype = 'string'\ndefault = '2'",
            "`resources.cpu` takes a number, not a string",
        ),
        (
            "[roles.'${rn}']\ncount = 1\n[template.params.rn]\ntype = 'string'",
            "t.template.toml:1:8: `${rn}`: a parameter stands for a value, it cannot be part of a key",
        ),
        (
            "command = 'x ${c}'\n[template.params.c]\nchoices = []",
            "t.template.toml:3:11: `template.params.c.choices` is empty",
        ),
    ] {
        let found = found(text);
        assert!(found.len() == 1 && found[0].contains(told), "{text}: {found:?}");
    }
    let good = "command = 'x ${a} ${HOME}'\nenv.'${HOME}' = 'y'\n[template.params.a]\ndefault = 1";
    assert!(found(good).is_empty(), "{:?}", found(good));
    let open = "resources.cpu = '${cpu}'\n[template.params.cpu]\ntype = 'number'";
    assert!(found(open).is_empty(), "a job says what it is: {:?}", found(open));
}

#[test]
fn a_parameter_that_no_job_could_give_a_key_is_told_by_the_key_before_there_is_a_job() {
    let found = |text: &str| Stack::of_template(Layer::new("t.template.toml", text)).problems_of_template();
    for (text, line, column, key, told) in [
        (
            "resources.cpu = '${cpu}'\n[template.params.cpu]",
            1,
            17,
            "resources.cpu",
            "`resources.cpu` takes a number, not a string, which parameter `cpu` is; its type is to be \"number\"",
        ),
        (
            "[roles.w]\ncount = '${n}'\n[template.params.n]\nchoices = ['1', '2']",
            2,
            9,
            "roles.w.count",
            "`roles.w.count` takes an integer, not a string, which parameter `n` is; its type is to be \"integer\"",
        ),
        (
            "command = ['x', '${n}', 'n=${n}']\n[template.params.n]\ntype = 'integer'",
            1,
            17,
            "command",
            "`command` takes a string or array of strings, not an integer in it, which parameter `n` is; its type is to be \"string\"",
        ),
        (
            "max_duration = '${m}'\n[template.params.m]\ntype = 'size'",
            1,
            16,
            "max_duration",
            "takes a duration, as in \"2h\", not a size, as in \"4GiB\", which parameter `m` is; its type is to be \"duration\"",
        ),
        ("debug = '${d}'\n[template.params.d]\ntype = 'integer'", 1, 9, "debug", "its type is to be \"bool\""),
        ("image = '${i}'\n[template.params.i]\ntype = 'number'", 1, 9, "image", "takes a string, not a number"),
        ("[roles]\nw = '${r}'\n[template.params.r]", 2, 5, "roles.w", "a parameter stands for a single value"),
        ("datasets = '${d}'\n[template.params.d]", 1, 12, "datasets", "takes an array of strings, not a string"),
        (
            "mounts = [{ source = '/a', target = '/b', read_only = '${r}' }]\n[template.params.r]",
            1,
            55,
            "mounts.read_only",
            "its type is to be \"bool\"",
        ),
        // Beside a parameter that must be given, a default that its key takes from nobody.
        (
            "command = '${c}'\nresources.cpu = '${cpu}'\n[template.params.c]\n[template.params.cpu]\ndefault = 0",
            5,
            11,
            "resources.cpu",
            "with its default parameter `cpu` cannot stand here: `resources.cpu`: is 0, must be at least 0.1",
        ),
        (
            "command = '${c}'\n[roles.w]\ncount = '${n}'\n[template.params.c]\n[template.params.n]\ndefault = 1.5",
            6,
            11,
            "roles.w.count",
            "with its default parameter `n` cannot stand here: `roles.w.count` takes an integer, not a float",
        ),
    ] {
        let found = found(text);
        let [one] = found.as_slice() else { panic!("{text}: {found:?}") };
        assert_eq!((one.line, one.column, one.key.as_deref()), (line, column, Some(key)), "{one}");
        assert!(one.is_error() && one.message.contains(told), "{text}: {one}");
    }
    // What value it has is for a job to say, and a part of a text is text.
    for text in [
        "network = '${x}'\nimage = '${x}'\nresources.memory = '${x}'\nmax_duration = '${x}'\npriority = '${x}'\ncontract = '${x}'\nresources.gpu_type = '${x}'\ncode = '${x}'\n[template.params.x]",
        "debug = '${x}'\nroles.w.serves = '${x}'\n[template.params.x]\ntype = 'bool'",
        "priority = '${x}'\nretries = '${x}'\nresources.pids = '${x}'\nresources.cpu = '${x}'\nroles.w.count = '${x}'\nroles.w.min_failed = '${x}'\nroles.w.ports.http = '${x}'\n[template.params.x]\ntype = 'integer'\nmin = 0",
        "retries = '${x}'\nresources.cpu = '${x}'\nparams.lr = '${x}'\nenv.A = '${x}'\nextras.a.b = '${x}'\n[template.params.x]\ntype = 'number'",
        "resources.memory = '${x}'\nparams.l = ['${x}', 1]\nimage = '${x}'\ncommand = ['${x}']\n[template.params.x]\ntype = 'size'",
        "max_duration = '${x}'\n[template.params.x]\ntype = 'duration'",
        "command = 'x ${x}'\nresources.memory = '${x}GiB'\nparams.'a.b' = '${x}'\n[template.params.x]\ntype = 'integer'",
        "retries = '${n}'\n[template]\ndescription = '${n}'\n[template.params.n]\ntype = 'integer'\nhelp = '${n}'",
        "[resources]\nmemory = '${x}'\n[template]\ndescription = '${x}'\n[template.params.x]\nhelp = '${x}'\n[template.params.y]\ntype = 'size'\nmin = '1GiB'",
    ] {
        assert_eq!(found(text), [], "{text}");
    }
    // A job may say the key itself, and is what it was.
    let template = "resources.cpu = '${cpu}'\n[template.params.cpu]";
    assert!(stack("template = 't'\nwith.cpu = 'x'\nresources.cpu = 2", &[], Some(template)).expand().spec.is_some());
}

#[test]
fn no_shipped_template_is_told_of() {
    fn templates(directory: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                templates(&path, found);
            } else if path.to_string_lossy().ends_with(".template.toml") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    templates(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs.d"), &mut found);
    assert!(!found.is_empty());
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        let of = |text: &str| Stack::of_template(Layer::new("t", text)).problems_of_template();
        assert_eq!(of(&text), [], "{}", path.display());
        // And with parameters that must be given.
        let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("default = \"")).collect();
        assert_eq!(of(&without.join("\n")), [], "{}", path.display());
    }
}

#[test]
fn a_job_that_waits_for_itself_is_told_of_at_its_key() {
    let job = stack("command = 'x'\nafter = ['b', 'j']", &[], None);
    let (own, other) = ("j".parse().unwrap(), "k".parse().unwrap());
    let spec = job.expand().spec.unwrap();
    let told = job.awaits_itself(&[&own], &spec).unwrap();
    assert_eq!((told.line, told.column, told.key.as_deref()), (2, 1, Some("after")), "{told}");
    assert!(told.is_error() && told.message.contains("`after` names the job itself (j)"), "{told}");
    assert_eq!(job.awaits_itself(&[&other], &spec), None);
    assert!(job.awaits_itself(&[&other, &own], &spec).is_some(), "a job of a sweep may name its file or itself");
}

fn sweep(job: &str, overrides: &[&str], template: Option<&str>) -> Result<Vec<(String, Expanded)>, String> {
    let stack = stack(job, overrides, template);
    let combinations = stack.combinations(&"j".parse().unwrap()).map_err(|found| found[0].to_string())?;
    let expanded = |combination: Combination| (combination.name.to_string(), stack.with(&combination).expand());
    Ok(combinations.into_iter().flatten().map(expanded).collect())
}

#[test]
fn a_sweep_is_a_job_for_each_combination() {
    let job = "command = 'x'\n[sweep]\nlr = [1e-1, 0.01]\nenv.SEED = [7, 8, 9]\n[params]\nlr = 3\n";
    let jobs = sweep(job, &[], None).unwrap();
    let names: Vec<_> = jobs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["j~1e-1~7", "j~1e-1~8", "j~1e-1~9", "j~0.01~7", "j~0.01~8", "j~0.01~9"]);
    let last = jobs[5].1.spec.as_ref().unwrap();
    assert_eq!(last.roles[0].params, [("lr".to_owned(), crate::spec::Param::Plain("0.01".into()))]);
    assert_eq!(last.roles[0].env, [("SEED".to_owned(), "9".to_owned())]);
    let meanings: BTreeSet<_> = jobs.iter().map(|(_, job)| job.spec.as_ref().unwrap().meaning()).collect();
    assert_eq!(meanings.len(), 6);
    // What is put together is a job file like any other, without a sweep.
    assert_eq!(parse("j.toml", &jobs[0].1.text).0, jobs[0].1.spec);
    assert!(stack(job, &[], None).expand().spec.is_none(), "a sweep is no job");
}

#[test]
fn a_sweep_reaches_keys_overrides_and_the_values_of_a_template() {
    let template = "command = 'python ${script}'\n[template.params.script]\ntype = 'string'\n";
    let jobs = sweep("template = 't'\n[sweep]\nwith.script = ['a.py', 'b c.py']", &[], Some(template)).unwrap();
    assert!(is_named(&jobs[1].0, "j~b-c.py-"), "{}", jobs[1].0);
    let commands: Vec<_> = jobs.iter().map(|(_, job)| job.spec.as_ref().unwrap().roles[0].command.clone()).collect();
    assert_eq!(commands[1], crate::spec::Command::Shell("python b c.py".into()));
    assert_ne!(commands[0], commands[1]);
    let jobs = sweep("command = 'x'", &["sweep.roles.worker.count = [1, 2]", "sweep.network = ['job']"], None).unwrap();
    assert_eq!(jobs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["j~1~job", "j~2~job"]);
    let spec = jobs[1].1.spec.as_ref().unwrap();
    assert_eq!((spec.roles[0].count, spec.network), (2, crate::spec::Network::Job));
    // An argument that is called as a key is.
    let jobs = sweep("command = 'x'\n[sweep]\nparams.network = ['mlp']\nlayers = [[64, 32], [8]]", &[], None).unwrap();
    assert!(is_named(&jobs[0].0, "j~mlp~64-32-") && jobs[1].0 == "j~mlp~8", "{jobs:?}");
    assert_eq!(jobs[0].1.spec.as_ref().unwrap().roles[0].params.len(), 2);
}

#[test]
fn numbers_in_lists_are_as_they_are_written_whatever_the_list_comes_from() {
    let of = |job: &Expanded| arguments(&job.spec.as_ref().unwrap_or_else(|| panic!("{:?}", job.diagnostics)).roles[0]);
    let job = "command = 'x'\n[sweep]\nl = [[1.0, 2e3, 1_000.50], [3, +1.50, 'a']]\nroles.w.params.m = [[1e-4]]";
    let files = stack(job, &[], None);
    let combinations = files.combinations(&"j".parse().unwrap()).unwrap().unwrap();
    let jobs: Vec<_> = combinations.iter().map(|combination| files.with(combination).expand()).collect();
    assert_eq!(of(&jobs[0]), ["--l=1.0", "--l=2e3", "--l=1000.50", "--m=1e-4"]);
    assert_eq!(of(&jobs[1]), ["--l=3", "--l=+1.50", "--l=a", "--m=1e-4"]);
    // By them the jobs are told apart, and what was run is as it was written.
    assert_eq!(combinations[0].values[0], ("l".to_owned(), "1.0,2e3,1000.50".to_owned()));
    assert!(is_named(combinations[0].name.as_str(), "j~1.0-2e3-1000.50~1e-4-"), "{}", combinations[0].name);
    assert!(jobs[0].text.contains("\nl = [1.0, 2e3, 1_000.50]\n"), "{}", jobs[0].text);

    let template =
        "command = 'x'\nparams.l = ['${a}', 2e3, '${b}']\n[template.params]\na.default = 1.50\nb.type = 'number'";
    let job = "template = 't'\n[sweep]\nwith.b = [3.0]\nwith.a = [1e-4]";
    let filled = sweep(job, &["params.m = [1.0, 5e-1]"], Some(template)).unwrap();
    assert_eq!(of(&filled[0].1), ["--l=1e-4", "--l=2e3", "--l=3.0", "--m=1.0", "--m=5e-1"]);
    let job = "template = 't'\nwith.b = 3.0";
    assert_eq!(of(&stack(job, &[], Some(template)).expand()), ["--l=1.50", "--l=2e3", "--l=3.0"]);
}

#[test]
fn what_is_more_than_one_value_is_an_argument_as_a_text_alone() {
    let as_text = ", and an argument is a single value; write all of it as a text";
    for (job, told) in [
        ("params.l = [[1.0, 2e3], [3]]", format!("j.toml:1:12: `params.l`: holds an array{as_text}, such as \"[[1.0, 2e3], [3]]\", which")),
        ("roles.w.params.l = [1, { a = 1.0 }]", format!("j.toml:1:20: `roles.w.params.l`: holds a table{as_text}, such as '[{{\"a\": 1.0}}]', which")),
        ("params.optimizer.lr = 0.1", "j.toml:1:8: `params.optimizer`: is a table; a name with dots stands in quotes, as in \"optimizer.lr\" = 0.1".to_owned()),
    ] {
        assert!(problems(job, &[], None)[0].starts_with(&told), "{:?}", problems(job, &[], None));
    }
    let swept = sweep("command = 'x'\n[sweep]\nl = [1, [[1.0, 2e3], [3]]]", &[], None).unwrap();
    let told: Vec<_> = swept[1].1.diagnostics.iter().map(ToString::to_string).collect();
    assert!(told.len() == 1 && told[0].starts_with("j.toml:3:") && told[0].contains("holds an array"), "{told:?}");
    let spec = stack("params.l = '[[1.0, 2e3], [3]]'\nparams.'optimizer.lr' = 1e-1", &[], None).expand().spec.unwrap();
    assert_eq!(arguments(&spec.roles[0]), ["--l=[[1.0, 2e3], [3]]", "--optimizer.lr=1e-1"]);
}

/// Whether a name is this and six digits of a hash.
fn is_named(name: &str, begin: &str) -> bool {
    let digits = name.strip_prefix(begin).unwrap_or_default();
    digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[test]
fn a_value_more_renames_no_job_of_a_sweep() {
    let names = |values: &str| {
        let jobs = sweep(&format!("command = 'x'\n[sweep]\nenv.MODEL = [{values}]\nenv.X = [1]"), &[], None).unwrap();
        jobs.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let (one, two, three) = (names("'org/a'"), names("'org/a', 'org-a'"), names("'org a', 'org-a', 'org/a'"));
    assert!(is_named(&one[0], "j~org-a~1-"), "{one:?}");
    assert_eq!(two, [one[0].as_str(), "j~org-a~1"]);
    assert_eq!(three[1..], ["j~org-a~1".to_owned(), one[0].clone()]);
    assert!(is_named(&three[0], "j~org-a~1-") && three[0] != one[0], "{three:?}");
    let found = |values: &str| sweep(&format!("command = 'x'\n[sweep]\na = [{values}]"), &[], None).unwrap_err();
    assert!(
        found("1, '1'").contains("`sweep.a` holds 1 and '1', whose jobs would have one name; leave one out"),
        "{}",
        found("1, '1'")
    );
    assert!(found("[8], 8").contains("two of its jobs would be called j~8"), "{}", found("[8], 8"));
}

#[test]
fn names_of_a_sweep_that_say_too_little_or_too_much_have_a_hash() {
    let alike = sweep("command = 'x'\n[sweep]\na = [[1, 2], ['1,2']]", &[], None).unwrap();
    assert_ne!(alike[0].0, alike[1].0, "what only looks alike");
    let long = format!("command = 'x'\n[sweep]\na = ['{}']", "y".repeat(70));
    assert_eq!(sweep(&long, &[], None).unwrap()[0].0.len(), 14);
    let stack = stack("command = 'x'\n[sweep]\na = [1, 2]", &[], None);
    let error = stack.combinations(&"j".repeat(63).parse().unwrap()).unwrap_err();
    assert!(error[0].to_string().contains("leaves no room"), "{error:?}");
}

#[test]
fn what_is_wrong_with_a_sweep_is_told_at_its_place() {
    for (text, word) in [
        ("[sweep]", "j.toml:1:2: `sweep` names nothing to sweep"),
        ("[sweep]\nlr = 0.1", "j.toml:2:6: `sweep.lr` is a single value"),
        ("[sweep]\nlr = []", "j.toml:2:6: `sweep.lr` is an empty list"),
        ("[sweep]\nlr = [1, 2, 1]", "j.toml:2:13: `sweep.lr` holds 1 twice"),
        ("[sweep]\nroles = [{ a = 1 }]", "j.toml:2:10: `sweep.roles` holds a table"),
        ("[sweep]\nsweep = [1]", "`sweep` cannot be swept"),
        ("[sweep]\ntemplate = ['a']", "`template` cannot be swept"),
    ] {
        let error = sweep(&format!("{text}\n"), &[], None).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
    let many = (0..17).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    let error = sweep(&format!("[sweep]\na = [{many}]\nb = [{many}]\n"), &[], None).unwrap_err();
    assert!(error.contains("17 × 17 combinations are more than 256"), "{error}");
    let many = (0..300).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    assert!(sweep(&format!("[sweep]\na = [{many}]\n"), &[], None).unwrap_err().contains("holds 300 values"));
    assert!(problems("template = 't'", &[], Some("command = 'x'\n[sweep]\na = [1]"))[0].contains("a template cannot"));
    let everything = "[sweep]\na = [1]\n[params]\nb = {}";
    assert!(sweep(everything, &[], None).unwrap().is_empty(), "the rest is told when the file is read");
}

#[test]
fn a_bad_value_of_a_sweep_is_told_once_and_where_it_stands_in_its_list() {
    let told = |job: &str, overrides: &[&str]| {
        let jobs = sweep(job, overrides, None).unwrap();
        let found = told_once(jobs.into_iter().flat_map(|(_, job)| job.diagnostics));
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let job = "command = 'x'\n[sweep]\nresources.cpu = [1, -1,\n 0.01]\nlr = [1, 2, 3]";
    let cpu = told(job, &[]);
    assert_eq!(cpu.len(), 2, "{cpu:#?}");
    assert!(cpu[0].starts_with("j.toml:3:21: `resources.cpu`: is -1"), "{cpu:#?}");
    assert!(cpu[1].starts_with("j.toml:4:2: `resources.cpu`: is 0.01"), "{cpu:#?}");
    // The first combination has the later line's.
    let lines = told("command = 'x'\n[sweep]\nretries = [1, -1]\nresources.cpu = [-1, 1]", &[]);
    assert!(lines.len() == 2 && lines[0].starts_with("j.toml:3:"), "{lines:#?}");
    // A key that is none is one in each job, a value within a list stands there, and overrides have their own lists.
    let key = told("command = 'x'\n[sweep]\nx = [1, 2]\n  roles.w.cuont = [1, 2]", &[]);
    assert_eq!(key.len(), 1, "{key:#?}");
    assert!(key[0].starts_with("j.toml:4:11: unknown key `roles.w.cuont`"), "{key:#?}");
    let within = told("command = 'x'\n[sweep]\nafter = [['a', 'b'], ['c', ' d']]", &[]);
    assert!(within.len() == 1 && within[0].starts_with("j.toml:3:"), "{within:#?}");
    let over = told("command = 'x'\n[sweep]\nenv.A = [1, 2]", &["\nsweep.env.A = [1, 2]\nsweep.retries = [-1]"]);
    assert_eq!(over.len(), 1, "{over:#?}");
    assert!(over[0].starts_with("j.toml.d/0.toml:3:18: `retries`: is -1"), "{over:#?}");
    // What only the whole shows is told where the files say it.
    let whole =
        told("command = 'x'\n[roles.w]\nmin_succeeded = 3\n[sweep]\nroles.w.count = [2, 4]\nseed = [1, 2]", &[]);
    assert!(whole.len() == 1 && whole[0].starts_with("j.toml:3:"), "{whole:#?}");
}

#[test]
fn many_parameters_are_refused_and_many_holes_are_looked_at_soon() {
    let begun = std::time::Instant::now();
    let declared: String = (0..12_000).map(|number| format!("p{number} = {{}}\n")).collect();
    let holes = "${".repeat(60_000);
    let found = problems("template = \"t\"", &[], Some(&format!("command = \"x\"\n[template.params]\n{declared}")));
    assert!(found[0].contains("100 parameters at most"), "{}", found[0]);
    let template = format!("command = \"{holes}\"\n[template.params]\na.default = 1\n");
    assert!(stack("template = \"t\"", &[], Some(&template)).expand().spec.is_some());
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
}

fn offer() -> Offer {
    let spec = |cpu, gibibytes: u64, gpu, shm: Option<u64>| crate::spec::ResourceSpec {
        cpu: crate::ids::Cpu(cpu),
        memory: crate::ids::Bytes(gibibytes << 30),
        gpu,
        shm: shm.map(|gibibytes| crate::ids::Bytes(gibibytes << 30)),
        price: None,
        description: String::new(),
    };
    let named = [("small", spec(500, 2, 0, None)), ("big", spec(8000, 64, 2, Some(8)))];
    named.into_iter().map(|(name, spec)| (name.parse().unwrap(), spec)).collect()
}

fn offered(job: &str, template: Option<&str>) -> Expanded {
    Stack { specs: offer(), ..stack(job, &[], template) }.expand()
}

#[test]
fn specs_are_put_in_by_their_numbers_below_what_stands_beside_them() {
    let job = "command = 'x'\nresources = { spec = 'big', cpu = 4, gpu = 1 }\n[roles.ps.resources]\nspec = \"small\"\n[roles.worker]\n\
               resources.memory = '32GiB'\n[services.n]\ncommand = 'y'\nport = 1\nresources.spec = 'small'\n[tensorboard.resources]\nspec = 'small'";
    let expanded = offered(job, None);
    let spec = expanded.spec.unwrap_or_else(|| panic!("{:?}", expanded.diagnostics));
    let sizes = spec.roles.iter().map(|role| {
        let resources = &role.resources;
        (role.name.as_str(), resources.cpu.0, resources.memory.0 >> 30, resources.gpu)
    });
    // A role's spec is whole: the job's card is none of the server's.
    let wanted = [("ps", 500, 2, 0), ("worker", 4000, 32, 1), ("n", 500, 2, 0), ("tensorboard", 500, 2, 0)];
    assert_eq!(sizes.collect::<Vec<_>>(), wanted);
    assert_eq!(spec.roles[1].resources.shm.0 >> 30, 8);
    assert!(!expanded.text.contains("spec ="), "a run keeps numbers: {}", expanded.text);
    assert_eq!(parse("j.toml", &expanded.text).0.unwrap(), spec);
    let by_parameter = "command = 'x'\nresources.spec = \"${size}\"\n[template.params.size]\ndefault = 'small'";
    let of_template = offered("template = 't'\nwith.size = 'big'", Some(by_parameter)).spec.unwrap();
    assert_eq!(of_template.roles[0].resources.gpu, 2);
    let swept = Stack { specs: offer(), ..stack("command = 'x'\nsweep.resources.spec = ['small', 'big']", &[], None) };
    let all = swept.combinations(&"j".parse().unwrap()).unwrap().unwrap();
    let cards = all.iter().map(|one| swept.with(one).expand().spec.unwrap().roles[0].resources.gpu);
    assert_eq!(cards.collect::<Vec<_>>(), [0, 2]);
    let saved = swept.with(&all[1]).as_template("t").unwrap();
    assert!(saved.contains("spec = "), "a template goes by what is offered when it is used: {saved}");
}

#[test]
fn an_hour_costs_what_the_specs_of_all_tasks_do_and_another_size_has_no_price() {
    let mut specs = offer();
    for (name, price) in [("small", 1.0), ("big", 10.0)] {
        specs.get_mut(&name.parse::<crate::ids::AssetName>().unwrap()).unwrap().price = Some(price);
    }
    let price = |job: &str| {
        let expanded = Stack { specs: specs.clone(), ..stack(&format!("command = 'x'\n{job}"), &[], None) }.expand();
        assert!(expanded.spec.is_some(), "{:?}", expanded.diagnostics);
        expanded.template.and_then(|used| used.price).map(|price| (price.hourly, price.is_part))
    };
    let service = "[services.n]\ncommand = 'y'\nport = 1\n";
    assert_eq!(price("resources.spec = 'big'\n[roles.w]\ncount = 3"), Some((30.0, false)));
    assert_eq!(price("resources = { spec = 'big', shm = '1GiB' }"), Some((10.0, false)));
    assert_eq!(price("resources = { spec = 'big', gpu = 1 }"), None);
    let roles = "resources.spec = 'big'\n[roles.ps]\nresources.spec = 'small'\n[roles.w]\nresources.cpu = 1\n";
    assert_eq!(price(roles), Some((1.0, true)), "w has another size");
    assert_eq!(price("[roles.a]\nresources.spec = 'small'\n[roles.b]"), Some((1.0, true)), "b has none");
    assert_eq!(price(&format!("resources.spec = 'big'\n{service}")), Some((10.0, false)));
    assert_eq!(
        price(&format!("{service}resources.spec = 'small'\n[tensorboard.resources]\nspec = 'small'")),
        Some((2.0, true))
    );
}

#[test]
fn a_spec_that_is_not_offered_is_told_with_those_that_are() {
    let told = |job: &str| {
        let expanded = offered(job, None);
        assert!(expanded.spec.is_none());
        expanded.diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        told("command = 'x'\nresources.spec = 'smal'"),
        "j.toml:2:18: `resources.spec`: there is no spec \"smal\" in this workspace; did you mean \"small\"? \
         `trainyard spec ls` lists big, small"
    );
    let both = told("[roles.a.resources]\nspec = 'x'\n[services.n]\ncommand = 'y'\nport = 1\nresources.spec = 'z'");
    assert!(
        both.contains("j.toml:2:8: `roles.a.resources.spec`") && both.contains("`services.n.resources.spec`"),
        "{both}"
    );
    let none = stack("resources.spec = 'small'", &[], None).expand().diagnostics[0].to_string();
    assert!(none.contains("the administrator writes [specs.NAME] into trainyard.toml"), "{none}");
    let large = told("resources = { spec = 'small', shm = '3GiB' }");
    assert!(large.contains("j.toml:1:37: `resources.shm` is 3GiB, more than the task's memory of 2GiB"), "{large}");
}

#[test]
fn a_spec_that_is_edited_is_no_other_word_of_the_job_s() {
    let own = |memory: u64| {
        let mut specs = offer();
        specs.values_mut().for_each(|spec| spec.memory = crate::ids::Bytes(memory << 30));
        let expanded = Stack { specs, ..stack("resources.spec = 'small'\nmax_duration = '1h'", &[], None) }.expand();
        (expanded.template.unwrap(), expanded.spec.unwrap().meaning())
    };
    let ((before, meaning), (after, other)) = (own(16), own(17));
    assert!(before == after && meaning != other);
    assert_eq!((before.name, before.own_live.len()), (None, 1));
    for (text, may) in [
        ("resources.spec = 'a'", true),
        ("resources = {spec='a'}", true),
        ("resources.\"spec\" = 'a'", true),
        ("sweep.resources.spec\t= ['a']", true),
        ("command = 'inspect the spec'", false),
        ("", false),
    ] {
        assert_eq!(stack(text, &[], None).may_name_specs(), may, "{text}");
    }
    // A word that only looks like one is none.
    let plain = offered("# the spec of it\ncommand = 'spec'", None);
    assert!(plain.template.is_none() && plain.text.starts_with("# the spec"));
}

#[test]
fn what_has_no_key_is_neither_a_job_nor_a_template() {
    for nothing in ["", "\n", "# command = 'x'"] {
        let found = problems(nothing, &[nothing], None);
        assert!(found[0].starts_with("j.toml: has no key") && found[0].contains("written half?"), "{found:?}");
        let found = problems("template = 't'", &[], Some(nothing));
        assert!(found[0].starts_with("t.template.toml: has no key"), "{found:?}");
        assert!(stack(nothing, &["command = 'x'"], None).expand().spec.is_some());
    }
    // Also where a comment has letters that TOML takes nowhere.
    assert!(problems("# x\0", &[], None)[0].starts_with("j.toml: has no key"));
}
