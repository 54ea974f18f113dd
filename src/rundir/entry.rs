//! What the daemon and `trainyard enter` say to each other over the control socket: lines of JSON.
//!
//! The daemon gives the order, and from then on only says that it is there, by keeping the socket open. The other side says
//! [`Report::Terminal`], with the terminal's descriptor, if one was ordered, and at the end how it ended; the daemon
//! answers that with [`HEARD`]. Without it the other side takes its client for gone: the command may just have died of that.

use serde::{Deserialize, Serialize};

/// Longest line, bytes; the kernel takes 2 MiB of arguments by default.
pub const LINE_MAX: u64 = 8 << 20;

/// What is to be done in the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Run {
        command: Vec<String>,
        terminal: Option<Terminal>,
    },
    /// A tar stream of what lies at the path, to standard output.
    Read(String),
    /// A tar stream from standard input is unpacked as, or into, the path.
    Write(String),
}

impl Order {
    pub fn terminal(&self) -> Option<&Terminal> {
        match self {
            Order::Run { terminal, .. } => terminal.as_ref(),
            Order::Read(_) | Order::Write(_) => None,
        }
    }
}

/// The terminal that a command is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub rows: u16,
    pub columns: u16,
    /// `TERM`, unless the task's environment has one.
    pub kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The terminal is there; its descriptor comes with this line.
    Terminal,
    Exited(i32),
    Signalled(i32),
    /// It could not be done.
    Failed {
        /// As a shell would give: 127 not there, 126 not executable; 125 for failures of our own, 1 for those of a copy.
        code: i32,
        reason: String,
    },
}

/// That the last report has come.
pub const HEARD: u8 = b'\n';

/// Exit code when Trainyard itself failed.
pub const OWN_FAILURE: i32 = 125;
