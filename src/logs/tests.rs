use std::cell::Cell;
use std::io;
use std::path::Path;

use proptest::prelude::*;

use super::index::{HEADER, RECORD, STAMP};
use super::parts::part_file;
use super::*;
use crate::ids::{LogLimits, Timestamp};

thread_local! {
    /// Steps that the writer may still take before it is killed.
    static STEPS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Counts a step of the writer; an error in place of its death.
pub(super) fn step() -> io::Result<()> {
    match STEPS.get() {
        None => Ok(()),
        Some(0) => Err(io::Error::other("killed")),
        Some(left) => {
            STEPS.set(Some(left - 1));
            Ok(())
        }
    }
}

fn limits(part_size: u64, parts: u32) -> LogLimits {
    LogLimits { part_size, parts }
}

fn add(writer: &mut LogWriter, stream: Stream, mut bytes: &[u8], time: u64) -> io::Result<()> {
    writer.append(stream, &mut bytes, Timestamp(time))
}

fn whole_view(dir: &Path) -> Vec<u8> {
    let mut reader = LogReader::open_whole(dir).unwrap();
    let mut out = vec![0xee; usize::try_from(reader.len().unwrap()).unwrap() + 1];
    let count = reader.read_at(0, &mut out).unwrap();
    assert_eq!(count + 1, out.len(), "the size is true");
    out.truncate(count);
    out
}

/// All pieces from `cursor` on, each with its stream.
fn pieces(reader: &mut LogReader, cursor: &mut Cursor) -> Vec<(Stream, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some(record) = reader.piece_at(cursor).unwrap() {
        let mut bytes = vec![0; record.length as usize];
        let count = reader.read_on(&record, cursor, &mut bytes).unwrap();
        bytes.truncate(count);
        out.push((record.stream, bytes));
    }
    out
}

fn joined(pieces: &[(Stream, Vec<u8>)], stream: Stream) -> Vec<u8> {
    pieces.iter().filter(|(of, _)| *of == stream).flat_map(|(_, bytes)| bytes.clone()).collect()
}

/// Reads on; each byte must be the one that belongs there, and what is left out must be told.
fn follow(reader: &mut LogReader, cursor: &mut Cursor, places: &mut [usize; 2], model: &Model) {
    for dropped in reader.follow(cursor).unwrap() {
        places[dropped.stream.slot()] += usize::try_from(dropped.bytes).unwrap();
    }
    for (stream, bytes) in pieces(reader, cursor) {
        let place = &mut places[stream.slot()];
        assert_eq!(bytes, model.stream(stream)[*place..*place + bytes.len()]);
        *place += bytes.len();
    }
}

/// Sizes of the files, the newest first.
fn sizes(dir: &Path, stream: Stream) -> Vec<u64> {
    let files = (0..60).map(|number| part_file(dir, stream, number));
    files.map_while(|path| std::fs::metadata(path).ok()).map(|about| about.len()).collect()
}

/// What was appended, and what of it should be kept.
#[derive(Default)]
struct Model {
    written: Vec<(Stream, u64, Vec<u8>)>,
}

impl Model {
    fn stream(&self, stream: Stream) -> Vec<u8> {
        self.written.iter().filter(|(of, ..)| *of == stream).flat_map(|(.., bytes)| bytes.clone()).collect()
    }

    /// The stamped view, byte by byte, from what is kept.
    fn view(&self, dropped: &[Dropped]) -> Vec<u8> {
        let of = |stream| dropped.iter().find(|dropped| dropped.stream == stream).map_or(0, |dropped| dropped.bytes);
        let mut out = Vec::new();
        for dropped in dropped {
            out.extend(format!("{} log| {}\n", dropped.at, dropped.text()).into_bytes());
        }
        let (mut seen, mut in_line, mut last) = ([0u64; 2], [false; 2], None);
        for (stream, time, bytes) in &self.written {
            for byte in bytes {
                let slot = stream.slot();
                seen[slot] += 1;
                if seen[slot] > of(*stream) {
                    let view_in_line = out.last().is_some_and(|byte| *byte != b'\n');
                    if !(view_in_line && last == Some(*stream) && in_line[slot]) {
                        if last.is_some_and(|last: Stream| in_line[last.slot()]) && last != Some(*stream) {
                            out.push(b'\n');
                        }
                        let name = if slot == 0 { "out" } else { "err" };
                        let mark = if in_line[slot] { '+' } else { '|' };
                        out.extend(format!("{} {name}{mark} ", Timestamp(*time)).into_bytes());
                    }
                    out.push(*byte);
                    last = Some(*stream);
                }
                in_line[slot] = *byte != b'\n';
            }
        }
        out
    }
}

fn any_output() -> impl Strategy<Value = (bool, Vec<u8>, u64)> {
    let bytes = prop::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(b'\n')], 0..40);
    (any::<bool>(), bytes, 21u64..60)
}

