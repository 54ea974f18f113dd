//! Tokens: how somebody who comes over the network shows who they are.
//!
//! One file a token, `etc/trainyard/tokens/UID.NAME.toml`, which root alone may read: whose it is, what it is good for, and the
//! SHA-256 of its secret. The secret itself, 256 random bits, is told once, when the token is made, so that a plain hash is
//! enough. The file is read at each request, and who is connected is cut off when it goes or changes: removing it revokes the
//! token. A user is a number and a name: who gets the number of somebody that has left gets none of their tokens.

mod scope;
mod text;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use super::error::ApiError;
use super::openapi::{name_in_body, names_in_body};
use super::routes::Right;
use crate::ids::{Timestamp, WorkspaceName};
use crate::reconcile::Caller;
use crate::sys::file::{Durability, Existing, create_dir, read_limited, remove_for_good, write_new};
use crate::sys::watch::is_change;

pub use scope::Scope;
pub use text::{TokenId, of_header, parse};
use text::{hex, random_secret, unhex};

/// Longest file, bytes.
const FILE_MAX: u64 = 64 << 10;
const SUFFIX: &str = ".toml";
/// Tokens of one user.
const OF_ONE_USER: usize = 100;

/// A token's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    /// Of the secret, hexadecimal.
    sha256: String,
    uid: u32,
    /// The name of that user when the token was made.
    user: String,
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
    #[schemars(schema_with = "name_in_body")]
    pub name: String,
    /// By name or number; the one who asks when absent.
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub scopes: Vec<Scope>,
    #[serde(default)]
    #[schemars(schema_with = "names_in_body")]
    pub workspaces: Option<Vec<String>>,
    /// Seconds from now; for ever when absent.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 3_155_760_000_u64))]
    pub expires_in_s: Option<u64>,
}

/// A hundred years, seconds: longest time of a token that ends.
const LIFE_MAX: u64 = 3_155_760_000;

/// Many programs write 60 as 60.0, and to JSON Schema both are integers.
fn whole_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let Some(number) = Option::<serde_json::Number>::deserialize(from)? else { return Ok(None) };
    let text = number.to_string();
    let whole =
        text.strip_suffix(".0").unwrap_or(&text).parse::<u64>().ok().filter(|seconds| (1..=LIFE_MAX).contains(seconds));
    let wrong = || format!("{text} is no whole number of seconds, from 1 to {LIFE_MAX} (a hundred years)");
    whole.map(Some).ok_or_else(|| serde::de::Error::custom(wrong()))
}

/// Told once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewToken {
    pub token: TokenView,
    /// What goes into `Authorization: Bearer …`.
    pub secret: String,
}

/// A token as it was when it was shown, and was good.
#[derive(Debug, Clone)]
pub(super) struct Held {
    id: TokenId,
    file: Arc<TokenFile>,
}

/// Whoever has shown a good token.
#[derive(Debug, Clone)]
pub(super) struct Bearer {
    pub(super) held: Held,
    pub(super) caller: Caller,
}

impl Bearer {
    /// Whatever stands in its file: `admin` is of tokens of root alone.
    pub(super) fn allows(&self, right: Right) -> bool {
        let counts = |scope: &&Scope| self.caller.uid == 0 || **scope != Scope::Admin;
        self.held.file.scopes.iter().filter(counts).any(|scope| scope.allows(right))
    }
}

/// The directory of tokens, watched.
#[derive(Debug, Clone)]
pub struct Tokens {
    directory: PathBuf,
    changes: watch::Receiver<u64>,
    /// Tokens are made one after another, so that they can be counted.
    turn: Arc<Mutex<()>>,
    /// Who has a number now.
    user_of: fn(u32) -> io::Result<String>,
    _watcher: Arc<RecommendedWatcher>,
}

/// As [`Caller::of`] calls them; fails when the machine's users cannot be asked for.
fn user_of(uid: u32) -> io::Result<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid))?;
    Ok(user.map_or_else(|| format!("user {uid}"), |user| user.name))
}

