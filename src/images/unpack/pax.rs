//! The records of a PAX extended header, by their own lengths: values are bytes and may hold anything, newlines too.
//!
//! The parser of the `tar` crate splits records at newlines, which breaks binary attributes and, worse, lets one hide the
//! `size` that follows it.

use nix::sys::time::TimeSpec;

use super::sparse::SparseKeys;

#[derive(Default)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    pub(super) mtime: Option<TimeSpec>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) sparse: SparseKeys,
}

impl Pax {
    /// `None` for what no archiver writes: the lengths do not fit, or a number is none.
    pub(super) fn parse(mut records: &[u8]) -> Option<Self> {
        let mut pax = Self::default();
        while !records.is_empty() {
            let (key, value, rest) = record(records)?;
            pax.take(key, value)?;
            records = rest;
        }
        Some(pax)
    }

    /// Of a key that is given twice the last counts; an empty value takes one back.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.path = given(value).map(<[u8]>::to_vec),
            b"linkpath" => self.link = given(value).map(<[u8]>::to_vec),
            b"size" => self.size = given(value).map(|value| decimal(value).ok_or(())).transpose().ok()?,
            b"uid" => self.uid = given(value).map(|value| signed(value).ok_or(())).transpose().ok()?,
            b"gid" => self.gid = given(value).map(|value| signed(value).ok_or(())).transpose().ok()?,
            b"mtime" => self.mtime = given(value).map(|value| time(value).ok_or(())).transpose().ok()?,
            _ => match (key.strip_prefix(b"SCHILY.xattr."), key.strip_prefix(b"GNU.sparse.")) {
                (Some(name), _) => self.xattrs.push((name.to_vec(), value.to_vec())),
                (_, Some(name)) => self.sparse.take(name, value)?,
                _ => {}
            },
        }
        Some(())
    }
}

fn given(value: &[u8]) -> Option<&[u8]> {
    (!value.is_empty()).then_some(value)
}

/// `LENGTH KEY=VALUE\n` and what follows it; LENGTH counts the whole record.
fn record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = records.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = decimal(&records[..space])?.try_into().ok()?;
    let (record, rest) = records.split_at_checked(length)?;
    let pair = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    (equals > 0).then(|| (&pair[..equals], &pair[equals + 1..], rest))
}

pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| str::from_utf8(digits).ok()?.parse().ok())?
}

fn signed(value: &[u8]) -> Option<i64> {
    let (negative, digits) = sign(value);
    let value = i64::try_from(decimal(digits)?).ok()?;
    Some(if negative { -value } else { value })
}

fn sign(value: &[u8]) -> (bool, &[u8]) {
    value.strip_prefix(b"-").map_or((false, value), |digits| (true, digits))
}

/// Seconds with any number of decimals, of which nine count.
fn time(value: &[u8]) -> Option<TimeSpec> {
    let (negative, digits) = sign(value);
    let mut parts = digits.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let decimals = parts.next().unwrap_or_default();
    if !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nine = decimals.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = nine.fold(0i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    Some(match (negative, nanoseconds) {
        (false, _) => TimeSpec::new(seconds, nanoseconds),
        (true, 0) => TimeSpec::new(-seconds, 0),
        // Nanoseconds count forwards, before 1970 too.
        (true, _) => TimeSpec::new(-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_by_their_lengths() {
        let pax = Pax::parse(b"33 SCHILY.xattr.user.a=\n6 size=1\n11 size=42\n").unwrap();
        assert_eq!(pax.size, Some(42));
        assert_eq!(pax.xattrs, [(b"user.a".to_vec(), b"\n6 size=1".to_vec())]);
        for damaged in [
            &b"8 size=1\n"[..],
            b"10 size=1\nx",
            b"5 =1\n",
            b"x",
            b"99999999999999999999 a=b\n",
            b"0 a=b\n",
            b"10 size=x\n",
        ] {
            assert!(Pax::parse(damaged).is_none(), "{}", damaged.escape_ascii());
        }
    }

    #[test]
    fn times_have_nanoseconds_and_may_lie_before_1970() {
        assert_eq!(time(b"12.5"), Some(TimeSpec::new(12, 500_000_000)));
        assert_eq!(time(b"12.1234567899"), Some(TimeSpec::new(12, 123_456_789)));
        assert_eq!(time(b"-1.25"), Some(TimeSpec::new(-2, 750_000_000)));
        assert_eq!(time(b"-1"), Some(TimeSpec::new(-1, 0)));
        assert_eq!(time(b"1.x"), None);
        assert_eq!(time(b""), None);
    }
}