proptest! {
    #[test]
    fn writer_and_readers_agree_with_a_model_across_rotations(
        outputs in prop::collection::vec(any_output(), 0..80),
        part_size in 20u64..200,
        parts in 2u32..5,
        reopen in 0usize..80,
        follow_every in 1usize..20,
        probes in prop::collection::vec((0.0f64..1.1, 1usize..200), 8),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::open(dir.path(), limits(part_size, parts)).unwrap();
        let mut follower = LogReader::open_whole(dir.path()).unwrap();
        let (mut cursor, mut places) = (Cursor::default(), [0; 2]);
        let (mut model, mut now) = (Model::default(), 1_000_000);
        for (number, (is_out, bytes, step)) in outputs.iter().enumerate() {
            if number == reopen {
                writer = LogWriter::open(dir.path(), limits(part_size, parts)).unwrap();
            }
            now += step;
            let stream = if *is_out { Stream::Stdout } else { Stream::Stderr };
            add(&mut writer, stream, bytes, now).unwrap();
            model.written.push((stream, now, bytes.clone()));
            if number % follow_every == 0 {
                follow(&mut follower, &mut cursor, &mut places, &model);
            }
        }
        let view = whole_view(dir.path());
        let mut reader = LogReader::open_whole(dir.path()).unwrap();
        let dropped = reader.dropped();
        let expected = model.view(&dropped);
        prop_assert_eq!(&view, &expected, "{}\n{}", String::from_utf8_lossy(&view), String::from_utf8_lossy(&expected));
        for (place, length) in probes {
            let from = (view.len() as f64 * place) as usize;
            let mut buffer = vec![0; length];
            let count = reader.read_at(from as u64, &mut buffer).unwrap();
            prop_assert_eq!(&buffer[..count], &view[from.min(view.len())..(from + length).min(view.len())]);
        }
        for stream in Stream::BOTH {
            let all = model.stream(stream);
            let skipped = dropped.iter().find(|dropped| dropped.stream == stream).map_or(0, |dropped| dropped.bytes);
            let kept: Vec<u8> = (0..60).rev().filter_map(|part| std::fs::read(part_file(dir.path(), stream, part)).ok()).flatten().collect();
            prop_assert_eq!(&kept, &all[usize::try_from(skipped).unwrap()..]);
            let sizes = sizes(dir.path(), stream);
            prop_assert!(sizes.len() <= parts as usize, "{:?}", sizes);
            prop_assert!(sizes.iter().all(|size| *size <= 2 * part_size), "{:?}", sizes);
            let whole = pieces(&mut LogReader::open_whole(dir.path()).unwrap(), &mut Cursor::default());
            prop_assert_eq!(joined(&whole, stream), kept);
        }
        follow(&mut follower, &mut cursor, &mut places, &model);
        prop_assert_eq!(places, Stream::BOTH.map(|stream| model.stream(stream).len()));
    }

    #[test]
    fn a_writer_killed_before_any_step_leaves_what_a_reader_reads_right(
        outputs in prop::collection::vec(any_output(), 1..40),
        part_size in 20u64..80,
        steps in 0u64..400,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let limits = limits(part_size, 3);
        let mut writer = LogWriter::open(dir.path(), limits).unwrap();
        let mut follower = LogReader::open_whole(dir.path()).unwrap();
        let mut cursor = Cursor::default();
        let mut model = Model::default();
        STEPS.set(Some(steps));
        let mut now = 1_000_000;
        for (is_out, bytes, step) in &outputs {
            now += step;
            let stream = if *is_out { Stream::Stdout } else { Stream::Stderr };
            let mut rest = bytes.as_slice();
            let result = writer.append(stream, &mut rest, Timestamp(now));
            model.written.push((stream, now, bytes[..bytes.len() - rest.len()].to_vec()));
            if result.is_err() {
                break;
            }
        }
        STEPS.set(None);
        drop(writer);
        // What was taken is there, whatever step came last.
        let check = |model: &Model| {
            let mut reader = LogReader::open_whole(dir.path()).unwrap();
            let dropped = reader.dropped();
            let all = pieces(&mut reader, &mut Cursor::default());
            for stream in Stream::BOTH {
                let skipped = dropped.iter().find(|dropped| dropped.stream == stream).map_or(0, |dropped| dropped.bytes);
                assert_eq!(joined(&all, stream), &model.stream(stream)[usize::try_from(skipped).unwrap()..], "{stream:?}");
            }
            assert_eq!(whole_view(dir.path()), model.view(&dropped));
        };
        check(&model);
        follower.follow(&mut cursor).unwrap();
        pieces(&mut follower, &mut cursor);
        // And another writer goes on. Bytes that the killed one had not told the index of stay out of it.
        let unindexed = Stream::BOTH.map(|stream| {
            let (_, header, _) = parts::open(dir.path()).unwrap();
            let newest = usize::try_from(header.of(stream).newest()).unwrap();
            let taken = model.stream(stream).len();
            let known = taken - newest.min(taken);
            std::fs::metadata(part_file(dir.path(), stream, 0)).map_or(0, |about| about.len()).saturating_sub(known as u64)
        });
        let mut writer = LogWriter::open(dir.path(), limits).unwrap();
        if unindexed == [0, 0] {
            for number in 0..20u64 {
                let bytes = format!("after {number}\n");
                let later = now + 100 * (number + 1);
                add(&mut writer, Stream::Stdout, bytes.as_bytes(), later).unwrap();
                model.written.push((Stream::Stdout, later, bytes.into_bytes()));
            }
            check(&model);
        } else {
            add(&mut writer, Stream::Stdout, b"after\n", now + 100).unwrap();
        }
        let rest: Vec<u8> = { follower.follow(&mut cursor).unwrap(); joined(&pieces(&mut follower, &mut cursor), Stream::Stdout) };
        let last: &[u8] = if unindexed == [0, 0] { b"after 19\n" } else { b"after\n" };
        prop_assert!(rest.ends_with(last));
    }
}