impl Tokens {
    pub fn open(directory: &Path) -> io::Result<Self> {
        create_dir(directory, 0o700)?;
        let (sender, changes) = watch::channel(0);
        // What is not known may be a change.
        let changed = move |event: notify::Result<notify::Event>| {
            if event.as_ref().map_or(true, is_change) {
                sender.send_modify(|count: &mut u64| *count += 1);
            }
        };
        let mut watcher = notify::recommended_watcher(changed).map_err(io::Error::other)?;
        watcher.watch(directory, RecursiveMode::NonRecursive).map_err(io::Error::other)?;
        let (turn, watcher) = (Arc::default(), Arc::new(watcher));
        let tokens = Self { directory: directory.to_owned(), changes, turn, user_of, _watcher: watcher };
        tokens.tell_of_strays()?;
        Ok(tokens)
    }

    /// Files that are no token's: those of earlier versions did not say in their name whose they are.
    fn tell_of_strays(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_stray = name
                .to_str()
                .and_then(|name| name.strip_suffix(SUFFIX))
                .is_some_and(|stem| !stem.starts_with('.') && stem.parse::<TokenId>().is_err());
            if is_stray {
                let path = entry.path();
                tracing::warn!(path = %path.display(), "this opens nothing: a token's file is UID.NAME.toml; make a new token, and remove this");
            }
        }
        Ok(())
    }

    /// Who shows this text. The same answer for a token that there is not and for a wrong secret.
    pub(super) fn bearer(&self, text: &str, now: Timestamp) -> Result<Bearer, ApiError> {
        let refused = || {
            ApiError::Unauthorized(
                "this token is not known here: it is wrong, was revoked, or has expired; `trainyard token new` makes one"
                    .to_owned(),
            )
        };
        let (id, secret) = parse(text).ok_or_else(refused)?;
        let file = self.read(&id);
        let shown: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        // Compared also where there is no token, so that time tells nothing.
        let kept = file.as_ref().ok().and_then(|file| unhex(&file.sha256)).unwrap_or_default();
        let is_same = bool::from(kept.as_slice().ct_eq(shown.as_slice()));
        let file = file.ok().filter(|_| is_same).ok_or_else(refused)?;
        if self.is_dead(&file, now).map_err(|error| unnamed(file.uid, &error))? {
            return Err(refused());
        }
        let within = file.workspaces.clone().map(Arc::new);
        let caller = Caller { within, ..Caller::named(file.uid, file.user.clone()) };
        Ok(Bearer { held: Held { id, file: Arc::new(file) }, caller })
    }

    /// Resolves when what was shown is good no longer.
    pub(super) async fn revoked(&self, held: &Held) {
        let mut changes = self.changes.clone();
        loop {
            changes.mark_unchanged();
            let now = crate::sys::now();
            let (tokens, asked) = (self.clone(), held.clone());
            let looked = tokio::task::spawn_blocking(move || tokens.is_good(&asked, now)).await;
            if !looked.unwrap_or(false) {
                return;
            }
            // Clocks may be set, and users be removed: it is looked at again at times.
            let expires = held.file.expires;
            let left = expires.map_or(LOOK_AGAIN, |at| Duration::from_millis(at.saturating_sub(now.0)));
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(left.min(LOOK_AGAIN)) => {}
            }
        }
    }

    /// Whether it is the same token still, not another one of its name, and opens.
    fn is_good(&self, held: &Held, now: Timestamp) -> bool {
        let is_same = self.read(&held.id).is_ok_and(|file| file == *held.file);
        // While the users of the machine cannot be asked for, nobody is cut off.
        is_same && !self.is_dead(&held.file, now).unwrap_or(false)
    }

    /// It has expired, or its user is gone, perhaps with another one in their number.
    fn is_dead(&self, file: &TokenFile, now: Timestamp) -> io::Result<bool> {
        let has_expired = file.expires.is_some_and(|at| now.0 >= at);
        Ok(has_expired || (self.user_of)(file.uid)? != file.user)
    }

    /// Those that there are.
    fn all(&self) -> io::Result<Vec<TokenId>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            found.extend(name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse::<TokenId>().ok()));
        }
        found.sort();
        Ok(found)
    }

    /// Those of the caller; root's are all.
    pub(super) fn list(&self, caller: &Caller) -> io::Result<Vec<TokenView>> {
        let mut found = Vec::new();
        for id in self.all()? {
            match self.read(&id) {
                Ok(file) if caller.uid == 0 || file.uid == caller.uid && file.user == caller.name => {
                    found.push(view(&id, &file));
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(token = %id, %error, "a token's file cannot be used"),
            }
        }
        Ok(found)
    }

    /// Makes a token of the user `uid`.
    pub(super) fn create(&self, wanted: &TokenRequest, uid: u32, caller: &Caller) -> Result<NewToken, ApiError> {
        let id = TokenId { uid, name: wanted.name.parse().map_err(|error| ApiError::Bad(format!("name: {error}")))? };
        let scopes = scopes_of(wanted, uid, caller)?;
        let named = |names: &Vec<String>| names.iter().map(|name| name.parse()).collect::<Result<BTreeSet<_>, _>>();
        let workspaces = wanted.workspaces.as_ref().map(named).transpose();
        let workspaces = workspaces.map_err(|error| ApiError::Bad(format!("workspaces: {error}")))?;
        let now = crate::sys::now();
        let expires = wanted.expires_in_s.map(|seconds| now.0.saturating_add(seconds.saturating_mul(1000)));
        let user = (self.user_of)(uid).map_err(|error| unnamed(uid, &error))?;
        let secret =
            random_secret().map_err(|error| ApiError::Failed(format!("the machine gives no random bytes: {error}")))?;
        let sha256 = hex(&Sha256::digest(secret.as_bytes()));
        let file = TokenFile { sha256, uid, user, scopes, workspaces, created: now.0, expires };
        self.write(&id, &file, now)?;
        tracing::info!(token = %id, uid, by = caller.name, "a token was made");
        Ok(NewToken { token: view(&id, &file), secret: text::write(&id, &secret) })
    }

    fn write(&self, id: &TokenId, file: &TokenFile, now: Timestamp) -> Result<(), ApiError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = self.forget_dead(id.uid, now);
        let count = counted.map_err(|error| ApiError::Failed(format!("cannot look at the tokens: {error}")))?;
        if count >= OF_ONE_USER {
            return Err(ApiError::Conflict(format!(
                "{} has {count} tokens, as many as a user may have; `trainyard token rm` removes one",
                file.user
            )));
        }
        let text = toml::to_string(file).map_err(|error| ApiError::Failed(error.to_string()))?;
        let path = self.path(id);
        match write_new(&path, text.as_bytes(), 0o600, Durability::Machine) {
            Ok(Existing::None) => Ok(()),
            Ok(Existing::Kept) => Err(ApiError::Conflict(format!(
                "{} has a token {} already; `trainyard token rm` removes it",
                file.user, id.name
            ))),
            Err(error) => Err(ApiError::Failed(format!("cannot write {}: {error}", path.display()))),
        }
    }

    /// Removes those of a user that can open nothing any more; tells how many are left.
    fn forget_dead(&self, uid: u32, now: Timestamp) -> io::Result<usize> {
        let mut count = 0;
        for id in self.all()?.into_iter().filter(|id| id.uid == uid) {
            match self.read(&id) {
                Ok(file) if self.is_dead(&file, now)? => {
                    remove_for_good(&self.path(&id))?;
                    tracing::info!(token = %id, user = file.user, "a token was removed: it has expired, or its user is gone");
                }
                // What cannot be read is for root to look at.
                _ => count += 1,
            }
        }
        Ok(count)
    }

    /// Revokes the token of that name of the user `uid`.
    pub(super) fn remove(&self, name: &str, uid: u32, caller: &Caller) -> Result<String, ApiError> {
        let whose = if uid == caller.uid { "of yours".to_owned() } else { format!("of user {uid}") };
        let unknown = || {
            let hint = if caller.uid == 0 { ", and --user says whose" } else { "" };
            ApiError::NotFound(format!("there is no token {name} {whose}; `trainyard token ls` lists them{hint}"))
        };
        let id = TokenId { uid, name: name.parse().map_err(|_| unknown())? };
        // What cannot be read is nobody's but root's.
        let is_own = |file: TokenFile| file.uid == caller.uid && file.user == caller.name;
        if caller.uid != 0 && !self.read(&id).is_ok_and(is_own) {
            return Err(unknown());
        }
        match remove_for_good(&self.path(&id)) {
            Ok(()) => {
                tracing::info!(token = %id, by = caller.name, "a token was revoked");
                Ok(format!("token {name}: revoked"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(unknown()),
            Err(error) => Err(ApiError::Failed(format!("cannot remove token {name}: {error}"))),
        }
    }

    fn path(&self, id: &TokenId) -> PathBuf {
        self.directory.join(format!("{id}{SUFFIX}"))
    }

    fn read(&self, id: &TokenId) -> io::Result<TokenFile> {
        let (_, bytes) = read_limited(&self.path(id), FILE_MAX)?;
        let text = String::from_utf8(bytes).map_err(io::Error::other)?;
        let file: TokenFile = toml::from_str(&text).map_err(|error| io::Error::other(error.message().to_owned()))?;
        match file.uid == id.uid {
            true => Ok(file),
            false => Err(io::Error::other(format!("its name says user {}, and it user {}", id.uid, file.uid))),
        }
    }
}

/// How long what is connected may go on until it is looked at again of itself.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

fn unnamed(uid: u32, error: &io::Error) -> ApiError {
    ApiError::Failed(format!("cannot ask who user {uid} is: {error}"))
}

/// What the caller may give a token of the user `uid`.
fn scopes_of(wanted: &TokenRequest, uid: u32, caller: &Caller) -> Result<BTreeSet<Scope>, ApiError> {
    let scopes: BTreeSet<Scope> = wanted.scopes.iter().copied().collect();
    let refusal = if caller.uid != 0 && uid != caller.uid {
        "only root may make tokens of other users"
    } else if uid != 0 && scopes.contains(&Scope::Admin) {
        "only tokens of root can have the scope admin"
    } else if caller.uid != 0 && scopes.contains(&Scope::Metrics) {
        "only root may make tokens with the scope metrics"
    } else {
        return Ok(if scopes.is_empty() { BTreeSet::from([Scope::Read]) } else { scopes });
    };
    Err(ApiError::Forbidden(refusal.to_owned()))
}

fn view(id: &TokenId, file: &TokenFile) -> TokenView {
    TokenView {
        name: id.name.to_string(),
        uid: file.uid,
        user: file.user.clone(),
        scopes: file.scopes.iter().copied().collect(),
        workspaces: file.workspaces.as_ref().map(|names| names.iter().map(ToString::to_string).collect()),
        created: Timestamp(file.created).to_string(),
        expires: file.expires.map(|at| Timestamp(at).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file::tests::was_synced;

    fn caller(uid: u32) -> Caller {
        Caller::of(uid)
    }

    fn wanted(name: &str, scopes: &[Scope]) -> TokenRequest {
        TokenRequest { name: name.to_owned(), scopes: scopes.to_vec(), ..TokenRequest::default() }
    }

    #[test]
    fn a_token_s_time_is_a_whole_number_however_that_is_written() {
        let read = |time: &str| {
            let asked = format!("{{\"name\":\"a\",\"expires_in_s\":{time}}}");
            serde_json::from_str::<TokenRequest>(&asked).map(|wanted| wanted.expires_in_s)
        };
        assert_eq!(["60", "60.0", "null"].map(|time| read(time).unwrap()), [Some(60), Some(60), None]);
        for wrong in ["-1", "0", "1.5", "1e30", "\"60\"", "3155760001"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_opens_for_its_user_until_its_file_goes_and_only_its_hash_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&dir.path().join("tokens")).unwrap();
        let made = tokens.create(&wanted("ci_1", &[Scope::Jobs]), 4_000_001, &caller(0)).unwrap();
        let path = dir.path().join("tokens/4000001.ci_1.toml");
        assert!(was_synced(&path));
        let kept = std::fs::read_to_string(&path).unwrap();
        let (_, secret) = parse(&made.secret).unwrap();
        assert!(!kept.contains(secret), "{kept}");
        let now = crate::sys::now();
        let bearer = tokens.bearer(&made.secret, now).unwrap();
        assert_eq!((bearer.caller.uid, bearer.held.id.name.as_str()), (4_000_001, "ci_1"));
        assert!(bearer.allows(Right::Read) && bearer.allows(Right::Jobs));
        assert!(!bearer.allows(Right::Admin) && !bearer.allows(Right::Metrics));
        let mut wrong = made.secret.clone();
        let last = if wrong.pop() == Some('0') { '1' } else { '0' };
        wrong.push(last);
        for bad in [wrong.as_str(), "trainyard_1.ci_1_", "trainyard_../x_00", "", "nonsense"] {
            assert!(tokens.bearer(bad, now).is_err(), "{bad}");
        }
        tokens.remove("ci_1", 4_000_001, &caller(4_000_002)).unwrap_err();
        tokens.remove("ci_1", 4_000_001, &caller(4_000_001)).unwrap();
        assert!(was_synced(&path), "a crash does not bring a revoked token back");
        assert!(tokens.bearer(&made.secret, now).is_err());
    }

    #[tokio::test]
    async fn what_is_connected_is_looked_at_when_something_changes_and_not_because_it_was_looked_at() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        static LOOKED: tokio::sync::Notify = tokio::sync::Notify::const_new();
        let looks = async |count| {
            let wait = async {
                while LOOKS.load(Ordering::Relaxed) < count {
                    LOOKED.notified().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
        };
        let dir = tempfile::tempdir().unwrap();
        let made = Tokens::open(dir.path()).unwrap().create(&wanted("ci", &[]), 4_000_009, &caller(0)).unwrap();
        let mut tokens = Tokens::open(dir.path()).unwrap();
        let held = tokens.bearer(&made.secret, crate::sys::now()).unwrap().held;
        tokens.user_of = |uid| {
            LOOKS.fetch_add(1, Ordering::Relaxed);
            LOOKED.notify_one();
            user_of(uid)
        };
        let (watched, changes) = (tokens.clone(), tokens.changes.clone());
        let revoked = tokio::spawn(async move { watched.revoked(&held).await });
        looks(1).await;
        std::fs::create_dir(dir.path().join("other")).unwrap();
        looks(2).await;
        std::fs::remove_file(dir.path().join("4000009.ci.toml")).unwrap();
        tokio::time::timeout(Duration::from_secs(60), revoked).await.unwrap().unwrap();
        assert_eq!((LOOKS.load(Ordering::Relaxed), *changes.borrow()), (2, 2));
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
    fn of_a_token_that_is_not_root_s_the_scope_admin_opens_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let rights = [Right::Read, Right::Jobs, Right::Metrics, Right::Admin];
        let allowed = |uid: u32, scopes: &str| {
            let made = tokens.create(&wanted("x", &[Scope::Read]), uid, &caller(0)).unwrap();
            let path = dir.path().join(format!("{uid}.x.toml"));
            let text = std::fs::read_to_string(&path).unwrap();
            let edited = text.replace("scopes = [\"read\"]", &format!("scopes = [{scopes}]"));
            assert!(edited.contains(scopes), "{text}");
            std::fs::write(&path, edited).unwrap();
            let bearer = tokens.bearer(&made.secret, crate::sys::now()).unwrap();
            tokens.remove("x", uid, &caller(0)).unwrap();
            rights.map(|right| bearer.allows(right))
        };
        assert_eq!(allowed(4_000_007, "\"admin\""), [false; 4]);
        assert_eq!(allowed(4_000_007, "\"jobs\", \"admin\""), [true, true, false, false]);
        assert_eq!(allowed(0, "\"admin\""), [true; 4]);
    }

    #[test]
    fn two_users_may_call_their_tokens_alike_and_each_removes_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let [first, second] =
            [4_000_007, 4_000_008].map(|uid| tokens.create(&wanted("ci", &[]), uid, &caller(uid)).unwrap().secret);
        let now = crate::sys::now();
        let uid = |secret: &str| tokens.bearer(secret, now).map(|bearer| bearer.caller.uid).ok();
        assert_eq!((uid(&first), uid(&second)), (Some(4_000_007), Some(4_000_008)));
        // The secret of one is none of the other's.
        assert_eq!(uid(&first.replace("4000007.", "4000008.")), None);
        // A file under another's name is nobody's.
        std::fs::copy(dir.path().join("4000007.ci.toml"), dir.path().join("4000008.stolen.toml")).unwrap();
        assert_eq!(uid(&first.replace("4000007.ci", "4000008.stolen")), None);
        tokens.remove("ci", 4_000_007, &caller(4_000_007)).unwrap();
        assert_eq!((uid(&first), uid(&second)), (None, Some(4_000_008)));
        tokens.remove("ci", 0, &caller(0)).unwrap_err();
        tokens.remove("ci", 4_000_008, &caller(0)).unwrap();
        assert_eq!(uid(&second), None);
    }

    #[test]
    fn a_user_has_so_many_tokens_and_those_that_open_nothing_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        for number in 0..OF_ONE_USER - 1 {
            tokens.create(&wanted(&format!("n{number}"), &[]), 4_000_007, &caller(4_000_007)).unwrap();
        }
        let short = TokenRequest { expires_in_s: Some(0), ..wanted("short", &[]) };
        tokens.create(&short, 4_000_007, &caller(4_000_007)).unwrap();
        tokens.create(&wanted("last", &[]), 4_000_007, &caller(4_000_007)).unwrap();
        assert!(!dir.path().join("4000007.short.toml").exists());
        let refused = tokens.create(&wanted("more", &[]), 4_000_007, &caller(0)).unwrap_err().to_string();
        assert!(refused.contains("user 4000007 has 100 tokens"), "{refused}");
        tokens.create(&wanted("more", &[]), 4_000_008, &caller(4_000_008)).unwrap();
    }

    #[test]
    fn who_gets_the_number_of_somebody_gets_none_of_their_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let named = |user_of| Tokens { user_of, ..Tokens::open(dir.path()).unwrap() };
        let (before, after) = (named(|_| Ok("ann".to_owned())), named(|_| Ok("bob".to_owned())));
        let silent = named(|_| Err(io::ErrorKind::TimedOut.into()));
        let [ann, bob] = ["ann", "bob"].map(|name| Caller::named(4_000_007, name.to_owned()));
        let made = before.create(&wanted("ci", &[]), ann.uid, &ann).unwrap();
        let now = crate::sys::now();
        let held = before.bearer(&made.secret, now).unwrap().held;
        assert!(before.is_good(&held, now) && silent.is_good(&held, now), "who cannot be asked for is not cut off");
        assert!(matches!(silent.bearer(&made.secret, now), Err(ApiError::Failed(_))));
        assert!(matches!(after.bearer(&made.secret, now), Err(ApiError::Unauthorized(_))));
        assert!(!after.is_good(&held, now), "what is connected is cut off");
        assert!(after.list(&bob).unwrap().is_empty());
        after.remove("ci", bob.uid, &bob).unwrap_err();
        // The name is free for whoever has the number now.
        let own = after.create(&wanted("ci", &[]), bob.uid, &bob).unwrap();
        assert_eq!(after.bearer(&own.secret, now).unwrap().caller.name, "bob");
        assert!(before.bearer(&made.secret, now).is_err());
    }

    #[tokio::test]
    async fn what_is_connected_by_a_token_ends_when_another_takes_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        let first = tokens.create(&wanted("ci", &[]), 4_000_007, &caller(0)).unwrap();
        let held = tokens.bearer(&first.secret, crate::sys::now()).unwrap().held;
        // Nobody looks between the two.
        tokens.remove("ci", 4_000_007, &caller(0)).unwrap();
        let second = tokens.create(&wanted("ci", &[]), 4_000_007, &caller(0)).unwrap();
        tokens.revoked(&held).await;
        let held = tokens.bearer(&second.secret, crate::sys::now()).unwrap().held;
        assert!(tokens.is_good(&held, crate::sys::now()));
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
}
