//! Every shipped example runs: each is a script in the idiom of its platform that looks for what that platform promises.

use std::fs;
use std::path::Path;

use super::support::{Instance, wait_for};

fn examples() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs.d/examples");
    let mut out: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();
    out.sort();
    out
}

#[test]
fn every_platform_s_script_finds_what_its_platform_promises() {
    let test = "every_platform_s_script_finds_what_its_platform_promises";
    let config = "[limits]\ncpu = 64\nmemory = \"64GiB\"\n[network]\nrange = \"10.213.0.0/16\"\n";
    let Some(instance) = Instance::start(test, config) else { return };
    let space = instance.root().join("var/lib/trainyard/workspaces/default");
    fs::create_dir_all(space.join("datasets/numbers")).unwrap();
    fs::write(space.join("datasets/numbers/part-0.csv"), "1,2,3\n").unwrap();
    let examples = examples();
    assert!(examples.len() >= 30, "{}", examples.len());
    for chunk in examples.chunks(4) {
        for (name, text) in chunk {
            assert!(text.contains("state = \"held\""), "{name} would start by itself");
            instance.drop_job(name, &text.replace("state = \"held\"\n", ""));
        }
        for (name, _) in chunk {
            let report = instance.wait_end(name, 1);
            let logs = || instance.cli(&["logs", name]);
            assert_eq!(report["state"], "succeeded", "{name}: {report:#}\n{:?}", logs());
        }
    }
    for (name, text) in &examples {
        // What each leaves is kept, wherever its platform lets it write.
        let kept = if text.contains("/model") || text.contains("MODEL") {
            instance.mount().join("models").join(name).join("1")
        } else {
            instance.run_dir(name, 1).join("output")
        };
        wait_for(&format!("what {name} has left in {}", kept.display()), || {
            fs::read_dir(&kept).is_ok_and(|mut entries| entries.next().is_some()).then_some(())
        });
    }
    instance.shutdown();
}