#[test]
fn lines_of_ten_mebibytes_stay_whole_and_parts_end_at_line_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), limits(12 << 20, 3)).unwrap();
    let mut line = vec![b'x'; 10 << 20];
    line.push(b'\n');
    for number in 0..8u64 {
        add(&mut writer, Stream::Stdout, &line, 1000 * number).unwrap();
    }
    let two = 2 * line.len() as u64;
    // Full at 12 MiB, so that the second line completes a part.
    assert_eq!(sizes(dir.path(), Stream::Stdout), [two, two, two]);
    add(&mut writer, Stream::Stdout, b"next\n", 9000).unwrap();
    assert_eq!(sizes(dir.path(), Stream::Stdout), [5, two, two]);
    let view = whole_view(dir.path());
    let text = String::from_utf8(view).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "1970-01-01T00:00:09.000Z log| --- 41943044 bytes of older stdout were dropped ---");
    assert_eq!(lines.len(), 1 + 4 + 1);
    assert!(lines[1..5].iter().all(|found| found.len() == STAMP + line.len() - 1));
    assert_eq!(lines[5], "1970-01-01T00:00:09.000Z out| next");
}

#[test]
fn binary_output_without_newlines_is_cut_at_twice_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), limits(100_000, 3)).unwrap();
    let binary: Vec<u8> =
        (0..1_000_003u32).map(|n| (n % 251) as u8).map(|byte| if byte == b'\n' { 255 } else { byte }).collect();
    for (number, chunk) in binary.chunks(65_536).enumerate() {
        add(&mut writer, Stream::Stdout, chunk, 1000 * number as u64).unwrap();
    }
    assert_eq!(sizes(dir.path(), Stream::Stdout), [3, 200_000, 200_000]);
    let mut reader = LogReader::open_whole(dir.path()).unwrap();
    let kept = joined(&pieces(&mut reader, &mut Cursor::default()), Stream::Stdout);
    assert_eq!(kept, &binary[600_000..]);
    let view = whole_view(dir.path());
    let head = view.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    assert!(view[head..].starts_with(b"1970-01-01T00:00:09.000Z out+ "), "{}", String::from_utf8_lossy(&view[..200]));
    assert_eq!(&view[head + STAMP..], &binary[600_000..]);
}

