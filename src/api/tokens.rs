//! Tokens: how somebody who comes over the network shows who they are.
//!
//! One file a token, `etc/trainyard/tokens/NAME.toml`, which root alone may read: whose it is, what it is good for, and the
//! SHA-256 of its secret. The secret itself, 256 random bits, is told once, when the token is made, so that a plain hash is
//! enough. The file is read at each request, and who is connected is cut off when it goes: removing it revokes the token.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use super::error::ApiError;
use super::routes::Right;
use crate::ids::{AssetName, Timestamp, WorkspaceName};
use crate::reconcile::Caller;
use crate::sys::file::{Existing, create_dir, read_limited, write_new};

/// Begins the text of a token, so that scanners for secrets know it.
const PREFIX: &str = "trainyard_";
/// Bytes of a secret.
const SECRET: usize = 32;
/// Longest file, bytes.
const FILE_MAX: u64 = 64 << 10;
const SUFFIX: &str = ".toml";

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To see what its user may see.
    Read,
    /// To change jobs, images and datasets as its user may, and to run commands in tasks.
    Jobs,
    /// What root alone may do; for tokens of root.
    Admin,
    /// To read `/metrics`.
    Metrics,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Jobs, Self::Admin, Self::Metrics];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Jobs => "jobs",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }

    /// Who may change may see, and an administrator may do all.
    fn allows(self, right: Right) -> bool {
        match right {
            Right::Anyone => true,
            Right::Local => false,
            Right::Read => self != Self::Metrics,
            Right::Jobs => matches!(self, Self::Jobs | Self::Admin),
            Right::Admin => self == Self::Admin,
            Right::Metrics => matches!(self, Self::Metrics | Self::Admin),
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| format!("{text:?} is not one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A token's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    /// Of the secret, hexadecimal.
    sha256: String,
    uid: u32,
    scopes: BTreeSet<Scope>,
    /// Only these; all that the user may use when absent.
    workspaces: Option<BTreeSet<WorkspaceName>>,
    /// Milliseconds since 1970.
    created: u64,
    expires: Option<u64>,
}

/// A token as it is listed: without what would let anybody use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenView {
    pub name: String,
    pub uid: u32,
    pub user: String,
    pub scopes: Vec<Scope>,
    /// All that the user may use when absent.
    pub workspaces: Option<Vec<String>>,
    pub created: String,
    pub expires: Option<String>,
}

/// What a token is wanted for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    pub name: String,
    /// By name or number; the one who asks when absent.
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub scopes: Vec<Scope>,
    #[serde(default)]
    pub workspaces: Option<Vec<String>>,
    /// Seconds from now; for ever when absent.
    #[serde(default)]
    pub expires_in_s: Option<u64>,
}

/// Told once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewToken {
    pub token: TokenView,
    /// What goes into `Authorization: Bearer …`.
    pub secret: String,
}

/// Whoever has shown a good token.
#[derive(Debug, Clone)]
pub(super) struct Bearer {
    pub(super) name: AssetName,
    pub(super) caller: Caller,
    scopes: BTreeSet<Scope>,
}

impl Bearer {
    pub(super) fn allows(&self, right: Right) -> bool {
        self.scopes.iter().any(|scope| scope.allows(right))
    }
}

/// The directory of tokens, watched.
#[derive(Debug, Clone)]
pub struct Tokens {
    directory: PathBuf,
    changes: watch::Receiver<u64>,
    _watcher: Arc<RecommendedWatcher>,
}

impl Tokens {
    pub fn open(directory: &Path) -> io::Result<Self> {
        create_dir(directory, 0o700)?;
        let (sender, changes) = watch::channel(0);
        let changed = move |_| sender.send_modify(|count: &mut u64| *count += 1);
        let mut watcher = notify::recommended_watcher(changed).map_err(io::Error::other)?;
        watcher.watch(directory, RecursiveMode::NonRecursive).map_err(io::Error::other)?;
        Ok(Self { directory: directory.to_owned(), changes, _watcher: Arc::new(watcher) })
    }

    /// Who shows this text. The same answer for a token that there is not and for a wrong secret.
    pub(super) fn bearer(&self, text: &str, now: Timestamp) -> Result<Bearer, ApiError> {
        let refused = || {
            ApiError::Unauthorized(
                "this token is not known here: it is wrong, was revoked, or has expired; `trainyard token new` makes one"
                    .to_owned(),
            )
        };
        let (name, secret) = parse(text).ok_or_else(refused)?;
        let file = self.read(&name);
        let shown: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        // Compared also where there is no token, so that time tells nothing.
        let kept = file.as_ref().ok().and_then(|file| unhex(&file.sha256)).unwrap_or_default();
        let is_same = bool::from(kept.as_slice().ct_eq(shown.as_slice()));
        let file = file.ok().filter(|file| is_same && is_valid(file, now)).ok_or_else(refused)?;
        let within = file.workspaces.map(Arc::new);
        let caller = Caller { within, ..Caller::of(file.uid) };
        Ok(Bearer { name, caller, scopes: file.scopes })
    }

