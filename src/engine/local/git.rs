//! Code from a Git repository: one commit of it, by `git` as the job's owner. What a repository says is not trusted: only
//! http and https are spoken, no hook, filter or submodule is run, and what comes is bounded.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::engine::EngineError;
use crate::ids::{Bytes, escape_in_address};
use crate::spec::{GitCode, Submodules};
use crate::store::record::Owner;
use crate::sys::file::{create_dir_for, remove_tree};
use crate::sys::process::run_tool;

/// Most bytes of one file, and so of what is fetched at once.
const BYTES_MAX: u64 = 4 << 30;
/// Most bytes of the files of a commit, and most files.
const SUM_MAX: u64 = 8 << 30;
const FILES_MAX: u64 = 1_000_000;
/// Longest time for all of it.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Most bytes of what git says that are read.
const SAID_MAX: u64 = 64 << 10;

/// What git is never to do, whatever the repository or the machine's configuration says.
const SAFE: [&str; 9] = [
    "protocol.allow=never",
    "protocol.http.allow=always",
    "protocol.https.allow=always",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=true",
    "filter.lfs.required=false",
    "transfer.fsckObjects=true",
    "advice.detachedHead=false",
];

/// Where git sees the place in its own mount namespace: the daemon's directories are closed to those that it runs as.
const SEEN_AT: &str = "/mnt";

/// Fetches the code into `place/code`; the commit that it is. `secret` is the password, where the job names one.
pub(super) fn fetch(code: &GitCode, secret: Option<&str>, place: &Path, owner: Owner) -> Result<String, EngineError> {
    let told = |error: io::Error| EngineError(format!("code: cannot fetch {}: {error}", code.url));
    create_dir_for(&place.join("code"), 0o700, owner.uid, owner.gid).map_err(told)?;
    let login = Login::put(code, secret, place, owner).map_err(told)?;
    let git = Git { code, place, owner, login: &login, until: Instant::now() + PATIENCE };
    let commit = git.check_out()?;
    // The files are what is wanted; the repository itself is the next fetch's business.
    remove_tree(&place.join("code/.git")).map_err(told)?;
    Ok(commit)
}

struct Git<'a> {
    code: &'a GitCode,
    place: &'a Path,
    owner: Owner,
    login: &'a Login,
    /// By when all of it must be done.
    until: Instant,
}