#[test]
fn a_killed_rotation_is_read_right_at_every_step_and_finished_by_the_next_writer() {
    let mut reached = false;
    for steps in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let limits = limits(10, 3);
        let mut writer = LogWriter::open(dir.path(), limits).unwrap();
        // Parts of the same size, so that only names tell them apart.
        for number in 0..7u64 {
            add(&mut writer, Stream::Stdout, format!("line {number:04}\n").as_bytes(), 1000 * number).unwrap();
        }
        add(&mut writer, Stream::Stderr, b"oops", 7500).unwrap();
        STEPS.set(Some(steps));
        let result = add(&mut writer, Stream::Stdout, b"line 0007\n", 8000);
        STEPS.set(None);
        drop(writer);
        let text = String::from_utf8(whole_view(dir.path())).unwrap();
        let numbers: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("line ")).map(|(_, number)| number).collect();
        let before = ["0004", "0005", "0006"];
        let expected: &[&[&str]] = match result {
            Ok(()) => &[&["0005", "0006", "0007"]],
            // The part was dropped and the line not yet there, or neither.
            Err(_) => &[&before, &before[1..]],
        };
        assert!(expected.contains(&numbers.as_slice()), "{steps}: {text}");
        let dropped: u64 = LogReader::open(dir.path()).unwrap().dropped().iter().map(|dropped| dropped.bytes).sum();
        assert_eq!(dropped, if numbers[0] == "0004" { 40 } else { 50 }, "{steps}");
        let mut writer = LogWriter::open(dir.path(), limits).unwrap();
        assert_eq!(sizes(dir.path(), Stream::Stdout).len(), 3, "{steps}");
        let unindexed = result.is_err() && sizes(dir.path(), Stream::Stdout)[0] == 10 && numbers[0] == "0005";
        add(&mut writer, Stream::Stdout, b"line 0008\n", 9000).unwrap();
        let text = String::from_utf8(whole_view(dir.path())).unwrap();
        assert!(text.ends_with("line 0008\n") && text.contains("oops"), "{steps}: {text}");
        assert_eq!(text.contains("line 0007"), result.is_ok(), "{steps} {unindexed}: {text}");
        if result.is_ok() {
            reached = steps > 10;
            break;
        }
    }
    assert!(reached, "a rotation has at least ten steps");
}

