//! Code from a repository.

use crate::ids::AssetName;
use crate::spec::job::{GitCode, Submodules};
use crate::spec::wire::WireGit;

/// What the table says or, where it cannot, at which key and why.
pub(super) fn code(wire: &WireGit) -> Result<GitCode, (&'static str, String)> {
    let Some(url) = wire.git.as_deref() else {
        return Err(("code", "a table needs the repository: git = \"https://HOST/PATH\"".to_owned()));
    };
    let is_ssh = url.starts_with("ssh:") || url.starts_with("git+ssh:") || (!url.contains("://") && url.contains('@'));
    if is_ssh {
        let message = "repositories are read by https or http, not by ssh; write https://HOST/PATH, with user and password = \"secret:NAME\" where it needs a login";
        return Err(("code.git", message.to_owned()));
    }
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(host) = rest.and_then(|rest| rest.split('/').next()).filter(|host| !host.is_empty()) else {
        return Err(("code.git", format!("{url:?} is no address of a repository; write https://HOST/PATH")));
    };
    if host.contains('@') {
        return Err((
            "code.git",
            "a login does not belong into the address; use `user` and `password = \"secret:NAME\"`".to_owned(),
        ));
    }
    if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(("code.git", "the address holds white space".to_owned()));
    }
    let is_reference = |text: &str| {
        !text.is_empty() && !text.starts_with('-') && !text.chars().any(|c| c.is_control() || " ~^:?*[\\".contains(c))
    };
    if let Some(reference) = wire.reference.as_ref().filter(|text| !is_reference(text)) {
        return Err(("code.ref", format!("{reference:?} is no branch, tag or commit")));
    }
    let password = wire.password.as_ref().map(|text| {
        let name = text.strip_prefix("secret:").ok_or_else(|| "a password does not belong into a job file; put it into a file of /etc/trainyard/secrets/WORKSPACE and name that: \"secret:NAME\"".to_owned())?;
        name.parse::<AssetName>().map_err(|error| format!("{name:?} is not the name of a secret: {error}"))
    });
    let password = password.transpose().map_err(|message| ("code.password", message))?;
    if password.is_some() && wire.user.is_none() {
        return Err((
            "code.user",
            "a password needs a user; for a token, what the server wants with it (often \"git\" or \"oauth2\")"
                .to_owned(),
        ));
    }
    let submodules = if wire.submodules { Submodules::Fetched } else { Submodules::Left };
    Ok(GitCode {
        url: url.to_owned(),
        reference: wire.reference.clone(),
        user: wire.user.clone(),
        password,
        submodules,
    })
}