    /// Resolves when the token is good no longer.
    pub(super) async fn revoked(&self, name: &AssetName) {
        let mut changes = self.changes.clone();
        loop {
            changes.mark_unchanged();
            let now = crate::sys::now();
            let Ok(file) = self.read(name) else { return };
            if !is_valid(&file, now) {
                return;
            }
            // Clocks may be set: it is looked at again at times.
            let left =
                file.expires.map_or(Duration::from_secs(3600), |at| Duration::from_millis(at.saturating_sub(now.0)));
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(left.min(Duration::from_secs(3600))) => {}
            }
        }
    }

    /// Those of the caller; root's are all.
    pub(super) fn list(&self, caller: &Caller) -> io::Result<Vec<TokenView>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse::<AssetName>().ok()) else {
                continue;
            };
            match self.read(&name) {
                Ok(file) if caller.uid == 0 || file.uid == caller.uid => found.push(view(&name, &file)),
                Ok(_) => {}
                Err(error) => tracing::warn!(token = %name, %error, "a token's file cannot be used"),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Makes a token of the user `uid`.
    pub(super) fn create(&self, wanted: &TokenRequest, uid: u32, caller: &Caller) -> Result<NewToken, ApiError> {
        let name: AssetName = wanted.name.parse().map_err(|error| ApiError::Bad(format!("name: {error}")))?;
        let scopes: BTreeSet<Scope> = wanted.scopes.iter().copied().collect();
        let scopes = if scopes.is_empty() { BTreeSet::from([Scope::Read]) } else { scopes };
        if caller.uid != 0 && uid != caller.uid {
            return Err(ApiError::Forbidden("only root may make tokens of other users".to_owned()));
        }
        if uid != 0 && scopes.contains(&Scope::Admin) {
            return Err(ApiError::Forbidden("only tokens of root can have the scope admin".to_owned()));
        }
        if caller.uid != 0 && scopes.contains(&Scope::Metrics) {
            return Err(ApiError::Forbidden("only root may make tokens with the scope metrics".to_owned()));
        }
        let named = |names: &Vec<String>| names.iter().map(|name| name.parse()).collect::<Result<BTreeSet<_>, _>>();
        let workspaces = wanted.workspaces.as_ref().map(named).transpose();
        let workspaces = workspaces.map_err(|error| ApiError::Bad(format!("workspaces: {error}")))?;
        let now = crate::sys::now();
        let expires = wanted.expires_in_s.map(|seconds| now.0.saturating_add(seconds.saturating_mul(1000)));
        let secret =
            random_hex().map_err(|error| ApiError::Failed(format!("the machine gives no random bytes: {error}")))?;
        let sha256 = hex(&Sha256::digest(secret.as_bytes()));
        let file = TokenFile { sha256, uid, scopes, workspaces, created: now.0, expires };
        let text = toml::to_string(&file).map_err(|error| ApiError::Failed(error.to_string()))?;
        let path = self.path(&name);
        match write_new(&path, text.as_bytes(), 0o600) {
            Ok(Existing::None) => {}
            Ok(Existing::Kept) => {
                return Err(ApiError::Conflict(format!(
                    "there is a token {name} already; `trainyard token rm` removes it"
                )));
            }
            Err(error) => return Err(ApiError::Failed(format!("cannot write {}: {error}", path.display()))),
        }
        tracing::info!(token = %name, uid, by = caller.name, "a token was made");
        Ok(NewToken { token: view(&name, &file), secret: format!("{PREFIX}{name}_{secret}") })
    }

    pub(super) fn remove(&self, name: &str, caller: &Caller) -> Result<String, ApiError> {
        let unknown =
            || ApiError::NotFound(format!("there is no token {name} of yours; `trainyard token ls` lists them"));
        let name: AssetName = name.parse().map_err(|_| unknown())?;
        // What cannot be read is nobody's but root's.
        let is_own = caller.uid == 0 || self.read(&name).is_ok_and(|file| file.uid == caller.uid);
        if !is_own {
            return Err(unknown());
        }
        match std::fs::remove_file(self.path(&name)) {
            Ok(()) => {
                tracing::info!(token = %name, by = caller.name, "a token was revoked");
                Ok(format!("token {name}: revoked"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(unknown()),
            Err(error) => Err(ApiError::Failed(format!("cannot remove token {name}: {error}"))),
        }
    }

    fn path(&self, name: &AssetName) -> PathBuf {
        self.directory.join(format!("{name}{SUFFIX}"))
    }

    fn read(&self, name: &AssetName) -> io::Result<TokenFile> {
        let (_, bytes) = read_limited(&self.path(name), FILE_MAX)?;
        let text = String::from_utf8(bytes).map_err(io::Error::other)?;
        toml::from_str(&text).map_err(|error| io::Error::other(error.message().to_owned()))
    }
}

fn is_valid(file: &TokenFile, now: Timestamp) -> bool {
    file.expires.is_none_or(|at| now.0 < at)
}

/// `trainyard_NAME_SECRET`.
pub fn parse(text: &str) -> Option<(AssetName, &str)> {
    let (name, secret) = text.strip_prefix(PREFIX)?.rsplit_once('_')?;
    let is_secret = secret.len() == 2 * SECRET && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_secret.then_some((name.parse().ok()?, secret))
}

/// The token of an `Authorization` header.
pub fn of_header(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn view(name: &AssetName, file: &TokenFile) -> TokenView {
    TokenView {
        name: name.to_string(),
        uid: file.uid,
        user: Caller::of(file.uid).name,
        scopes: file.scopes.iter().copied().collect(),
        workspaces: file.workspaces.as_ref().map(|names| names.iter().map(ToString::to_string).collect()),
        created: Timestamp(file.created).to_string(),
        expires: file.expires.map(|at| Timestamp(at).to_string()),
    }
}

fn random_hex() -> io::Result<String> {
    let mut bytes = [0; SECRET];
    let mut filled = 0;
    while filled < SECRET {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    let pairs = text.as_bytes().chunks(2);
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32) -> Caller {
        Caller::of(uid)
    }

    fn wanted(name: &str, scopes: &[Scope]) -> TokenRequest {
        TokenRequest { name: name.to_owned(), scopes: scopes.to_vec(), ..TokenRequest::default() }
    }

    #[test]
    fn a_token_opens_for_its_user_until_its_file_goes_and_only_its_hash_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&dir.path().join("tokens")).unwrap();
        let made = tokens.create(&wanted("ci_1", &[Scope::Jobs]), 4_000_001, &caller(0)).unwrap();
        let kept = std::fs::read_to_string(dir.path().join("tokens/ci_1.toml")).unwrap();
        let (_, secret) = parse(&made.secret).unwrap();
        assert!(!kept.contains(secret), "{kept}");
        let now = crate::sys::now();
        let bearer = tokens.bearer(&made.secret, now).unwrap();
        assert_eq!((bearer.caller.uid, bearer.name.as_str()), (4_000_001, "ci_1"));
        assert!(bearer.allows(Right::Read) && bearer.allows(Right::Jobs));
        assert!(!bearer.allows(Right::Admin) && !bearer.allows(Right::Metrics));
        let mut wrong = made.secret.clone();
        let last = if wrong.pop() == Some('0') { '1' } else { '0' };
        wrong.push(last);
        for bad in [wrong.as_str(), "trainyard_ci_1_", "trainyard_../x_00", "", "nonsense"] {
            assert!(tokens.bearer(bad, now).is_err(), "{bad}");
        }
        tokens.remove("ci_1", &caller(4_000_002)).unwrap_err();
        tokens.remove("ci_1", &caller(4_000_001)).unwrap();
        assert!(tokens.bearer(&made.secret, now).is_err());
    }

    #[test]
    fn nobody_makes_a_token_that_may_more_than_they() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let refused = |scopes: &[Scope], of, by| tokens.create(&wanted("x", scopes), of, &caller(by)).is_err();
        assert!(refused(&[Scope::Read], 7, 8));
        assert!(refused(&[Scope::Admin], 7, 7) && refused(&[Scope::Admin], 7, 0));
        assert!(refused(&[Scope::Metrics], 7, 7));
        assert!(!refused(&[], 7, 7));
        assert!(refused(&[], 7, 7), "a token of that name is there");
        let seen = |uid| tokens.list(&caller(uid)).unwrap().len();
        assert_eq!((seen(7), seen(8), seen(0)), (1, 0, 1));
    }

    #[test]
    fn an_expired_token_opens_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let wanted = TokenRequest { expires_in_s: Some(10), ..wanted("short", &[]) };
        let made = tokens.create(&wanted, 7, &caller(7)).unwrap();
        let now = crate::sys::now();
        assert!(tokens.bearer(&made.secret, now).is_ok());
        assert!(tokens.bearer(&made.secret, Timestamp(now.0 + 10_001)).is_err());
    }

    #[test]
    fn the_header_is_read_as_http_has_it() {
        assert_eq!(of_header(b"Bearer abc"), Some("abc"));
        assert_eq!(of_header(b"bearer   abc "), Some("abc"));
        for bad in [&b"Basic abc"[..], b"Bearer", b"\xff\xff x", b""] {
            assert_eq!(of_header(bad), None);
        }
    }
}
