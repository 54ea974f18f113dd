//! Credentials for registries, from files as podman and docker write them (containers-auth.json(5), `config.json`).

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Docker's user of an identity token: the password is the token then.
pub(super) const TOKEN_USER: &str = "<token>";

/// A login; never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl Credentials {
    /// What must not come back in a sentence.
    pub(super) fn secrets(&self) -> [String; 2] {
        [self.password.clone(), STANDARD.encode(format!("{}:{}", self.user, self.password))]
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?}, …)", self.user)
    }
}

/// Why a file of credentials is of no use; never holds what is in it but names of registries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthFileError {
    #[error("the file of credentials is not JSON as podman and docker write it (line {line})")]
    Syntax { line: usize },
    #[error("the entry for {0} in the file of credentials is not base64 of USER:PASSWORD")]
    Entry(String),
    #[error(
        "not supported here: the file of credentials names a credential helper for {0}, which would run as root; log in with `podman login --authfile FILE {0}` instead"
    )]
    Helper(String),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuthFile {
    auths: Option<BTreeMap<String, Entry>>,
    cred_helpers: Option<BTreeMap<String, String>>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// The credentials for a repository of a registry: of the most exact entry. A helper that is named for the registry
/// alone goes before its entry, as podman and docker have it.
pub fn credentials_in(
    auth_json: &[u8],
    registry: &str,
    repository: &str,
) -> Result<Option<Credentials>, AuthFileError> {
    // The text of serde's error would show what stands around it.
    let file: AuthFile =
        serde_json::from_slice(auth_json).map_err(|error| AuthFileError::Syntax { line: error.line() })?;
    let helper = || AuthFileError::Helper(registry.to_owned());
    let has_store = file.creds_store.is_some_and(|store| !store.is_empty());
    if file.cred_helpers.is_some_and(|helpers| helpers.contains_key(registry)) {
        return Err(helper());
    }
    let auths = file.auths.unwrap_or_default();
    let Some((entry, key)) = keys(registry, repository).find_map(|key| Some((auths.get(&key)?, key))) else {
        return if has_store { Err(helper()) } else { Ok(None) };
    };
    match entry.credentials().map_err(|NotBase64| AuthFileError::Entry(key))? {
        // Docker leaves an empty entry for what its store keeps.
        None if has_store => Err(helper()),
        found => Ok(found),
    }
}

/// The names that an entry may have, the most exact first.
fn keys(registry: &str, repository: &str) -> impl Iterator<Item = String> {
    let mut paths = vec![format!("{registry}/{repository}")];
    while let Some((shorter, _)) = paths.last().and_then(|path| path.rsplit_once('/')) {
        paths.push(shorter.to_owned());
    }
    let old = ["https://", "http://"].map(|scheme| format!("{scheme}{registry}"));
    let old = old.into_iter().flat_map(|old| [format!("{old}/v1/"), format!("{old}/v2/"), format!("{old}/"), old]);
    let docker =
        ["https://index.docker.io/v1/", "https://index.docker.io/v1", "index.docker.io", "registry-1.docker.io"];
    let is_docker = registry == "docker.io";
    let docker = docker.into_iter().filter(move |_| is_docker).map(str::to_owned);
    paths.into_iter().chain(docker).chain(old)
}

struct NotBase64;

impl Entry {
    fn credentials(&self) -> Result<Option<Credentials>, NotBase64> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = given(&self.identitytoken) {
            return Ok(Some(Credentials { user: TOKEN_USER.to_owned(), password: token }));
        }
        if let (Some(user), Some(password)) = (given(&self.username), given(&self.password)) {
            return Ok(Some(Credentials { user, password }));
        }
        given(&self.auth).map(|encoded| decode(&encoded)).transpose()
    }
}

fn decode(encoded: &str) -> Result<Credentials, NotBase64> {
    let bytes = STANDARD.decode(encoded.trim()).map_err(|_| NotBase64)?;
    let text = String::from_utf8(bytes).map_err(|_| NotBase64)?;
    let (user, password) = text.split_once(':').ok_or(NotBase64)?;
    // Old versions of docker pad with NULs.
    Ok(Credentials { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    // lab:secret and team:in:ner
    const FILE: &[u8] =
        br#"{"auths":{"r.lab:5000":{"auth":"bGFiOnNlY3JldA=="},"r.lab:5000/team":{"auth":"dGVhbTppbjpuZXI="},
        "https://index.docker.io/v1/":{"username":"u","password":"p:q"},"broken.lab":{"auth":"!"},"empty.lab":{},
        "https://old.lab":{"auth":"bGFiOnNlY3JldA=="},"cloud.lab":{"auth":"bGFiOng=","identitytoken":"tok"}}}"#;

    fn found(registry: &str, repository: &str) -> Option<(String, String)> {
        credentials_in(FILE, registry, repository).unwrap().map(|found| (found.user, found.password))
    }

    fn login(user: &str, password: &str) -> Option<(String, String)> {
        Some((user.to_owned(), password.to_owned()))
    }

    #[test]
    fn the_most_exact_entry_counts() {
        assert_eq!(found("r.lab:5000", "team/torch"), login("team", "in:ner"));
        assert_eq!(found("r.lab:5000", "teams/torch"), login("lab", "secret"));
        assert_eq!(found("docker.io", "library/x"), login("u", "p:q"));
        assert_eq!(found("old.lab", "x"), login("lab", "secret"));
        assert_eq!(found("cloud.lab", "x"), login(TOKEN_USER, "tok"));
        assert_eq!(found("elsewhere", "x"), None);
        assert_eq!(found("r.lab", "team/torch"), None);
        assert_eq!(found("empty.lab", "x"), None);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_without_its_secrets() {
        assert_eq!(credentials_in(FILE, "broken.lab", "x"), Err(AuthFileError::Entry("broken.lab".into())));
        for file in ["{\"auths\": \"secret\"}", "{\"auths\":{\"x\":{\"auth\":17, \"password\":\"secret\"}}}", "secret"]
        {
            let error = credentials_in(file.as_bytes(), "x", "y").unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"));
        }
        let credentials = credentials_in(FILE, "r.lab:5000", "x").unwrap().unwrap();
        assert!(!format!("{credentials:?}").contains("secret"));
        assert_eq!(credentials_in(b"{}", "x", "y"), Ok(None));
    }

    #[test]
    fn helpers_are_told_and_not_run() {
        let helper = br#"{"auths":{"gcr.io":{}},"credHelpers":{"gcr.io":"gcloud"}}"#;
        assert_eq!(credentials_in(helper, "gcr.io", "x"), Err(AuthFileError::Helper("gcr.io".into())));
        assert_eq!(credentials_in(helper, "r.lab", "x"), Ok(None));
        let store = br#"{"auths":{"gcr.io":{},"r.lab":{"auth":"bGFiOnNlY3JldA=="}},"credsStore":"secretservice"}"#;
        assert_eq!(credentials_in(store, "gcr.io", "x"), Err(AuthFileError::Helper("gcr.io".into())));
        assert!(credentials_in(store, "r.lab", "x").unwrap().is_some());
        assert!(AuthFileError::Helper("gcr.io".into()).to_string().starts_with("not supported here"));
    }
}
