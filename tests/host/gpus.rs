//! `trainyard gpu` on machines whose cards are made up, by a library of our own.

use serde_json::Value;

use super::nvml::{FakeNvml, card, cards, uuid};
use super::support::{Instance, wait_for};

/// An instance that finds its cards in a directory of its own; without a driver until that is installed.
fn instance(test: &str) -> Option<(Instance, FakeNvml)> {
    let mut instance = Instance::prepare(test, "")?;
    let fake = FakeNvml::without_driver(instance.root());
    let config = format!("[gpu]\nlibrary = \"{}\"\n", fake.library().display());
    std::fs::write(instance.root().join("etc/trainyard/trainyard.toml"), config).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    Some((instance, fake))
}

fn list(instance: &Instance) -> Value {
    serde_json::from_str(&instance.ok(&["gpu", "--json"])).unwrap()
}

#[test]
fn a_driver_that_comes_while_the_daemon_runs_is_noticed_and_so_is_a_card_that_goes() {
    let Some((mut instance, fake)) = instance("a_driver_that_comes_while_the_daemon_runs") else { return };
    let missing = format!("no GPUs: {} not found\n", fake.library().display());
    assert_eq!(instance.ok(&["gpu"]), missing);
    fake.shows(&cards(2));
    fake.install();
    // Nobody asks.
    instance.wait_for_log("GPUs");
    assert_eq!(list(&instance)["gpus"].as_array().unwrap().len(), 2);
    fake.shows(&cards(1));
    instance.wait_for_log("a card is not well");
    let found = list(&instance);
    assert_eq!((&found["gpus"][0]["health"], &found["gpus"][1]["health"]), (&"ok".into(), &"failed".into()));
    assert_eq!(found["gpus"][1]["findings"][0]["rule"], "lost");
    instance.shutdown();
}

#[test]
fn a_library_that_hangs_holds_up_nobody() {
    let Some((instance, fake)) = instance("a_library_that_hangs_holds_up_nobody") else { return };
    fake.shows(&format!("slow.nvmlDeviceGetTemperature = 600000\n{}", cards(1)));
    fake.install();
    // Who asks has the daemon look, waits as long as its patience lasts, and gets what was found before.
    assert!(instance.ok(&["gpu"]).starts_with("no GPUs: "));
    instance.drop_job("meanwhile", "image = \"host\"\ncommand = \"true\"\n");
    assert_eq!(instance.wait_end("meanwhile", 1)["state"], "succeeded");
    // It has hung for so long now that what was found before it did counts no more.
    wait_for("what was found to be old", || (list(&instance)["stale"] == true).then_some(()));
    assert!(instance.ok(&["gpu"]).contains("NVML has not answered since "));
    instance.shutdown();
}

#[test]
fn cards_are_shown_with_health_holders_and_ways_in_80_columns() {
    let Some((instance, fake)) = instance("cards_are_shown_in_80_columns") else { return };
    let own = std::process::id();
    let busy = format!(
        "used = 3221225472\nutilisation = 97\nprocesses = [{{ pid = {own}, bytes = 2147483648 }}]\nthrottle = 0x40\n\
         nvlinks = [\"00000000:1C:00.0\"]"
    );
    let sliced = "nvlinks = [\"00000000:1B:00.0\"]\nmig = [{ uuid = \"MIG-8b1d2f0a-0000-0000-0000-000000000000\", \
                  name = \"NVIDIA H100 80GB HBM3 MIG 1g.10gb\", memory = 10737418240 }]";
    let rest: String = (2..8).map(|index| card(index, "")).collect();
    fake.shows(&format!("driver = \"580.95.05\"\ncuda = 13000\n{}{}{rest}", card(0, &busy), card(1, sliced)));
    fake.install();
    wait_for("the cards", || (list(&instance)["gpus"].as_array().unwrap().len() == 8).then_some(()));
    let shown = instance.ok(&["gpu"]);
    let lines: Vec<&str> = shown.lines().collect();
    // What is wrong with a card is said in a sentence.
    let too_wide = lines.iter().filter(|line| line.chars().count() > 80 && !line.starts_with("GPU 0 warning"));
    assert_eq!(too_wide.collect::<Vec<_>>(), Vec::<&&str>::new());
    let program = std::fs::read_to_string(format!("/proc/{own}/comm")).unwrap();
    let wanted = [
        "driver 580.95.05, CUDA 13.0, GPUs: 8".to_owned(),
        "GPU  HEALTH   USE  MEMORY       TEMP  POWER   NAME".to_owned(),
        "0    warning  97%  3.0/80.0GiB  40°C  71/700W  H100 80GB HBM3".to_owned(),
        "1    1g.10gb  10GiB   MIG-8b1d2f0a-0000-0000-0000-000000000000".to_owned(),
        format!("0    {own}  root  2048MiB  {}", program.trim_end()),
        "GPU 0 warning: slowed: its clocks are lowered for heat (40 °C)".to_owned(),
        "GPU  0    1    2    3    4    5    6    7    NUMA  CPUS".to_owned(),
        "0    X    NV1  SYS  SYS  SYS  SYS  SYS  SYS  0     0-1".to_owned(),
        format!("0    /dev/nvidia7  00000000:1b:00.0  {}", uuid(0)),
    ];
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let all: Vec<String> = lines.iter().map(|line| squeezed(line)).collect();
    for line in wanted {
        assert!(all.contains(&squeezed(&line)), "{line:?} is missing in\n{shown}");
    }
    instance.shutdown();
}
