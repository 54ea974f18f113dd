//! Credentials for registries, from files as podman and docker write them (containers-auth.json(5), `config.json`).

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use serde::Deserialize;

/// A login; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, …)", self.user)
    }
}

/// Why an authentication file is of no use; never holds what is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthFileError {
    #[error("it is not JSON as podman and docker write it (line {line})")]
    Syntax { line: usize },
    #[error("its entry for {0} is not base64 of USER:PASSWORD")]
    Entry(String),
    #[error("it names a credential helper for {0}, which is not run here; log in with `podman login` instead")]
    Helper(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuthFile {
    auths: BTreeMap<String, Entry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entry(…)")
    }
}

/// The credentials in `file` for a repository of a registry: of the most exact entry.
pub fn credentials_in(file: &[u8], registry: &str, repository: &str) -> Result<Option<Credentials>, AuthFileError> {
    // The text of serde's error would show what stands around it.
    let file: AuthFile = serde_json::from_slice(file).map_err(|error| AuthFileError::Syntax { line: error.line() })?;
    let mut keys: Vec<String> = Vec::new();
    let mut path = format!("{registry}/{repository}");
    loop {
        keys.push(path.clone());
        match path.rfind('/') {
            Some(at) => path.truncate(at),
            None => break,
        }
    }
    keys.extend([format!("https://{registry}"), format!("https://{registry}/"), format!("http://{registry}")]);
    if registry == "docker.io" {
        keys.extend(["https://index.docker.io/v1/", "index.docker.io"].map(str::to_owned));
    }
    let found = keys.iter().find_map(|key| Some((key, file.auths.get(key)?)));
    let entry =
        found.map(|(key, entry)| entry.credentials().map_err(|()| AuthFileError::Entry(key.clone()))).transpose()?;
    match entry.flatten() {
        Some(credentials) => Ok(Some(credentials)),
        None if file.cred_helpers.contains_key(registry) || (found.is_some() && file.creds_store.is_some()) => {
            Err(AuthFileError::Helper(registry.to_owned()))
        }
        None => Ok(None),
    }
}

impl Entry {
    fn credentials(&self) -> Result<Option<Credentials>, ()> {
        if let Some(token) = self.identitytoken.as_ref().filter(|token| !token.is_empty()) {
            // As docker does: a token instead of a password has this user.
            return Ok(Some(Credentials { user: "<token>".to_owned(), password: token.clone() }));
        }
        if let (Some(user), Some(password)) = (&self.username, &self.password) {
            return Ok(Some(Credentials { user: user.clone(), password: password.clone() }));
        }
        let Some(encoded) = self.auth.as_ref().filter(|encoded| !encoded.is_empty()) else { return Ok(None) };
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).map_err(drop)?;
        let text = String::from_utf8(bytes).map_err(drop)?;
        let (user, password) = text.split_once(':').ok_or(())?;
        Ok(Some(Credentials { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_exact_entry_counts_and_nothing_secret_is_printed() {
        // lab:secret and team:inner
        let file =
            br#"{"auths":{"r.lab:5000":{"auth":"bGFiOnNlY3JldA=="},"r.lab:5000/team":{"auth":"dGVhbTppbm5lcg=="},
            "https://index.docker.io/v1/":{"username":"u","password":"p:q"},"broken.lab":{"auth":"!"}}}"#;
        let found = |registry, repository| credentials_in(file, registry, repository);
        assert_eq!(found("r.lab:5000", "team/torch").unwrap().unwrap().user, "team");
        let lab = found("r.lab:5000", "other").unwrap().unwrap();
        assert_eq!((lab.user.as_str(), lab.password.as_str()), ("lab", "secret"));
        assert!(!format!("{lab:?}").contains("secret"));
        assert_eq!(found("docker.io", "library/x").unwrap().unwrap().password, "p:q");
        assert_eq!(found("elsewhere", "x").unwrap(), None);
        assert_eq!(found("broken.lab", "x"), Err(AuthFileError::Entry("broken.lab".into())));
        let error = credentials_in(b"{\"auths\": \"secret\"", "x", "y").unwrap_err();
        assert!(!error.to_string().contains("secret"));
        let helper = br#"{"credHelpers":{"gcr.io":"gcloud"}}"#;
        assert_eq!(credentials_in(helper, "gcr.io", "x"), Err(AuthFileError::Helper("gcr.io".into())));
    }
}
