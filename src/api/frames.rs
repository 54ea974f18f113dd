//! What goes over the connection of an `exec` after its upgrade: frames, in both directions.
//!
//! A frame is its kind (one byte), the length of its payload (u32, little-endian, at most [`PAYLOAD_MAX`]) and the payload:
//!
//! | kind | payload | from |
//! |---|---|---|
//! | 0 | bytes of standard input | client |
//! | 1, 2 | bytes of standard output, of standard error | daemon |
//! | 3 | the terminal's size: rows u16, columns u16 | client |
//! | 4 | exit code, i32; the last frame | daemon |
//! | 5 | why it could not be done, a sentence | daemon |
//! | 6 | end of standard input | client |
//! | 7 | so many bytes of standard input were taken by the command, u32 | daemon |
//!
//! Numbers are little-endian. A client may have [`WINDOW`] bytes of standard input on the way that were not taken: so the
//! daemon hears of a new size, or of the client's end, also while the command does not read.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest payload, bytes.
pub const PAYLOAD_MAX: usize = 1 << 20;
/// Most bytes of standard input on the way.
pub const WINDOW: usize = 256 << 10;
/// Bytes that are read at once, at least.
const READ: usize = 32 << 10;
/// The protocol's name in `Upgrade`.
pub const PROTOCOL: &str = "trainyard-exec/1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Stdin(Vec<u8>),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Size { rows: u16, columns: u16 },
    Exit(i32),
    Error(String),
    EndOfStdin,
    Taken(u32),
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the connection broke off")]
    Io(#[from] io::Error),
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    #[error("a frame of kind {kind} cannot have {length} bytes")]
    Malformed { kind: u8, length: usize },
}

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, payload): (u8, &[u8]) = match self {
            Frame::Stdin(bytes) => (0, bytes),
            Frame::Stdout(bytes) => (1, bytes),
            Frame::Stderr(bytes) => (2, bytes),
            Frame::Size { rows, columns } => (3, &[rows.to_le_bytes(), columns.to_le_bytes()].concat()),
            Frame::Exit(code) => (4, &code.to_le_bytes()),
            Frame::Error(text) => (5, text.as_bytes()),
            Frame::EndOfStdin => (6, &[]),
            Frame::Taken(count) => (7, &count.to_le_bytes()),
        };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        [&[kind], length.to_le_bytes().as_slice(), payload].concat()
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let malformed = || FrameError::Malformed { kind, length: payload.len() };
        Ok(match (kind, payload) {
            (0, bytes) => Frame::Stdin(bytes.to_vec()),
            (1, bytes) => Frame::Stdout(bytes.to_vec()),
            (2, bytes) => Frame::Stderr(bytes.to_vec()),
            (3, [r0, r1, c0, c1]) => {
                Frame::Size { rows: u16::from_le_bytes([*r0, *r1]), columns: u16::from_le_bytes([*c0, *c1]) }
            }
            (4, bytes) => Frame::Exit(i32::from_le_bytes(bytes.try_into().map_err(|_| malformed())?)),
            (5, bytes) => Frame::Error(String::from_utf8_lossy(bytes).into_owned()),
            (6, []) => Frame::EndOfStdin,
            (7, bytes) => Frame::Taken(u32::from_le_bytes(bytes.try_into().map_err(|_| malformed())?)),
            _ => return Err(malformed()),
        })
    }
}

/// Takes frames off a stream. A call that is given up loses nothing.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    /// What was read; at most one frame of it is not whole.
    read: Vec<u8>,
    /// Bytes of it that were taken. They go at the next reading, not with each frame: a frame may be as short as five bytes.
    taken: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, read: Vec::new(), taken: 0 }
    }

    /// The next frame; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            self.read.drain(..self.taken);
            self.taken = 0;
            self.read.reserve(READ);
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return match self.read.is_empty() {
                    true => Ok(None),
                    false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                };
            }
        }
    }

    fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        let begun = self.read.get(self.taken..).unwrap_or_default();
        let [kind, a, b, c, d, rest @ ..] = begun else { return Ok(None) };
        let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        if length > PAYLOAD_MAX {
            return Err(FrameError::TooLong(length));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = Frame::decode(*kind, payload)?;
        self.taken += 5 + length;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all(bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut reader, mut frames) = (FrameReader::new(bytes), Vec::new());
            while let Some(frame) = reader.next().await? {
                frames.push(frame);
            }
            Ok(frames)
        })
    }

    #[test]
    fn frames_read_back() {
        let frames = vec![
            Frame::Stdin(vec![0; 3]),
            Frame::Stdout(vec![]),
            Frame::Stderr(vec![9; PAYLOAD_MAX]),
            Frame::Size { rows: 25, columns: 800 },
            Frame::Exit(-1),
            Frame::Error("größer".into()),
            Frame::EndOfStdin,
            Frame::Taken(77),
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        assert_eq!(read_all(&bytes).unwrap(), frames);
        assert!(read_all(&bytes[..bytes.len() - 1]).is_err(), "a torn frame is no end");
        assert!(matches!(read_all(&Frame::Stdin(vec![0; PAYLOAD_MAX + 1]).encode()), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn short_frames_are_taken_without_moving_what_follows() {
        let frame = Frame::Stdin(vec![7]).encode();
        let bytes = frame.repeat(100_000);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut reader = FrameReader::new(bytes.as_slice());
            // How often the buffer's content was moved to its beginning.
            let (mut frames, mut moves, mut taken) = (0, 0, 0);
            while reader.next().await.unwrap().is_some() {
                frames += 1;
                moves += usize::from(reader.taken < taken);
                taken = reader.taken;
            }
            assert_eq!(frames, 100_000);
            assert!(moves <= bytes.len() / READ, "{moves} times");
        });
    }

    proptest! {
        #[test]
        fn nothing_that_comes_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = read_all(&bytes);
        }
    }
}
