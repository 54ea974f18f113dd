//! Whether the workspaces are shown, and what shows them answers.

use std::io;
use std::time::Duration;

use super::{Machine, Verdict, failure, needs_root, ok, warning};
use crate::sys::answering::Asker;
use crate::sys::lock::{is_held, pid_in};
use crate::sys::mounts;

/// What takes longer hangs: the mount answers in a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn mount(machine: &Machine) -> Verdict {
    if !machine.is_root {
        return needs_root();
    }
    let place = machine.paths.mount_point();
    match looked(machine) {
        Ok(verdict) => verdict,
        Err(error) => warning(format!("cannot look at {}: {error}", place.display()), "see what the journal tells"),
    }
}

fn looked(machine: &Machine) -> io::Result<Verdict> {
    let (paths, place) = (&machine.paths, machine.paths.mount_point());
    let is_ours = |mount: &mounts::MountPoint| mount.target == place && mount.source == paths.mount_source();
    if !mounts::list()?.iter().any(is_ours) {
        let is_wanted = is_there(is_held(&paths.daemon_lock()))?;
        return Ok(match is_wanted {
            true => failure(
                format!("{} is not mounted", place.display()),
                "the daemon tries again and again, and its journal tells why it fails",
            ),
            false => ok(format!("{} is mounted when the daemon starts", place.display())),
        });
    }
    let server = pid_in(&paths.mount_lock())?;
    let trouble = Asker::of(paths.root()).ask(PATIENCE)?.trouble(PATIENCE, server);
    Ok(match trouble {
        None => ok(format!("the workspaces are shown at {}, and answer", place.display())),
        Some((found, advice)) => failure(found, advice),
    })
}

fn is_there(held: io::Result<bool>) -> io::Result<bool> {
    match held {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        held => held,
    }
}
