//! Bringing a command into a running task: starts `trainyard enter`, which does the rest.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::LocalEngine;
use crate::ids::TaskId;
use crate::sys::process::{Streams, ended};

/// A started `enter`, which waits for its order; see [`crate::rundir::entry`].
#[derive(Debug)]
pub struct Entered {
    /// It ends when this is closed.
    pub control: UnixStream,
    /// The command's streams; `None` when it is to have a terminal.
    pub pipes: Option<Pipes>,
}

/// Our ends.
#[derive(Debug)]
pub struct Pipes {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// Whether the command gets pipes for its streams, or makes a terminal of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    Pipes,
    Terminal,
}

impl LocalEngine {
    pub fn enter(&self, task: TaskId, ends: Ends) -> io::Result<Entered> {
        let (control, theirs) = UnixStream::pair()?;
        let (pipes, streams) = match ends {
            Ends::Pipes => pipes().map(|(ours, theirs)| (Some(ours), Some(theirs)))?,
            Ends::Terminal => (None, None),
        };
        let arguments = vec![
            "enter".into(),
            self.task_dir(task).path().into(),
            "--control-fd".into(),
            theirs.as_raw_fd().to_string().into(),
        ];
        let child = self.program.spawn_with_streams(arguments, Vec::new(), &[theirs.as_fd()], streams)?;
        let pidfd = Arc::new(child.pidfd);
        self.runtime.spawn(async move {
            if let Err(error) = ended(pidfd.clone()).await.and_then(|()| pidfd.reap()) {
                tracing::warn!(%task, %error, "cannot wait for what entered a task");
            }
        });
        Ok(Entered { control, pipes })
    }
}

fn pipes() -> io::Result<(Pipes, Streams)> {
    let (their_in, our_in) = io::pipe()?;
    let (our_out, their_out) = io::pipe()?;
    let (our_err, their_err) = io::pipe()?;
    Ok((
        Pipes { stdin: our_in.into(), stdout: our_out.into(), stderr: our_err.into() },
        Streams { stdin: their_in.into(), stdout: their_out.into(), stderr: their_err.into() },
    ))
}
