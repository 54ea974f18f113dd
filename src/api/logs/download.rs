//! A run's log as one file: as it is when it is asked for, whole or a part of it.
//!
//! How long it is is not kept anywhere, since the tasks' logs are merged on their way: who asks for a part of it, or for its
//! length, has it read once to be counted. That is done for two at a time; who waits for it has nothing open.

use std::ops::Range;

use hyper::body::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use super::ranges;
use super::source::Place;
use super::{Follower, Growth};
use crate::api::flow::Flow;
use crate::api::wire::LogQuery;
use crate::config::Paths;
use crate::reconcile::JobDetail;

static COUNTING: Semaphore = Semaphore::const_new(2);

/// The right to have one counted.
pub(in crate::api) struct Turn(#[expect(dead_code, reason = "held until it is dropped")] SemaphorePermit<'static>);

impl Turn {
    pub(in crate::api) async fn wait() -> Option<Self> {
        COUNTING.acquire().await.ok().map(Self)
    }
}

pub(in crate::api) struct Download {
    follower: Follower,
    /// Bytes before where its sources stand.
    before: u64,
}

impl Download {
    /// Of what there is by now. Blocks.
    pub(in crate::api) fn open(paths: Paths, growth: Growth, query: LogQuery, detail: &JobDetail) -> Self {
        // It is not followed: no round is waited for.
        let (_, rounds) = watch::channel(0);
        let mut follower = Follower::new(paths, LogQuery { follow: false, ..query }, rounds, growth);
        follower.take_sources(detail);
        Self { follower, before: 0 }
    }

    /// Its entity tag: another one where one byte of it may be another.
    pub(in crate::api) fn tag(&self) -> String {
        let version = format!("{} {:?}\n", env!("CARGO_PKG_VERSION"), self.follower.query.until);
        let signs = self.follower.sources.iter().map(|source| source.sign());
        let hash = Sha256::digest(std::iter::once(version).chain(signs).collect::<String>().as_bytes());
        let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("\"{hex}\"")
    }

    /// How many bytes it has. Stands then before the first of those that are wanted, or at the beginning.
    pub(in crate::api) async fn measure(mut self, wanted: Option<ranges::Bytes>, _: &Turn) -> Option<(Self, u64)> {
        let first = match wanted {
            Some(ranges::Bytes::From(first, _)) => first,
            _ => 0,
        };
        let (mut total, mut kept) = (0, (0, self.places()));
        loop {
            let is_before = total <= first;
            if is_before {
                kept = (total, self.places());
            }
            let (follower, (lines, is_end)) = self.follower.on_thread(next).await?;
            self.follower = follower;
            total += lines.len() as u64;
            if is_end {
                break;
            }
        }
        if self.follower.unread().is_some() {
            return None;
        }
        let (before, places) = kept;
        for (source, place) in self.follower.sources.iter_mut().zip(places) {
            source.go_to(place);
        }
        Some((Self { before, ..self }, total))
    }

    fn places(&self) -> Vec<Place> {
        self.follower.sources.iter().map(|source| source.place().clone()).collect()
    }

    /// Sends what is wanted of it, all of it when absent; or until nobody listens.
    pub(in crate::api) async fn send(self, mut flow: Flow, wanted: Option<Range<u64>>) {
        let wanted = wanted.unwrap_or(0..u64::MAX);
        let (mut follower, mut at) = (self.follower, self.before);
        while at < wanted.end {
            let Some((same, (lines, is_end))) = follower.on_thread(next).await else { return };
            follower = same;
            let (lines, begins) = (Bytes::from(lines), at);
            at += lines.len() as u64;
            let place = |offset: u64| usize::try_from(offset.clamp(begins, at) - begins).unwrap_or(lines.len());
            let part = lines.slice(place(wanted.start)..place(wanted.end));
            if !part.is_empty() && flow.send(part).await.is_err() {
                return;
            }
            if is_end {
                break;
            }
        }
        match follower.unread() {
            Some(reason) => flow.cut(reason),
            None => flow.end(),
        }
    }
}

/// The next bytes, and whether they are the last.
fn next(follower: &mut Follower) -> (Vec<u8>, bool) {
    let lines = follower.next_lines();
    if lines.is_empty() { (follower.partial_lines(), true) } else { (lines, false) }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use http_body_util::BodyExt;

    use super::super::source::Source;
    use super::*;
    use crate::ids::{AttemptId, LogLimits, Timestamp};
    use crate::logs::{LogWriter, Stream};

    fn open(dirs: &[PathBuf]) -> Download {
        let paths = Paths::new(Path::new("/")).unwrap();
        let (_, rounds) = watch::channel(0);
        let query = LogQuery { as_text: true, ..LogQuery::default() };
        let mut follower = Follower::new(paths, query, rounds, Growth::start().unwrap());
        for (index, dir) in dirs.iter().enumerate() {
            let task = format!("main-{index}").parse().unwrap();
            follower.sources.push(Source::new(AttemptId(1), 1, task, dir.clone()));
        }
        follower.open_readers();
        Download { follower, before: 0 }
    }

    async fn read(file: Download, wanted: Option<Range<u64>>) -> Vec<u8> {
        let (flow, body) = Flow::new(2);
        tokio::spawn(file.send(flow, wanted));
        body.collect().await.unwrap().to_bytes().to_vec()
    }

    /// Lines of many lengths, some of which are begun by one piece and ended by the next.
    fn write(writers: &mut [LogWriter], rounds: Range<u64>) {
        for round in rounds {
            let count = writers.len() as u64;
            let writer = &mut writers[usize::try_from(round % count).unwrap()];
            let stream = if round % 3 == 0 { Stream::Stderr } else { Stream::Stdout };
            let end = if round % 5 == 0 { "" } else { "\n" };
            let text = format!("{round} {}{end}", "x".repeat(usize::try_from(round * 37 % 1999).unwrap()));
            // A piece grows as long as what comes is of the same moment.
            writer.append(stream, &mut text.as_bytes(), Timestamp(1_000 + round / 7)).unwrap();
        }
    }

    #[tokio::test]
    async fn every_part_is_as_in_the_whole_and_stays_so_while_the_log_grows() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().join("a"), dir.path().join("b")];
        let limits = LogLimits { part_size: LogLimits::PART_SIZE_MIN, parts: 3 };
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        let mut writers: Vec<LogWriter> = dirs.iter().map(|dir| LogWriter::open(dir, limits).unwrap()).collect();
        write(&mut writers, 0..300);
        let whole = read(open(&dirs), None).await;
        let total = whole.len() as u64;
        assert!(total > 4 * super::super::BATCH as u64 && whole.ends_with(b"\n"), "{total}");
        let earlier: Vec<Download> = (0..40).map(|_| open(&dirs)).collect();
        let tag = earlier[0].tag();
        assert!(earlier.iter().all(|file| file.tag() == tag));
        let turn = Turn::wait().await.unwrap();
        // More comes, and much of what was there is dropped.
        write(&mut writers, 300..2000);
        assert_ne!(open(&dirs).tag(), tag);
        for (number, file) in (0..).zip(earlier) {
            let first = number * 7919 % total;
            let last = (first + number * number * 400).min(total - 1);
            let wanted = match number % 3 {
                0 => ranges::Bytes::From(first, Some(last)),
                1 => ranges::Bytes::From(first, None),
                _ => ranges::Bytes::Last(first + 1),
            };
            let (file, counted) = file.measure(Some(wanted), &turn).await.unwrap();
            assert_eq!(counted, total);
            let part = wanted.within(total).unwrap();
            let place = |offset: u64| usize::try_from(offset).unwrap();
            let expected = &whole[place(part.start)..place(part.end)];
            assert!(read(file, Some(part.clone())).await == expected, "{part:?} of {total}");
        }
    }
}
