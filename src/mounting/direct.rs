//! `trainyard direct`: shows published versions and `code/` at the speed of the file system on which they lie, by mounts of
//! their directories over those that the mount shows.
//!
//! ```text
//! rung (published, removed, a new workspace) ──┐
//! one of its mounts has gone ──────────────────┼──▶ what is to be there, against what is (`bound`) ──▶ again later, what failed
//! it is time to try again ─────────────────────┘
//! standard input ends: the mount process goes ────▶ all of them are taken away; the end
//! ```
//! A process of its own, since whoever looks a place up in the mount waits for the mount process: that one would wait for
//! itself, and the daemon for one that hangs. Nobody waits for this one. What it cannot do costs speed: the mount shows the
//! same.

mod bound;
mod strayed;

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{MountConfig, MountingError, failed};
use crate::config::Direct as Wanted;
use crate::sys::bell::Bell;
use crate::sys::mounts::attached::MountTable;
use crate::sys::process::raise_open_files;
use bound::Bound;

/// First wait after something that could not be shown, doubled up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Who writes past a quota is heard no more often.
const REST_OF_STRAYS: Duration = Duration::from_secs(10);
/// The machine's mounts are looked at no more often, however many come and go.
const REST: Duration = Duration::from_secs(1);
/// However often it is rung: for each look at what is to be there it owes so many times as long of rest…
const REST_OF_LOOK: u32 = 9;
/// …and takes it when it owes more than this. A single ring is heard at once.
const OWED_MAX: Duration = Duration::from_secs(2);

/// Works until standard input ends. Where nothing is to be shown directly, it takes away what one like it has left, and ends.
pub fn run(config: &MountConfig) -> Result<(), MountingError> {
    raise_open_files().map_err(failed("raise the limit on open files"))?;
    if config.direct == Wanted::None {
        let cleared = Bound::open(config).and_then(|mut bound| bound.clear());
        return cleared.map_err(failed("take away what was shown directly"));
    }
    let bell = Bell::hang(&config.paths.direct_bell()).map_err(failed("hang the bell for direct mounts"))?;
    let table = MountTable::open().map_err(failed("watch the machine's mounts"))?;
    let bound = Bound::open(config).map_err(failed("open the workspaces"))?;
    let mut direct =
        Direct { bell, table, bound, rested_at: Instant::now(), owes_until: Instant::now(), strays_at: Instant::now() };
    let mut wait = FIRST_WAIT;
    loop {
        let began = Instant::now();
        let there = direct.table.ids().map_err(failed("read the machine's mounts"))?;
        direct.bound.forget_all_but(&there);
        let again = match direct.bound.settle() {
            true => {
                wait = FIRST_WAIT;
                None
            }
            false => Some(Instant::now() + wait),
        };
        let now = Instant::now();
        direct.owes_until = direct.owes_until.max(now) + (now - began).saturating_mul(REST_OF_LOOK);
        match direct.sleep(again).map_err(failed("wait for something to show directly"))? {
            Woken::Ended => break,
            Woken::Called => {}
            Woken::Again => wait = (wait * 2).min(LONGEST_WAIT),
        }
    }
    if let Err(error) = direct.bound.clear() {
        tracing::warn!(%error, "what was shown directly stays");
    }
    Ok(())
}

enum Woken {
    Ended,
    Called,
    Again,
}

struct Direct {
    bell: Bell,
    table: MountTable,
    bound: Bound,
    /// When the machine's mounts may be looked at again.
    rested_at: Instant,
    /// When it would have rested for all its looks.
    owes_until: Instant,
    /// When it hears again who writes past a quota.
    strays_at: Instant,
}

impl Direct {
    /// Until there is something to do, at the latest `again`.
    fn sleep(&mut self, again: Option<Instant>) -> io::Result<Woken> {
        loop {
            let now = Instant::now();
            if again.is_some_and(|again| again <= now) {
                return Ok(Woken::Again);
            }
            let to_come = |at: Instant| Some(at).filter(|at| *at > now);
            let hears_at = self.owes_until.checked_sub(OWED_MAX).and_then(to_come);
            let (rested_at, strays_at) = (to_come(self.rested_at), to_come(self.strays_at));
            let due = again.into_iter().chain(rested_at).chain(hears_at).chain(strays_at).min();
            let heard = Heard { bell: hears_at.is_none(), mounts: rested_at.is_none(), strays: strays_at.is_none() };
            let seen = self.poll(due.map(|due| due - now), heard)?;
            if seen.ended {
                return Ok(Woken::Ended);
            }
            if seen.strayed {
                self.strays_at = Instant::now() + REST_OF_STRAYS;
                self.bound.note_strays();
            }
            if seen.rung {
                self.bell.quiet();
                return Ok(Woken::Called);
            }
            if seen.mounted {
                self.rested_at = Instant::now() + REST;
                if self.bound.forget_all_but(&self.table.ids()?) {
                    return Ok(Woken::Called);
                }
            }
        }
    }

    fn poll(&self, timeout: Option<Duration>, heard: Heard) -> io::Result<Seen> {
        let input = io::stdin();
        // What is not heard is not polled either: a change of the mounts would not be told of again, and who is rung would turn
        // in circles.
        let flags = |wanted: bool, flags: PollFlags| if wanted { flags } else { PollFlags::empty() };
        let mut polled = vec![
            PollFd::new(input.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.bell.as_fd(), flags(heard.bell, PollFlags::POLLIN)),
        ];
        let strays = heard.strays.then(|| self.bound.strays()).into_iter().flatten();
        polled.extend(strays.map(|stray| PollFd::new(stray, PollFlags::POLLIN)));
        polled.extend(heard.mounts.then(|| PollFd::new(self.table.as_fd(), PollFlags::POLLPRI)));
        // Rounded up, so that what is due then is.
        let timeout = timeout.map(|timeout| timeout + Duration::from_millis(1));
        let timeout = timeout.map_or(Ok(PollTimeout::NONE), PollTimeout::try_from).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut told = polled.iter().map(|polled| polled.any().unwrap_or(true));
        let (ended, rung) = (told.next() == Some(true), told.next() == Some(true));
        let mounted = heard.mounts && told.next_back() == Some(true);
        Ok(Seen { ended, rung, mounted, strayed: told.any(|told| told) })
    }
}

/// What is listened to.
#[derive(Clone, Copy)]
struct Heard {
    bell: bool,
    mounts: bool,
    strays: bool,
}

struct Seen {
    ended: bool,
    rung: bool,
    mounted: bool,
    strayed: bool,
}