#[test]
fn who_opens_a_log_in_the_midst_of_a_rotation_reads_all_that_comes_after_it() {
    for steps in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        // Full by its records.
        let limits = limits(4 * RECORD as u64, 2);
        let mut writer = LogWriter::open(dir.path(), limits).unwrap();
        let line = |number: u64| format!("line {number:04}\n");
        for number in 0..4 {
            add(&mut writer, Stream::Stdout, line(number).as_bytes(), 1000 * number).unwrap();
        }
        STEPS.set(Some(steps));
        let rotated = add(&mut writer, Stream::Stdout, line(4).as_bytes(), 4000).is_ok();
        STEPS.set(None);
        drop(writer);
        let mut reader = LogReader::open_whole(dir.path()).unwrap();
        let mut writer = LogWriter::open(dir.path(), limits).unwrap();
        // By the end nothing of what was there when it was opened is left in the directory.
        for number in 5..30 {
            add(&mut writer, Stream::Stdout, line(number).as_bytes(), 1000 * number).unwrap();
        }
        let read = joined(&pieces(&mut reader, &mut Cursor::default()), Stream::Stdout);
        let numbers = (0..30).filter(|number| *number != 4 || rotated);
        let expected: String = numbers.map(line).take(read.len() / 10).collect();
        assert!(read.len() >= 40, "{steps}");
        assert_eq!(String::from_utf8_lossy(&read), expected, "{steps}");
        if rotated {
            return;
        }
    }
    panic!("a rotation has less steps");
}

/// Bytes that this thread has read from files.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[test]
fn a_line_that_the_other_stream_interrupts_is_ended_and_goes_on_with_a_plus() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), LogLimits::default()).unwrap();
    for (stream, text, time) in [
        (Stream::Stdout, "epoch 1", 0),
        (Stream::Stderr, "warn\n", 100),
        (Stream::Stdout, " done\nepoch 2", 200),
        (Stream::Stdout, " done\n", 300),
    ] {
        add(&mut writer, stream, text.as_bytes(), time).unwrap();
    }
    let expected = "1970-01-01T00:00:00.000Z out| epoch 1\n1970-01-01T00:00:00.100Z err| warn\n\
        1970-01-01T00:00:00.200Z out+  done\n1970-01-01T00:00:00.200Z out| epoch 2 done\n";
    assert_eq!(String::from_utf8(whole_view(dir.path())).unwrap(), expected);
    assert_eq!(LogReader::open(dir.path()).unwrap().modified().unwrap(), Some(Timestamp(300)));
}

#[test]
fn the_last_lines_are_found_with_and_without_a_final_newline() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), LogLimits::default()).unwrap();
    add(&mut writer, Stream::Stdout, b"a\nb\n", 1).unwrap();
    add(&mut writer, Stream::Stderr, b"c\n", 2).unwrap();
    let last = |lines| {
        let mut reader = LogReader::open_whole(dir.path()).unwrap();
        let mut cursor = reader.last_lines(lines).unwrap();
        let found: Vec<u8> = pieces(&mut reader, &mut cursor).into_iter().flat_map(|(_, bytes)| bytes).collect();
        String::from_utf8(found).unwrap()
    };
    assert_eq!([last(0), last(1), last(2), last(3), last(9)], ["", "c\n", "b\nc\n", "a\nb\nc\n", "a\nb\nc\n"]);
    add(&mut writer, Stream::Stdout, b"d", 3).unwrap();
    assert_eq!(last(2), "c\nd");
    let mut reader = LogReader::open_whole(dir.path()).unwrap();
    let mut cursor = reader.since(Timestamp(2)).unwrap();
    assert_eq!(pieces(&mut reader, &mut cursor).len(), 2);
}