impl Git<'_> {
    fn check_out(&self) -> Result<String, EngineError> {
        let wanted = self.code.reference.as_deref().unwrap_or("HEAD");
        let url = self.code.url.as_str();
        self.run(&["init", "--quiet", "."])?;
        let shallow = self.run(&["fetch", "--quiet", "--no-tags", "--depth", "1", "--", url, wanted]);
        let found = match shallow {
            Ok(_) => "FETCH_HEAD",
            // Some servers hand out no single commit, some no part of a history: then all of it, and the commit out of that.
            Err(error) if is_commit(wanted) && is_refused_alone(&error) => {
                self.run(&["fetch", "--quiet", "--no-tags", "--", url, "+refs/*:refs/fetched/*"])?;
                wanted
            }
            Err(error) => return Err(error),
        };
        self.measure(found)?;
        self.run(&["checkout", "--quiet", "--detach", found])?;
        if self.code.submodules == Submodules::Fetched {
            self.run(&["submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1"])?;
        }
        Ok(self.run(&["rev-parse", "HEAD"])?.trim().to_owned())
    }

    /// A few kilobytes can name more files than a disk holds: they are counted, as far as it takes, before there are any.
    fn measure(&self, commit: &str) -> Result<(), EngineError> {
        let count = format!(
            "awk '{{ size += $4; files += 1 }} files > {FILES_MAX} || size > {SUM_MAX} {{ print \"over\"; exit }}'"
        );
        match self.piped(&["ls-tree", "-r", "-l", commit], &count)?.trim() {
            "" => Ok(()),
            _ => Err(EngineError(format!(
                "code: {commit} of {} has more than {FILES_MAX} files, or than {} in them; data belongs into datasets/",
                self.code.url,
                Bytes(SUM_MAX)
            ))),
        }
    }

    fn run(&self, words: &[&str]) -> Result<String, EngineError> {
        self.git(words, "exec \"$@\" 2> /mnt/said")
    }

    /// What becomes of what git says when `filter`, a command of a shell, reads it.
    fn piped(&self, words: &[&str], filter: &str) -> Result<String, EngineError> {
        self.git(words, &format!("\"$@\" 2> /mnt/said | {filter}"))
    }

    /// Runs git as the job's owner, without rights and with bounds, in the directory.
    fn git(&self, words: &[&str], how: &str) -> Result<String, EngineError> {
        let script = format!("mount --bind \"$1\" \"$2\" && shift 2 && {how}");
        let (uid, gid) = (format!("--reuid={}", self.owner.uid), format!("--regid={}", self.owner.gid));
        let (place, directory) = (self.place.display().to_string(), format!("{SEEN_AT}/code"));
        let bound = format!("--fsize={BYTES_MAX}");
        let left = self.until.saturating_duration_since(Instant::now()).as_secs().max(1).to_string();
        let helper = format!("credential.helper={}", self.login.helper());
        let mut all = vec![
            "-i",
            "HOME=/nonexistent",
            "PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin",
            "GIT_CONFIG_NOSYSTEM=1",
        ];
        all.extend(["GIT_TERMINAL_PROMPT=0", "LC_ALL=C.UTF-8", "unshare", "--mount", "--propagation", "private", "--"]);
        all.extend(["sh", "-c", &script, "sh", &place, SEEN_AT]);
        all.extend(["timeout", &left, "prlimit", &bound, "setpriv", &uid, &gid, "--clear-groups", "--no-new-privs"]);
        all.extend(["--inh-caps=-all", "--bounding-set=-all", "git", "-C", &directory]);
        all.extend(["-c", "credential.helper=", "-c", &helper]);
        let safe: Vec<&str> = SAFE.iter().flat_map(|setting| ["-c", setting]).collect();
        all.extend(safe);
        all.extend(words);
        let output =
            run_tool("env", &all, "").map_err(|error| EngineError(format!("code: cannot run git: {error}")))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(self.failure(&output)),
        }
    }

    /// What went to standard error, of which a server may send as much as it likes.
    fn said(&self, output: &Output) -> String {
        let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
        if let Ok(file) = fs::File::open(self.place.join("said")) {
            let mut bytes = Vec::new();
            // What cannot be read is not told.
            let _ = file.take(SAID_MAX).read_to_end(&mut bytes);
            said.push_str(&String::from_utf8_lossy(&bytes));
        }
        said
    }

    /// What git said, without what it must not say.
    fn failure(&self, output: &Output) -> EngineError {
        let said = self.said(output);
        let said = self.login.hidden_in(said.trim());
        let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("hint:")).collect();
        let last = lines.last().copied().unwrap_or("no reason given");
        let hint = match last {
            _ if output.status.code() == Some(124) => "; it took too long",
            _ if said.contains("could not read Username") || said.contains("Authentication failed") => {
                "; name `user` and `password = \"secret:NAME\"` in `code`"
            }
            _ if said.contains("couldn't find remote ref") => "; `ref` is a branch, a tag or a whole commit",
            _ if said.contains("File size limit") || said.contains("signal 25") => "; it is larger than 4GiB",
            _ if output.status.code() == Some(127) => "; is git installed on this machine?",
            _ => "",
        };
        EngineError(format!("code: git could not fetch {}: {last}{hint}", self.code.url))
    }
}

/// The server hands out branches and tags only.
fn is_refused_alone(error: &EngineError) -> bool {
    ["not our ref", "unadvertised object", "shallow"].iter().any(|words| error.to_string().contains(words))
}

/// A name that only a commit has.
fn is_commit(reference: &str) -> bool {
    matches!(reference.len(), 40 | 64) && reference.chars().all(|c| c.is_ascii_hexdigit())
}

/// User and password, in a file that git's own helper reads: never in an argument or a variable, which others could see.
struct Login {
    is_there: bool,
    password: Option<String>,
}

impl Login {
    fn put(code: &GitCode, secret: Option<&str>, place: &Path, owner: Owner) -> io::Result<Self> {
        let (Some(user), Some(password)) = (&code.user, secret) else {
            return Ok(Self { is_there: false, password: None });
        };
        let Some((scheme, rest)) = code.url.split_once("://") else {
            return Ok(Self { is_there: false, password: None });
        };
        let host = rest.split('/').next().unwrap_or(rest);
        let path = place.join("login");
        let line = format!("{scheme}://{}:{}@{host}\n", escape_in_address(user), escape_in_address(password));
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(line.as_bytes())?;
        fchown(&file, Some(owner.uid), Some(owner.gid))?;
        Ok(Self { is_there: true, password: Some(password.to_owned()) })
    }

    fn helper(&self) -> String {
        if self.is_there { format!("store --file={SEEN_AT}/login") } else { String::new() }
    }

    fn hidden_in(&self, text: &str) -> String {
        let Some(password) = self.password.as_ref().filter(|password| !password.is_empty()) else {
            return text.to_owned();
        };
        text.replace(password.as_str(), "******").replace(&escape_in_address(password), "******")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_escaped_and_never_told() {
        assert_eq!(escape_in_address("p@ss wörd"), "p%40ss%20w%C3%B6rd");
        let login = Login { is_there: true, password: Some("p@ss".into()) };
        assert_eq!(login.hidden_in("bad p@ss, p%40ss"), "bad ******, ******");
        assert!(is_commit(&"a".repeat(40)) && !is_commit("main") && !is_commit(&"g".repeat(40)));
    }
}
