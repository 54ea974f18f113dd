//! What comes over the network before anything is known of who sends it: paths, queries, headers, tokens, frames.
#![no_main]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use trainyard::api::frames::{Frame, FrameReader};
use trainyard::api::query::Values;
use trainyard::api::routes::{Found, ROUTES, find};
use trainyard::api::tokens;
use trainyard::api::wire::{escape, unescape};

/// The frames that bytes hold, up to the first that is none.
fn frames(bytes: &[u8]) -> Vec<Frame> {
    let (mut reader, mut found) = (FrameReader::new(bytes), Vec::new());
    // What is there is read at once.
    while let Poll::Ready(Ok(Some(frame))) = pin!(reader.next()).poll(&mut Context::from_waker(Waker::noop())) {
        found.push(frame);
    }
    found
}

fuzz_target!(|data: &[u8]| {
    for frame in frames(data) {
        assert_eq!(frames(&frame.encode()), [frame]);
    }
    let Ok(text) = std::str::from_utf8(data) else {
        let _ = tokens::of_header(data);
        return;
    };
    let mut lines = text.splitn(3, '\n');
    let (path, query, header) =
        (lines.next().unwrap_or_default(), lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
        if let Found::Route(index, places) = find(method, path) {
            let route = &ROUTES[index];
            assert_eq!(route.places().count(), places.len());
            // What a path names is as it was written.
            for place in &places {
                assert_eq!(unescape(&escape(place)).as_ref(), Some(place));
            }
            if let Ok(values) = Values::read(query, route.query) {
                let has = |name: &str| values.text(name).is_some();
                assert!(route.query.iter().all(|param| !param.required || has(param.name)));
            }
        }
    }
    for route in ROUTES {
        let _ = Values::read(query, route.query);
    }
    if let Some(token) = tokens::of_header(header.as_bytes())
        && let Some((id, secret)) = tokens::parse(token)
    {
        let file = id.to_string();
        assert!(!file.contains(['/', '\0']) && !file.starts_with('.') && secret.len() == 64);
        assert_eq!(file.parse().as_ref(), Ok(&id), "there is one way to write it");
    }
});
