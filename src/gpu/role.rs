//! The role `trainyard cards`: loads NVML and looks at the cards, as standard input says, for the daemon.
//!
//! NVML is NVIDIA's: what it takes of memory stays in this process, one of its faults ends this one, and a call that hangs with a
//! card, which ends by no signal, keeps nothing that is the daemon's.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use nix::unistd::dup2_stdout;

use super::process::{Begin, News, Order};
use super::watch::Watch;

/// Carries out the orders that come by standard input, until nobody gives any more.
pub fn run() -> io::Result<()> {
    let mut orders = io::stdin().lines();
    let Some(first) = orders.next() else { return Ok(()) };
    let Begin { settings, before } = serde_json::from_str(&first?)?;
    end_with_any_thread();
    let teller = Teller::of_standard_output()?;
    let seen = {
        let teller = teller.clone();
        move |found: &_, differs| teller.tell(&News::Found { found, differs })
    };
    let watch = Watch::start(settings, before, Box::new(seen))?;
    for order in orders {
        let teller = teller.clone();
        match serde_json::from_str(&order?)? {
            Order::Look(number) => watch.look(Box::new(move |()| teller.tell(&News::Looked(number)))),
            Order::Measure { number, wanted, patience } => {
                let answer = move |measured| teller.tell(&News::measured(number, measured));
                watch.measure(wanted, patience, Box::new(answer));
            }
        }
    }
    // Not after whoever hangs in NVML.
    crate::sys::process::exit_now(0)
}

/// Who looks at the cards is gone when a thread is: the next process has all of them.
fn end_with_any_thread() {
    let tell = std::panic::take_hook();
    let end = move |panic: &std::panic::PanicHookInfo<'_>| {
        tell(panic);
        crate::sys::process::exit_now(1);
    };
    std::panic::set_hook(Box::new(end));
}

/// Standard output as it was, without a buffer: what is told is told.
#[derive(Clone)]
struct Teller(Arc<Mutex<File>>);

impl Teller {
    /// Whatever else is written to standard output, as a library may, goes where errors go.
    fn of_standard_output() -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        dup2_stdout(io::stderr())?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    fn tell(&self, news: &News<&super::Inventory>) {
        let told = serde_json::to_vec(news).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
        });
        if told.is_err() {
            // Nobody listens.
            crate::sys::process::exit_now(1);
        }
    }
}
