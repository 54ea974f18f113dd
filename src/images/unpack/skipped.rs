//! What was left out of a layer, told in a bounded list.

use super::error::shown;

const MOST_LINES: usize = 64;

#[derive(Default)]
pub(super) struct Skipped {
    lines: Vec<String>,
    more: u64,
}

impl Skipped {
    pub(super) fn note(&mut self, path: &[u8], what: &str) {
        if self.lines.len() < MOST_LINES {
            self.lines.push(format!("{:?}: {what}", shown(path)));
        } else {
            self.more += 1;
        }
    }

    pub(super) fn attribute(&mut self, path: &[u8], name: &[u8], why: &str) {
        self.note(path, &format!("extended attribute {}: {why}", name.escape_ascii()));
    }

    pub(super) fn into_lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.lines.push(format!("and {} more", self.more));
        }
        self.lines
    }
}