#[test]
fn tiny_pieces_fill_a_part_by_their_records_so_the_index_stays_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), limits(3200, 2)).unwrap();
    for number in 0..5000u64 {
        add(&mut writer, Stream::Stderr, b"\n", 100 * number).unwrap();
    }
    let index = std::fs::metadata(dir.path().join(INDEX_FILE)).unwrap().len();
    assert!(index <= (HEADER + 2 * 100 * RECORD + RECORD) as u64, "{index}");
    assert_eq!(sizes(dir.path(), Stream::Stderr), [100, 100]);
}

#[test]
fn a_tail_costs_what_is_read_not_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::open(dir.path(), LogLimits::default()).unwrap();
    let line = vec![b'y'; 1000];
    for number in 0..20_000u64 {
        add(&mut writer, Stream::BOTH[usize::from(number % 3 == 0)], &line, number).unwrap();
    }
    let mut reader = LogReader::open_whole(dir.path()).unwrap();
    let size = reader.len().unwrap();
    let before = bytes_read();
    let mut buffer = [0; 4096];
    for back in 1..=100 {
        assert_eq!(reader.read_at(size - back * 4096, &mut buffer).unwrap(), 4096);
    }
    // Its bytes, a batch of records, and what the search looks at; 20 MB lie there.
    let (read, most) = (bytes_read() - before, 100 * (2 * 4096 + (128 + 2 * 20) * RECORD as u64));
    assert!(read < most, "{read} of {most}");
}

#[test]
fn an_index_from_before_stamps_is_shown_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Vec::new();
    for (merged, offset, length, stream) in [(0u64, 0u64, 4u32, 1u32), (4, 0, 2, 2), (6, 4, 2, 1)] {
        index.extend(1000u64.to_le_bytes());
        index.extend(merged.to_le_bytes());
        index.extend(offset.to_le_bytes());
        index.extend(length.to_le_bytes());
        index.extend(stream.to_le_bytes());
    }
    std::fs::write(dir.path().join(INDEX_FILE), index).unwrap();
    std::fs::write(dir.path().join("stdout.log"), "a\nb\nc\n").unwrap();
    std::fs::write(dir.path().join("stderr.log"), "e\n").unwrap();
    assert_eq!(whole_view(dir.path()), b"a\nb\ne\nc\n");
    let mut reader = LogReader::open_whole(dir.path()).unwrap();
    let mut cursor = reader.last_lines(2).unwrap();
    assert_eq!(pieces(&mut reader, &mut cursor).len(), 2);
    // A writer begins the index anew; the files stay.
    let mut writer = LogWriter::open(dir.path(), LogLimits::default()).unwrap();
    add(&mut writer, Stream::Stdout, b"new\n", 5).unwrap();
    assert_eq!(whole_view(dir.path()), b"1970-01-01T00:00:00.005Z out| new\n");
    assert_eq!(std::fs::read(dir.path().join("stdout.log")).unwrap(), b"a\nb\nc\nnew\n");
}

#[test]
fn readers_beside_a_writer_that_rotates_all_the_time_see_every_line_once() {
    let dir = tempfile::tempdir().unwrap();
    const LINES: u64 = 20_000;
    let mut writer = LogWriter::open(dir.path(), limits(4000, 4)).unwrap();
    let mut reader = LogReader::open_whole(dir.path()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..LINES {
                add(&mut writer, Stream::Stdout, format!("{number:07}\n").as_bytes(), number).unwrap();
            }
        });
        let (mut cursor, mut expected) = (Cursor::default(), 0u64);
        while expected < LINES {
            let lost: u64 = reader.follow(&mut cursor).unwrap().iter().map(|dropped| dropped.bytes).sum();
            assert_eq!(lost % 8, 0);
            expected += lost / 8;
            let bytes = joined(&pieces(&mut reader, &mut cursor), Stream::Stdout);
            for line in bytes.chunks(8) {
                assert_eq!(std::str::from_utf8(line).unwrap(), format!("{expected:07}\n"));
                expected += 1;
            }
        }
    });
}
