//! What the command line answers where something is not there, not so, or not done, verb by verb, at 80 and 120 columns: as somebody
//! meets it who types the wrong thing on a machine with jobs in all states. (`INSTA_UPDATE=always` writes it anew, and a change is looked
//! at.)

use std::fs;

use super::desk::Desk;
use super::support::Instance;
use super::terminal::typed_on_terminal;

const CONFIG: &str = "[limits]\ncpu = 1\nmemory = \"1GiB\"\nstop_grace = \"1s\"\n";

/// By verb, what is typed where; in quotes what holds a space.
const TYPED: &str = "\
nonsense
ps --state nope
ps --since yesterday
ps -w nope
ps -w ../x
ps --user nobody-like-this
queue -w nope
status
status 'my job'
status nope
status ../x
status holds --run 7
logs ends
logs quiet
logs waits
logs wrong
logs holds worker-0
logs holds --run 9
logs --since 25:00 holds
logs ../x
logs worker-0 ../x
exec waits -- ls
exec holds ls
exec ../x -- ls
cp holds.txt digits
cp holds:/a waits:/b
cp ../x:/a .
cp ends/:/a .
events nope
events --since 99x
stop
stop nope
stop --all --dry-run
restart wrong
rerun wrong
extend holds soon
extend holds 0s
extend waits 1h
extend ends 1h
send holds
rm holds
rm ends
rm --dry-run --file ends waits
wait --timeout 1x holds
wait --timeout 100ms holds waits
wait ends quiet
wait wrong
show nope
show ../x
show --file nofile.toml
show --effective wrong
new mine
new mine --template nope
new mine --template ddp -p rate
new mine --template ddp -p rate=1
new 'my job'
new mine --from empty.toml
new mine --from wrong.toml
new holds --from good.toml
new mine --from good.toml --dry-run
clone holds waits
clone nope mine
template show nope
template save holds ddp
template rm nope
image pull 'Bad Name'
image show nope
image tag nope other
image rm nope
image prune
image prune --unused soon
dataset import nofile digits
dataset import s3:pool/x digits
dataset publish nope v1
dataset publish digits draft
dataset show empty
dataset verify digits@v9
dataset rm digits
dataset rm ../x@v1
dataset show ../x
token new ci --scope nope
token new ci --expires soon
token rm nope
model show nope
model rm holds
model show holds@last
model show ../x
workspace nope
usage --by nope
check good.toml
check good.toml wrong.toml
check nofile.toml
contract show nope
import other.yaml
import volcano.yaml -o nowhere
import volcano.yaml -o . --dry-run
export holds
export --openpai nope
explain resource
explain resources.gpus
drain --dry-run
drain --undo
doctor nonsense
top --every 1ms
restore good.toml
shutdown --dry-run
";

/// As a shell takes them apart, where nothing but quotes around a whole word matters.
fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').enumerate();
    parts.flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }).collect()
}

#[test]
fn what_is_refused_is_told_as_it_was_at_80_and_120_columns() {
    let test = "what_is_refused_is_told_as_it_was_at_80_and_120_columns";
    let Some(instance) = Instance::start(test, CONFIG) else { return };
    // The mount comes a moment after the daemon.
    instance.mount();
    let asks = "resources = { cpu = 1, memory = \"128MiB\" }\n";
    instance.run_job("ends", "command = \"echo it fails; exit 3\"\n");
    instance.run_job("quiet", "command = \"true\"\n");
    instance.drop_job("holds", &format!("command = \"sleep infinity\"\n{asks}"));
    instance.wait_state("holds", "running");
    instance.drop_job("waits", &format!("command = \"true\"\n{asks}"));
    instance.drop_job("wrong", "comand = \"true\"\n");
    for (job, state) in [("waits", "waiting"), ("wrong", "invalid")] {
        instance.wait_state(job, state);
    }
    fs::write(instance.jobs_d().join("ddp.template.toml"), "command = \"true\"\n[template]\n").unwrap();
    let datasets = instance.mount().join("datasets");
    for dataset in ["digits/draft", "empty"] {
        fs::create_dir_all(datasets.join(dataset)).unwrap();
    }
    fs::write(datasets.join("digits/draft/a.csv"), "1,2\n").unwrap();
    let work = tempfile::tempdir().unwrap();
    let volcano = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/screens/volcano.yaml");
    fs::copy(volcano, work.path().join("volcano.yaml")).unwrap();
    for (file, text) in [
        ("empty.toml", ""),
        ("good.toml", "command = \"true\"\n"),
        ("wrong.toml", "comand = \"true\"\n[roles.worker]\ncount = 0\n"),
        ("other.yaml", "kind: Pod\n"),
    ] {
        fs::write(work.path().join(file), text).unwrap();
    }
    let desk = Desk { root: instance.root(), work: work.path() };
    for columns in [80, 120] {
        let shown = TYPED.lines().map(|line| {
            let shown = desk.screen(columns, &words(line));
            assert!(!shown.contains("panicked"), "{line}: {shown}");
            format!("$ trainyard {line}\n{shown}\n")
        });
        insta::assert_snapshot!(format!("refused_{columns}"), shown.collect::<String>());
    }
    // What is asked at a terminal; the third answer is wrong.
    let answers = "\nmy digits\n\ntrain\n\n\n\n\n\n99999\n0.5\n\n\nf\n";
    for columns in [80, 120] {
        let job = format!("asked-{columns}");
        let (shown, status) = typed_on_terminal(&mut desk.command(&["new", &job]), columns, answers);
        insta::assert_snapshot!(format!("new_asks_{columns}"), desk.masked(&format!("{shown}--- {status}\n")));
    }
    instance.ok(&["stop", "--now", "holds", "waits"]);
    instance.shutdown();
}
