//! What a training tells of itself by numbers: a value for each tag and step, from event files of TensorBoard and from lines
//! of its output. Pure; the shim brings in the bytes.

pub mod events;
pub mod lines;

use std::fmt::Write as _;

use crate::ids::Timestamp;

/// The first line of `scalars.csv`.
pub const HEADER: &str = "step,tag,value,time\n";
/// Most characters of a tag: longer ones are no names.
const TAG_MAX: usize = 200;

/// One value of one tag.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    pub step: i64,
    pub tag: String,
    pub value: f64,
    pub time: Timestamp,
}

impl Scalar {
    /// `None` for a tag that is none.
    fn new(step: i64, tag: &str, value: f64, time: Timestamp) -> Option<Self> {
        let fits = !tag.is_empty() && tag.chars().count() <= TAG_MAX && !tag.chars().any(char::is_control);
        fits.then(|| Self { step, tag: tag.to_owned(), value, time })
    }

    /// As a line of `scalars.csv` (RFC 4180).
    pub fn row(&self) -> String {
        let mut row = format!("{},", self.step);
        match self.tag.contains([',', '"']) {
            true => drop(write!(row, "\"{}\"", self.tag.replace('"', "\"\""))),
            false => row.push_str(&self.tag),
        }
        let _ = writeln!(row, ",{},{}", self.value, self.time);
        row
    }

    /// Step, tag and value of a [`row`](Self::row).
    pub fn parse(row: &str) -> Option<(i64, String, f64)> {
        let (step, rest) = row.split_once(',')?;
        let (tag, rest) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let end = quoted.rfind("\",")?;
                (quoted.get(..end)?.replace("\"\"", "\""), quoted.get(end + 2..)?)
            }
            None => rest.split_once(',').map(|(tag, rest)| (tag.to_owned(), rest))?,
        };
        let (value, _) = rest.split_once(',')?;
        Some((step.parse().ok()?, tag, value.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn rows_are_read_back(step: i64, tag in "[ -~é损]{1,20}", value in proptest::num::f64::NORMAL, time in 0u64..4_000_000_000_000) {
            let scalar = Scalar::new(step, &tag, value, Timestamp(time)).unwrap();
            let row = scalar.row();
            proptest::prop_assert_eq!(row.matches('\n').count(), 1);
            proptest::prop_assert_eq!(Scalar::parse(&row), Some((step, tag, value)));
        }
    }

    #[test]
    fn what_is_no_tag_is_none() {
        for tag in ["", "a\nb", &"x".repeat(201)] {
            assert_eq!(Scalar::new(1, tag, 0.5, Timestamp(0)), None);
        }
        assert_eq!(
            Scalar::new(3, "loss", f64::NAN, Timestamp(0)).unwrap().row(),
            "3,loss,NaN,1970-01-01T00:00:00.000Z\n"
        );
    }
}
