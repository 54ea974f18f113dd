//! Scalars in lines of output, found by a pattern of the job file: each named group of a regular expression is a tag, and
//! the one called `step` is the step.

use regex::bytes::{Regex, RegexBuilder};

use super::Scalar;
use crate::ids::Timestamp;

/// Longest line that is looked at, bytes; of a longer one nothing is.
const LINE_MAX: usize = 16 << 10;
/// Most memory that a pattern may come to, bytes.
const PATTERN_MAX: usize = 128 << 10;
const STEP: &str = "step";

/// Reads a pattern; an error says what is wrong with it.
pub fn pattern(text: &str) -> Result<Regex, String> {
    let pattern = RegexBuilder::new(text).size_limit(PATTERN_MAX).dfa_size_limit(PATTERN_MAX).build();
    // The crate draws where it is, on several lines; its last one says what it is.
    let said = |error: &regex::Error| error.to_string().lines().last().unwrap_or_default().replace("error: ", "");
    let pattern = pattern.map_err(|error| format!("it is no regular expression: {}", said(&error).trim()))?;
    let tags = pattern.capture_names().flatten().filter(|name| *name != STEP).count();
    match tags {
        0 => Err("it has no named group for a value, such as (?<loss>[0-9.e+-]+)".to_owned()),
        _ => Ok(pattern),
    }
}

/// Looks at the lines of one stream, in whatever pieces they come.
#[derive(Debug)]
pub struct Lines {
    pattern: Regex,
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
    /// It is too long already.
    is_passed_over: bool,
    /// The step of the next line that says none.
    next: i64,
}

impl Lines {
    pub fn new(pattern: Regex) -> Self {
        Self { pattern, rest: Vec::new(), is_passed_over: false, next: 0 }
    }

    /// Adds what `bytes` tell to `found`.
    pub fn feed(&mut self, bytes: &[u8], now: Timestamp, found: &mut Vec<Scalar>) {
        // Progress bars write over their line.
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let is_whole = matches!(piece.last(), Some(b'\n' | b'\r'));
            if self.rest.len() + piece.len() > LINE_MAX {
                (self.rest, self.is_passed_over) = (Vec::new(), true);
            }
            if !self.is_passed_over {
                self.rest.extend_from_slice(piece);
            }
            if is_whole {
                let line = std::mem::take(&mut self.rest);
                if !std::mem::take(&mut self.is_passed_over) {
                    self.look(&line, now, found);
                }
            }
        }
    }

    /// The end of the stream ends its last line.
    pub fn end(&mut self, now: Timestamp, found: &mut Vec<Scalar>) {
        self.feed(b"\n", now, found);
    }

    fn look(&mut self, line: &[u8], now: Timestamp, found: &mut Vec<Scalar>) {
        let Some(groups) = self.pattern.captures(line) else { return };
        let text = |name: &str| groups.name(name).and_then(|group| std::str::from_utf8(group.as_bytes()).ok());
        let said = text(STEP).and_then(|step| step.trim().parse().ok());
        let step = said.unwrap_or(self.next);
        let tags = self.pattern.capture_names().flatten().filter(|name| *name != STEP);
        let values = tags.filter_map(|tag| Scalar::new(step, tag, text(tag)?.trim().parse().ok()?, now));
        let before = found.len();
        found.extend(values);
        if found.len() > before {
            self.next = step.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, pieces: &[&[u8]]) -> Vec<(i64, String, f64)> {
        let mut lines = Lines::new(super::pattern(pattern).unwrap());
        let mut found = Vec::new();
        pieces.iter().for_each(|piece| lines.feed(piece, Timestamp(5), &mut found));
        lines.end(Timestamp(5), &mut found);
        found.into_iter().map(|scalar| (scalar.step, scalar.tag, scalar.value)).collect()
    }

    const PATTERN: &str = r"step (?<step>\d+).*loss=(?<loss>\S+)( acc=(?<acc>\S+))?";

    #[test]
    fn named_groups_are_tags_and_lines_come_in_any_pieces() {
        let text = b"starting\nstep 1: loss=0.5 acc=0.25\nnoise loss=1\nstep 2: loss=1e-3\rstep 3: loss=nan";
        let row = |step, tag: &str, value| (step, tag.to_owned(), value);
        let whole = found(PATTERN, &[text]);
        assert_eq!(whole[..3], [row(1, "loss", 0.5), row(1, "acc", 0.25), row(2, "loss", 0.001)]);
        assert!(whole[3].0 == 3 && whole[3].2.is_nan() && whole.len() == 4);
        let pieces: Vec<&[u8]> = text.chunks(3).collect();
        assert_eq!(found(PATTERN, &pieces)[..3], whole[..3]);
    }

    #[test]
    fn a_line_that_says_no_step_has_the_next_one() {
        let row = |step, value| (step, "loss".to_owned(), value);
        assert_eq!(found("loss=(?<loss>[0-9.]+)", &[b"loss=1\nno\nloss=2\n"]), [row(0, 1.0), row(1, 2.0)]);
        assert_eq!(found("loss=(?<loss>.+)", &[b"loss=what\nloss=\xff\nloss=3"]), [row(0, 3.0)], "no numbers");
    }

    #[test]
    fn endless_lines_are_passed_over_and_patterns_bounded() {
        let long = vec![b'x'; 100_000];
        assert_eq!(found("(?<a>[0-9])", &[&long, b"1\n2\n"]), [(0, "a".to_owned(), 2.0)]);
        assert!(pattern("loss=([0-9]+)").unwrap_err().contains("no named group"));
        assert!(pattern("(?<a>x").is_err() && pattern("(?<a>(x{1000}){1000})").is_err());
    }
}
