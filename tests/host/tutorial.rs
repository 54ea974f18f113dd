//! docs/TUTORIAL.md is run as it stands.

use std::fs;
use std::process::{Command, Stdio};

use super::support::{BINARY, Instance, has_tools};

/// What is typed, and what of it must be seen: lines in which `…` stands for anything.
struct Step {
    typed: String,
    seen: Vec<String>,
}

fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut rest = document;
    while let Some((_, after)) = rest.split_once("```") {
        let (kind, after) = after.split_once('\n').unwrap();
        let (block, after) = after.split_once("```").unwrap();
        match kind {
            "sh" => steps.push(Step { typed: block.to_owned(), seen: Vec::new() }),
            "text" => steps.last_mut().unwrap().seen.extend(block.lines().map(str::to_owned)),
            _ => panic!("a block of {kind:?}, which the test does not know"),
        }
        rest = after;
    }
    steps
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether one of the lines has all parts of the wanted one, in their order.
fn is_seen(wanted: &str, printed: &str) -> bool {
    printed.lines().map(words).any(|line| {
        let mut rest = line.as_str();
        wanted.split('…').map(words).all(|part| match rest.split_once(part.as_str()) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    })
}

/// Ends what a block has printed; nobody prints it by chance.
const MARK: &str = "--- end of block 7c1f ---";

#[test]
fn the_tutorial_runs_as_it_is_written() {
    let test = "the_tutorial_runs_as_it_is_written";
    if !has_tools(test, &["bash", "python3"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let steps = steps(&fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/TUTORIAL.md")).unwrap());
    assert!(steps.len() > 8 && steps.iter().filter(|step| !step.seen.is_empty()).count() > 6);
    let bin = instance.root().join("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(BINARY, bin.join("trainyard")).unwrap();
    // What it writes to /tmp must meet nobody else's there.
    let scratch = instance.root().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let here = |text: &str| text.replace(" /tmp/", &format!(" {}/", scratch.display()));
    let script: String = steps.iter().map(|step| format!("{}\necho '{MARK}'\n", here(&step.typed))).collect();
    let file = instance.root().join("tutorial.sh");
    fs::write(&file, format!("set -euo pipefail\n{script}")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .arg(&file)
        .env("PATH", path)
        .env("TRAINYARD_ROOT", instance.root())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    let blocks: Vec<&str> = printed.split(MARK).collect();
    for (step, block) in steps.iter().zip(&blocks) {
        for line in &step.seen {
            assert!(is_seen(&here(line), block), "{:?}\nis not in\n{block}\nof\n{}\n{told}", line, step.typed);
        }
    }
    assert!(output.status.success(), "block {} failed:\n{told}\n{printed}", blocks.len());
    assert_eq!(blocks.len(), steps.len() + 1);
    instance.shutdown();
}
