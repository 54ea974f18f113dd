//! The time of one planning pass at 10, 1,000 and 10,000 known jobs: all ended but one, or all waiting.
//!
//!     cargo bench --bench planning
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::time::{Duration, Instant};

use trainyard::config::{AddressRange, Quotas};
use trainyard::ids::{JobKey, Timestamp};
use trainyard::intake::Arrival;
use trainyard::plan::Amount;
use trainyard::reconcile::{Event, Reconciler, Settings};
use trainyard::spec::parse;
use trainyard::store::memory::MemoryStore;
use trainyard::store::record::{Owner, SourceRecord};

const PASSES: u32 = 1000;

fn arrival(number: u32, state: &str) -> Arrival {
    let text = format!("command = \"true\"\nstate = \"{state}\"\n");
    let spec = parse("job.toml", &text).0.unwrap();
    let key: JobKey = format!("job{number}").parse().unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    let source = SourceRecord::new(text, spec.meaning(), owner);
    Arrival::Accepted { key, source, spec: Box::new(spec) }
}

fn measure(jobs: u32, state: &str) -> Duration {
    let addresses = AddressRange { base: 0x0ad5_0000, prefix: 16 };
    let inventory = Amount { cpu: 1000, memory: 1 << 30, gpu: 0 };
    let settings = Settings {
        inventory,
        addresses,
        stop_grace: Duration::from_secs(10),
        half_life: Duration::from_secs(3600),
        usage_keep: Duration::from_secs(400 * 24 * 3600),
        min_free: 0,
        quotas: Quotas::new(),
    };
    let mut reconciler = Reconciler::open(MemoryStore::default(), settings, Timestamp(0)).unwrap();
    let mut arrivals = vec![arrival(0, "run")];
    arrivals.extend((1..jobs).map(|number| arrival(number, state)));
    reconciler.handle(Event::Files(arrivals), Timestamp(1));
    reconciler.pass(Timestamp(1)).unwrap();
    let from = Instant::now();
    for _ in 0..PASSES {
        std::hint::black_box(reconciler.pass(Timestamp(2)).unwrap());
    }
    from.elapsed() / PASSES
}

fn main() {
    println!("{:<12}{:>16}{:>16}", "known jobs", "all but 1 ended", "all waiting");
    for jobs in [10, 1000, 10_000] {
        println!("{jobs:<12}{:>16.1?}{:>16.1?}", measure(jobs, "stopped"), measure(jobs, "run"));
    }
}
