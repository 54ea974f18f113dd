//! libcontainer's errors in words for whoever wrote the job. They come flattened ("failed to create container"); which step
//! failed, and why, stands in its log only, as the debug form of the error, also from its child processes.

/// What to say of an error whose own words are `flat`, given libcontainer's log: step and cause.
pub(super) fn explained(flat: &str, log: &str) -> String {
    // The first one is the cause; what follows only passes it on.
    let first = log.lines().find_map(|line| Some(line.split_once("ERROR ")?.1.trim()));
    let Some(first) = first else { return flat.to_owned() };
    let message = match first.split_once(": ") {
        Some((module, rest)) if module.starts_with("libcontainer") || module.starts_with("libcgroups") => rest,
        _ => first,
    };
    let (step, cause) = message.split_once(" err=").unwrap_or((message, ""));
    match told_in(cause) {
        Some(cause) => format!("{step}: {cause}"),
        None if cause.is_empty() => step.to_owned(),
        None => format!("{step}: {cause}"),
    }
}

/// The texts in the debug form of an error: `Mount(Other("no such thing"))` says `no such thing`.
fn told_in(debug: &str) -> Option<String> {
    let (mut texts, mut text) = (Vec::new(), None::<String>);
    let mut letters = debug.chars();
    while let Some(letter) = letters.next() {
        match (&mut text, letter) {
            (None, '"') => text = Some(String::new()),
            (None, _) => {}
            (Some(_), '"') => texts.extend(text.take()),
            (Some(text), '\\') => text.extend(letters.next()),
            (Some(text), letter) => text.push(letter),
        }
    }
    (!texts.is_empty()).then(|| texts.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_and_the_cause_are_told_without_the_wrapping() {
        let log = "2026 WARN something\n2026-11-28T12:09:51Z ERROR libcontainer::process::init::process: failed to prepare rootfs \
                   err=Mount(Other(\"filesystem proc must be mounted on \\\"ordinary\\\" directory\"))\nERROR libcontainer: later";
        assert_eq!(
            explained("failed to create container", log),
            "failed to prepare rootfs: filesystem proc must be mounted on \"ordinary\" directory"
        );
        let io = "ERROR libcgroups::x: cannot write err=Io { path: \"/sys/a\", source: Os { code: 13, message: \"Permission denied\" } }";
        assert_eq!(explained("flat", io), "cannot write: /sys/a: Permission denied");
        assert_eq!(
            explained("flat", "ERROR libcontainer::y: failed to clone err=Clone(EPERM)"),
            "failed to clone: Clone(EPERM)"
        );
        assert_eq!(explained("flat", "ERROR libcontainer::y: just so"), "just so");
        assert_eq!(explained("flat", "INFO nothing"), "flat");
    }
}
