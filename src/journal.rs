//! Where the daemon and the mount say what they do: as lines on standard error or, where the journal reads that, to the journal itself
//! with a field for each value, so that `journalctl JOB=train WORKSPACE=vision` finds what concerns one job.
//!
//! The crate `tracing-journald` leaves the values out of the line that people read.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::ids::JobKey;
use crate::sys::terminal::escape;

/// Where journald takes records with fields.
const SOCKET: &str = "/run/systemd/journal/socket";

/// From here on what is said with `tracing` is heard; TRAINYARD_LOG says how much.
pub fn begin() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TRAINYARD_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let journal = stderr_is_the_journal().then(|| Journal::open(Path::new(SOCKET)).ok()).flatten();
    match journal {
        Some(journal) => tracing_subscriber::registry().with(journal.with_filter(filter)).init(),
        None => {
            // A line that cannot be written must not end the daemon; complaints of the subscriber itself would go to the same place,
            // by a macro that panics where it cannot write.
            let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).log_internal_errors(false);
            lines.with_writer(|| Plain(io::stderr())).init();
        }
    }
}

/// Writes records of a line each, in which control characters give no orders to a terminal, and make no lines of their own.
struct Plain<W>(W);

impl<W: io::Write> io::Write for Plain<W> {
    /// One record, as the subscriber hands them on.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        self.0.write_all(format!("{}{end}", escape(line)).as_bytes())?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// systemd says which stream it has made for us: who was started with another standard error has inherited the word alone.
fn stderr_is_the_journal() -> bool {
    let Ok(told) = std::env::var("JOURNAL_STREAM") else { return false };
    let own = io::stderr().as_fd().try_clone_to_owned().and_then(|own| std::fs::File::from(own).metadata());
    own.is_ok_and(|own| told == format!("{}:{}", own.dev(), own.ino()))
}

/// A connection to journald.
struct Journal(UnixDatagram);

impl Journal {
    fn open(socket: &Path) -> io::Result<Self> {
        let own = UnixDatagram::unbound()?;
        own.connect(socket)?;
        Ok(Self(own))
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        let level = *event.metadata().level();
        let record = said.record(level, event.metadata().target());
        // What is too long for a datagram, and what is said while journald is started anew, comes as a line.
        if self.0.send(&record).is_err() {
            let _ = writeln!(io::stderr(), "<{}>{}", priority(level), said.line());
        }
    }
}

/// As syslog(3) has it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    values: Vec<(&'static str, String)>,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            name => self.values.push((name, text)),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.values.push((field.name(), value.to_owned()));
    }
}

impl Said {
    /// For people: everything in one line.
    fn line(&self) -> String {
        let mut line = self.message.clone();
        for (name, value) in &self.values {
            let value = if value.contains(|letter: char| letter == ' ' || letter.is_control()) {
                format!("{value:?}")
            } else {
                value.clone()
            };
            let _ = write!(line, " {name}={value}");
        }
        line
    }

    /// In journald's own form.
    fn record(&self, level: Level, target: &str) -> Vec<u8> {
        let mut record = Vec::new();
        put(&mut record, "MESSAGE", &self.line());
        put(&mut record, "PRIORITY", &priority(level).to_string());
        put(&mut record, "SYSLOG_IDENTIFIER", "trainyard");
        put(&mut record, "TARGET", target);
        for (name, value) in &self.values {
            match (*name, value.parse::<JobKey>()) {
                ("job", Ok(key)) => {
                    put(&mut record, "WORKSPACE", key.workspace.as_str());
                    put(&mut record, "JOB", key.job.as_str());
                }
                _ => put(&mut record, &name.to_ascii_uppercase(), value),
            }
        }
        record
    }
}

/// A value of several lines is told by its length.
fn put(record: &mut Vec<u8>, name: &str, value: &str) {
    record.extend(name.as_bytes());
    if value.contains('\n') {
        record.push(b'\n');
        record.extend((value.len() as u64).to_le_bytes());
    } else {
        record.push(b'=');
    }
    record.extend(value.as_bytes());
    record.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes at journald's end of it.
    fn heard(say: impl FnOnce()) -> String {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let journald = UnixDatagram::bind(&socket).unwrap();
        let journal = Journal::open(&socket).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), say);
        let mut buffer = [0; 4096];
        let count = journald.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }

    #[test]
    fn a_job_and_its_workspace_are_fields_of_their_own() {
        let record = heard(|| tracing::warn!(job = %"vision/train", run = 3, reason = "no room", "job"));
        let fields: Vec<&str> = record.lines().collect();
        for field in [
            "MESSAGE=job job=vision/train run=3 reason=\"no room\"",
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=trainyard",
            "WORKSPACE=vision",
            "JOB=train",
            "RUN=3",
            "REASON=no room",
        ] {
            assert!(fields.contains(&field), "{field}: {record}");
        }
    }

    #[test]
    fn a_value_makes_no_line_of_its_own_and_gives_no_orders() {
        let mut lines = Vec::new();
        let record = "INFO job reason=no \x1b[31mimage\nINFO all is well\n";
        io::Write::write_all(&mut Plain(&mut lines), record.as_bytes()).unwrap();
        let told = String::from_utf8(lines).unwrap();
        assert_eq!(told, "INFO job reason=no \\u{1b}[31mimage\\nINFO all is well\n");
        let record = heard(|| tracing::info!(reason = %"a\x1bb", "job"));
        let message = record.lines().find(|field| field.starts_with("MESSAGE=")).unwrap().to_owned();
        assert!(!message.contains(char::is_control), "{message}");
    }

    #[test]
    fn a_job_of_the_default_workspace_has_that_one() {
        let record = heard(|| tracing::info!(job = %"train", "job"));
        assert!(record.lines().any(|field| field == "WORKSPACE=default"), "{record}");
        assert!(record.lines().any(|field| field == "JOB=train"), "{record}");
    }

    #[test]
    fn a_value_of_two_lines_cannot_pass_for_another_field() {
        let record = heard(|| tracing::info!(error = "x\nPRIORITY=0", "said"));
        assert!(record.contains("ERROR\n\x0c\0\0\0\0\0\0\0x\nPRIORITY=0\n"), "{record:?}");
        assert!(record.starts_with("MESSAGE=said error=\"x\\nPRIORITY=0\"\n"), "{record:?}");
    }
}
