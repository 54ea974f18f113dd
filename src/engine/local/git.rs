//! Code from a Git repository: one commit of it, by `git` as the job's owner. What a repository says is not trusted: only
//! http and https are spoken, no hook, filter or submodule is run, and what comes is bounded.

use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;
use std::process::Output;

use crate::engine::EngineError;
use crate::spec::{GitCode, Submodules};
use crate::store::record::Owner;
use crate::sys::file::{create_dir_for, remove_tree};
use crate::sys::process::run_tool;

/// Most bytes of a repository's files, and of what is fetched for them.
const BYTES_MAX: u64 = 4 << 30;
/// Longest time for one fetch, as `timeout` takes it.
const PATIENCE: &str = "1800";

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

/// Fetches the code into `target`, which does not exist yet; the commit that it is. `secret` is the password, where the
/// job names one.
pub(super) fn fetch(code: &GitCode, secret: Option<&str>, target: &Path, owner: Owner) -> Result<String, EngineError> {
    let told = |error: io::Error| EngineError(format!("code: cannot fetch {}: {error}", code.url));
    create_dir_for(target, 0o700, owner.uid, owner.gid).map_err(told)?;
    let login = Login::put(code, secret, target, owner).map_err(told)?;
    let git = Git { code, target, owner, login: &login };
    let commit = git.check_out();
    login.take_away().map_err(told)?;
    let commit = commit?;
    // The files are what is wanted; the repository itself is the next fetch's business.
    remove_tree(&target.join(".git")).map_err(told)?;
    Ok(commit)
}

struct Git<'a> {
    code: &'a GitCode,
    target: &'a Path,
    owner: Owner,
    login: &'a Login,
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
            Err(_) if is_commit(wanted) => {
                self.run(&["fetch", "--quiet", "--no-tags", "--", url, "+refs/*:refs/fetched/*"])?;
                wanted
            }
            Err(error) => return Err(error),
        };
        self.run(&["checkout", "--quiet", "--detach", found])?;
        if self.code.submodules == Submodules::Fetched {
            self.run(&["submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1"])?;
        }
        Ok(self.run(&["rev-parse", "HEAD"])?.trim().to_owned())
    }

    /// Runs git as the job's owner, without rights and with bounds, in the directory.
    fn run(&self, words: &[&str]) -> Result<String, EngineError> {
        let (uid, gid) = (format!("--reuid={}", self.owner.uid), format!("--regid={}", self.owner.gid));
        let directory = self.target.display().to_string();
        let bound = format!("--fsize={BYTES_MAX}");
        let helper = format!("credential.helper={}", self.login.helper());
        let mut all =
            vec!["-i", "HOME=/nonexistent", "PATH=/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"];
        all.extend(["LC_ALL=C.UTF-8", "timeout", PATIENCE]);
        all.extend(["prlimit", &bound, "setpriv", &uid, &gid, "--clear-groups", "--no-new-privs", "--inh-caps=-all"]);
        all.extend(["--bounding-set=-all", "git", "-C", &directory, "-c", "credential.helper=", "-c", &helper]);
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

    /// What git said, without what it must not say.
    fn failure(&self, output: &Output) -> EngineError {
        let said = String::from_utf8_lossy(&output.stderr);
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

/// A name that only a commit has.
fn is_commit(reference: &str) -> bool {
    matches!(reference.len(), 40 | 64) && reference.chars().all(|c| c.is_ascii_hexdigit())
}

/// User and password, in a file that git's own helper reads: never in an argument or a variable, which others could see.
struct Login {
    file: Option<std::path::PathBuf>,
    password: Option<String>,
}

impl Login {
    fn put(code: &GitCode, secret: Option<&str>, target: &Path, owner: Owner) -> io::Result<Self> {
        use std::io::Write;
        let (Some(user), Some(password)) = (&code.user, secret) else { return Ok(Self { file: None, password: None }) };
        let Some((scheme, rest)) = code.url.split_once("://") else { return Ok(Self { file: None, password: None }) };
        let host = rest.split('/').next().unwrap_or(rest);
        let path = target.with_extension("login");
        let line = format!("{scheme}://{}:{}@{host}\n", escaped(user), escaped(password));
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(line.as_bytes())?;
        // By the file itself: its directory is the owner's, who may have put a link in its place by now.
        fchown(&file, Some(owner.uid), Some(owner.gid))?;
        Ok(Self { file: Some(path), password: Some(password.to_owned()) })
    }

    fn helper(&self) -> String {
        let file = self.file.as_ref().map(|file| crate::contract::command::quote(&file.display().to_string()));
        file.map_or(String::new(), |file| format!("store --file={file}"))
    }

    fn hidden_in(&self, text: &str) -> String {
        let Some(password) = self.password.as_ref().filter(|password| !password.is_empty()) else {
            return text.to_owned();
        };
        text.replace(password.as_str(), "******").replace(&escaped(password), "******")
    }

    fn take_away(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| crate::sys::file::remove_if_there(file))
    }
}

/// As it stands in an address.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_escaped_and_never_told() {
        assert_eq!(escaped("p@ss wörd"), "p%40ss%20w%C3%B6rd");
        let login = Login { file: None, password: Some("p@ss".into()) };
        assert_eq!(login.hidden_in("bad p@ss, p%40ss"), "bad ******, ******");
        assert!(is_commit(&"a".repeat(40)) && !is_commit("main") && !is_commit(&"g".repeat(40)));
    }
}
