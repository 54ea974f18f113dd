//! A part of a file, as HTTP asks for it (RFC 9110, 14): one range of bytes. What asks for several, or cannot be understood, gets
//! the whole, as it may.

use std::ops::Range;

use hyper::Request;
use hyper::header::{HeaderMap, IF_RANGE, RANGE};
use hyper::http::Method;

/// What a request for a file asks of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) struct Asked {
    /// To be told about it alone.
    pub(in crate::api) is_head: bool,
    range: Option<Bytes>,
    /// Only of the file that has this tag.
    of: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum Bytes {
    /// From and to, both of them included.
    From(u64, Option<u64>),
    Last(u64),
}

impl Asked {
    pub(in crate::api) fn of<B>(request: &Request<B>) -> Self {
        let is_head = request.method() == Method::HEAD;
        let of = request.headers().get(IF_RANGE).map(|tag| tag.as_bytes().to_owned());
        Self { is_head, range: range_in(request.headers()).filter(|_| request.method() == Method::GET), of }
    }

    /// Whether the file's length may be needed for the answer.
    pub(in crate::api) fn may_need_length(&self) -> bool {
        self.is_head || self.range.is_some()
    }

    /// What is wanted of a file with this tag; the whole when absent.
    pub(in crate::api) fn range(&self, tag: &str) -> Option<Bytes> {
        self.range.filter(|_| self.of.as_ref().is_none_or(|of| of.as_slice() == tag.as_bytes()))
    }
}

fn range_in(headers: &HeaderMap) -> Option<Bytes> {
    let mut all = headers.get_all(RANGE).iter();
    let (one, further) = (all.next()?.to_str().ok()?, all.next());
    if further.is_some() {
        return None;
    }
    let (unit, set) = one.split_once('=')?;
    let (first, last) = set.trim().split_once('-').filter(|_| unit.trim().eq_ignore_ascii_case("bytes"))?;
    let (first, last) = (first.trim_end(), last.trim_start());
    match (first.is_empty(), last.is_empty()) {
        (true, _) => number(last).map(Bytes::Last),
        (false, true) => number(first).map(|first| Bytes::From(first, None)),
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Bytes::From(first, Some(last)))
        }
    }
}

/// Of any length: what is larger than every file is as good as any other that is.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

impl Bytes {
    /// The places in a file of `total` bytes; `None` when it has none of them.
    pub(in crate::api) fn within(self, total: u64) -> Option<Range<u64>> {
        let (first, end) = match self {
            Bytes::Last(count) => (total.saturating_sub(count), total),
            Bytes::From(first, last) => (first, last.map_or(total, |last| last.saturating_add(1).min(total))),
        };
        (first < end).then_some(first..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(range: &str) -> Option<Bytes> {
        range_in(&HeaderMap::from_iter([(RANGE, range.parse().unwrap())]))
    }

    #[test]
    fn one_range_is_read_and_all_else_means_the_whole() {
        assert_eq!(read("bytes=0-9"), Some(Bytes::From(0, Some(9))));
        assert_eq!(read("Bytes = 7-"), Some(Bytes::From(7, None)));
        assert_eq!(read("bytes=-5"), Some(Bytes::Last(5)));
        assert_eq!(read("bytes=99999999999999999999-"), Some(Bytes::From(u64::MAX, None)));
        for whole in
            ["", "bytes", "bytes=", "bytes=-", "bytes=9-0", "bytes=1-2,5-6", "lines=0-9", "bytes=a-b", "bytes=+1-2"]
        {
            assert_eq!(read(whole), None, "{whole}");
        }
        let mut twice = HeaderMap::new();
        twice.append(RANGE, "bytes=0-1".parse().unwrap());
        twice.append(RANGE, "bytes=2-3".parse().unwrap());
        assert_eq!(range_in(&twice), None);
    }

    #[test]
    fn a_range_is_cut_to_what_there_is() {
        let within = |text: &str, total| read(text).unwrap().within(total);
        assert_eq!(within("bytes=0-0", 5), Some(0..1));
        assert_eq!(within("bytes=3-99", 5), Some(3..5));
        assert_eq!(within("bytes=3-18446744073709551615", 5), Some(3..5));
        assert_eq!(within("bytes=-2", 5), Some(3..5));
        assert_eq!(within("bytes=-99", 5), Some(0..5));
        for (none, total) in [("bytes=5-", 5), ("bytes=-0", 5), ("bytes=0-", 0), ("bytes=-1", 0)] {
            assert_eq!(within(none, total), None, "{none}");
        }
    }

    #[test]
    fn a_range_of_another_file_is_none_of_this_one() {
        let request = |method: &str, tag: Option<&str>| {
            let mut request = Request::builder().method(method).header(RANGE, "bytes=1-");
            request = tag.into_iter().fold(request, |request, tag| request.header(IF_RANGE, tag));
            Asked::of(&request.body(()).unwrap())
        };
        let range = Some(Bytes::From(1, None));
        assert_eq!(request("GET", None).range("\"a\""), range);
        assert_eq!(request("GET", Some("\"a\"")).range("\"a\""), range);
        assert_eq!(request("GET", Some("\"b\"")).range("\"a\""), None);
        assert_eq!(request("GET", Some("W/\"a\"")).range("\"a\""), None);
        assert_eq!(request("GET", Some("Mon, 30 Nov 2026 00:00:00 GMT")).range("\"a\""), None);
        let head = request("HEAD", None);
        assert_eq!((head.is_head, head.range("\"a\"")), (true, None));
    }
}
