//! Code from a Git repository: one commit of it, by `git` as the job's owner. What a repository says is not trusted: only
//! http and https are spoken, no hook or filter is run, and what comes is bounded, submodules that the job wants included.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::failed;
use crate::engine::EngineError;
use crate::ids::{Bytes, escape_in_address};
use crate::spec::{GitCode, Submodules};
use crate::store::record::Owner;
use crate::sys::file::{create_dir_for, remove_tree};
use crate::sys::given_up::GivenUp;
use crate::sys::process::{PidFd, run_tool_in_group};

/// Most bytes of one file, and so of what is fetched at once.
const BYTES_MAX: u64 = 4 << 30;
/// Most bytes of the files that are checked out, and most files; as many bytes may be fetched for them.
const SUM_MAX: u64 = 8 << 30;
const FILES_MAX: u64 = 1_000_000;
/// Most submodules, at whatever depth: one that has itself as its submodule would go on and on.
const SUBMODULES_MAX: usize = 1000;
/// Most bytes of the file in which a repository names its submodules: git and we read it whole.
const GITMODULES_MAX: u64 = 1 << 20;
/// Longest time for all of it.
const PATIENCE: Duration = Duration::from_secs(1800);
/// From a server that sends nothing for so long nothing is waited for, seconds.
const SILENCE: u64 = 60;
/// Most bytes of what git says that are read.
const SAID_MAX: u64 = 64 << 10;

/// What git is never to do, whatever the repository or the machine's configuration says.
const SAFE: [&str; 11] = [
    "protocol.allow=never",
    "protocol.http.allow=always",
    "protocol.https.allow=always",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=true",
    "filter.lfs.required=false",
    "transfer.fsckObjects=true",
    "advice.detachedHead=false",
    // It would go on by itself when all the rest has ended.
    "maintenance.auto=false",
    "gc.auto=0",
];

/// Where git sees the place in its own mount namespace: the daemon's directories are closed to those that it runs as.
const SEEN_AT: &str = "/mnt";
const SEEN_CODE: &str = "/mnt/code";
/// How a program is run whose complaints are wanted where it fails.
const QUIETLY: &str = "exec \"$@\" 2> /mnt/said";

/// Fetches the code into `place/code`; the commit that it is. `secret` is the password, where the job names one.
pub(super) fn fetch(
    code: &GitCode,
    secret: Option<&str>,
    place: &Path,
    owner: Owner,
    given_up: &GivenUp,
) -> Result<String, EngineError> {
    let told = |error: io::Error| EngineError(format!("code: cannot fetch {}: {error}", code.url));
    create_dir_for(&place.join("code"), 0o700, owner.uid, owner.gid).map_err(told)?;
    let login = Login::put(code, secret, place, owner).map_err(told)?;
    let git = Git { code, place, owner, login: &login, until: Instant::now() + PATIENCE, given_up };
    let commit = git.check_out()?;
    // The files are what is wanted; the repository itself is the next fetch's business.
    remove_tree(&place.join("code/.git")).map_err(told)?;
    if code.submodules == Submodules::Fetched {
        // As the owner: what a repository brings may be links to anywhere.
        git.as_owner(&["find", SEEN_CODE, "-name", ".git", "-prune", "-exec", "rm", "-rf", "{}", "+"], QUIETLY)?;
    }
    Ok(commit)
}

/// What has been checked out so far.
#[derive(Default)]
struct Sum {
    files: u64,
    bytes: u64,
    submodules: usize,
}

struct Git<'a> {
    code: &'a GitCode,
    place: &'a Path,
    owner: Owner,
    login: &'a Login,
    /// By when all of it must be done.
    until: Instant,
    /// Then it is ended, whatever it is about.
    given_up: &'a GivenUp,
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
        let mut sum = Sum::default();
        self.measure("", found, &mut sum)?;
        self.run(&["checkout", "--quiet", "--detach", found])?;
        if self.code.submodules == Submodules::Fetched {
            // What a submodule's address is relative to.
            self.run(&["config", "remote.origin.url", url])?;
            self.check_out_submodules(&mut sum)?;
        }
        Ok(self.run(&["rev-parse", "HEAD"])?.trim().to_owned())
    }

    /// One after another, so that each is measured before there are files of it.
    fn check_out_submodules(&self, sum: &mut Sum) -> Result<(), EngineError> {
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            let links = self.links(&directory)?;
            if !links.is_empty() {
                self.bounded(links.len())?;
                self.measure_gitmodules(&directory)?;
                self.keep_from_checking_out(&directory)?;
            }
            for (commit, path) in links {
                let whole = if directory.is_empty() { path.clone() } else { format!("{directory}/{path}") };
                if self.fetch_submodule(&directory, &path, &whole, sum)? {
                    self.measure(&whole, &commit, sum)?;
                    self.run_in(&whole, &["checkout", "--quiet", "--detach", &commit])?;
                    directories.push(whole);
                }
            }
        }
        Ok(())
    }

    /// Commits and paths of a repository's submodules.
    fn links(&self, directory: &str) -> Result<Vec<(String, String)>, EngineError> {
        let bytes = SAID_MAX * 16;
        // `-a`, since grep takes what is no UTF-8 for binary, and would leave it out without failing.
        let filter = format!("grep -az '^160000 ' | head -c {bytes}");
        let listed = self.git_in(directory, &["ls-tree", "-r", "-z", "HEAD"], &filtered(&filter, SEEN_AT))?;
        if listed.len() as u64 >= bytes {
            return Err(self.too_much(&format!("submodules with more than {} of names", Bytes(bytes))));
        }
        let link = |entry: &str| {
            let (about, path) = entry.split_once('\t')?;
            Some((about.split(' ').nth(2)?.to_owned(), path.to_owned()))
        };
        Ok(listed.split('\0').filter_map(link).collect())
    }

    fn measure_gitmodules(&self, directory: &str) -> Result<(), EngineError> {
        let listed = self.run_in(directory, &["ls-tree", "-l", "HEAD", "--", ".gitmodules"])?;
        let size = listed.split_whitespace().nth(3).and_then(|size| size.parse().ok()).unwrap_or(0);
        if size <= GITMODULES_MAX {
            return Ok(());
        }
        let file = Path::new(directory).join(".gitmodules");
        Err(EngineError(format!(
            "code: {} has a {} of {}, and {} at most are read: make it smaller, or leave out `submodules`",
            self.code.url,
            file.display(),
            Bytes(size),
            Bytes(GITMODULES_MAX)
        )))
    }

    /// Has git only fetch a repository's submodules when it updates them.
    fn keep_from_checking_out(&self, directory: &str) -> Result<(), EngineError> {
        self.run_in(directory, &["submodule", "--quiet", "init"])?;
        let listed = |key: &str| {
            // Without an entry git says so by its status.
            let keys = ["config", "-z", "--get-regexp", &format!(r"^submodule\..*\.{key}$")];
            self.git_in(directory, &keys, "\"$@\" 2> /mnt/said || [ $? -eq 1 ]")
        };
        let (urls, updates) = (listed("url")?, listed("update")?);
        // What the repository itself wants to be left alone is.
        let left: Vec<&str> = updates.split('\0').filter_map(|entry| entry.strip_suffix(".update\nnone")).collect();
        let names = urls.split('\0').filter_map(|entry| entry.split_once('\n')?.0.strip_suffix(".url"));
        let names: Vec<&str> = names.filter(|name| !left.contains(name)).collect();
        self.bounded(names.len())?;
        for name in names {
            self.run_in(directory, &["config", &format!("{name}.update"), "!true"])?;
        }
        Ok(())
    }

    /// Whether there is one now: what the repository wants to be left alone is not fetched.
    fn fetch_submodule(&self, directory: &str, path: &str, whole: &str, sum: &mut Sum) -> Result<bool, EngineError> {
        sum.submodules += 1;
        self.bounded(sum.submodules)?;
        self.run_in(directory, &["submodule", "--quiet", "update", "--depth", "1", "--", path])?;
        let most = SUM_MAX >> 10;
        let count = format!("du -sk {SEEN_CODE}/.git | awk '$1 > {most} {{ print \"over\" }}'");
        if !self.as_owner(&["sh", "-c", &count], QUIETLY)?.is_empty() {
            return Err(self.too_much(&format!("more than {} to fetch", Bytes(SUM_MAX))));
        }
        Ok(self.place.join("code").join(whole).join(".git").symlink_metadata().is_ok())
    }

    fn bounded(&self, submodules: usize) -> Result<(), EngineError> {
        match submodules > SUBMODULES_MAX {
            true => Err(self.too_much(&format!("more than {SUBMODULES_MAX} submodules"))),
            false => Ok(()),
        }
    }

    fn too_much(&self, what: &str) -> EngineError {
        EngineError(format!("code: {} has {what}; data belongs into datasets/", self.code.url))
    }

    /// A few kilobytes can name more files than a disk holds: they are counted, as far as it takes, before there are any.
    fn measure(&self, directory: &str, commit: &str, sum: &mut Sum) -> Result<(), EngineError> {
        let (files, bytes) = (FILES_MAX - sum.files, SUM_MAX - sum.bytes);
        let count = format!(
            "awk '{{ size += $4; files += 1 }} files > {files} || size > {bytes} {{ exit }} END {{ printf \"%.0f %.0f\", files, size }}'"
        );
        let counted = self.git_in(directory, &["ls-tree", "-r", "-l", commit], &filtered(&count, SEEN_AT))?;
        let mut counted = counted.split(' ').map_while(|number| number.trim().parse::<u64>().ok());
        let (Some(more), Some(size)) = (counted.next(), counted.next()) else {
            return Err(EngineError(format!("code: cannot count the files of {commit} of {}", self.code.url)));
        };
        if more > files || size > bytes {
            let what = format!("more than {FILES_MAX} files, or than {} in them", Bytes(SUM_MAX));
            return Err(self.too_much(&match directory {
                "" => format!("{what} at {commit}"),
                _ => format!("{what} with its submodule {directory} at {commit}"),
            }));
        }
        (sum.files, sum.bytes) = (sum.files + more, sum.bytes + size);
        Ok(())
    }

    fn run(&self, words: &[&str]) -> Result<String, EngineError> {
        self.run_in("", words)
    }

    fn run_in(&self, directory: &str, words: &[&str]) -> Result<String, EngineError> {
        self.git_in(directory, words, QUIETLY)
    }

    /// Runs git in a directory of the code.
    fn git_in(&self, directory: &str, words: &[&str], how: &str) -> Result<String, EngineError> {
        let directory = format!("{SEEN_CODE}/{directory}");
        let helper = format!("credential.helper={}", self.login.helper());
        let mut all = vec!["git", "--literal-pathspecs", "-C", &directory, "-c", "credential.helper=", "-c", &helper];
        all.extend(SAFE.iter().flat_map(|setting| ["-c", setting]));
        all.extend(words);
        self.as_owner(&all, how)
    }

    /// Runs a program as the job's owner, without rights and with bounds.
    fn as_owner(&self, program: &[&str], how: &str) -> Result<String, EngineError> {
        let script = format!("mount --bind \"$1\" \"$2\" && shift 2 && {how}");
        let (uid, gid) = (format!("--reuid={}", self.owner.uid), format!("--regid={}", self.owner.gid));
        let place = self.place.display().to_string();
        let bound = format!("--fsize={BYTES_MAX}");
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(EngineError(format!("code: git could not fetch {}: it took too long", self.code.url)));
        }
        let (left, silence) = (left.as_secs().max(1).to_string(), format!("GIT_HTTP_LOW_SPEED_TIME={SILENCE}"));
        let mut all = vec![
            "-i",
            "HOME=/nonexistent",
            "PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin",
            "GIT_CONFIG_NOSYSTEM=1",
        ];
        all.extend(["GIT_HTTP_LOW_SPEED_LIMIT=1", &silence]);
        all.extend(["GIT_TERMINAL_PROMPT=0", "LC_ALL=C.UTF-8", "unshare", "--mount", "--propagation", "private", "--"]);
        all.extend(["sh", "-c", &script, "sh", &place, SEEN_AT]);
        // In the foreground: in the group of all that is ended together.
        all.extend([
            "timeout",
            "--foreground",
            "--kill-after=10",
            &left,
            "prlimit",
            &bound,
            "setpriv",
            &uid,
            &gid,
            "--clear-groups",
            "--no-new-privs",
        ]);
        all.extend(["--inh-caps=-all", "--bounding-set=-all"]);
        all.extend(program);
        let output = self.run_wanted(&all).map_err(|error| EngineError(format!("code: cannot run git: {error}")))?;
        self.given_up.check().map_err(failed("fetch the code"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(self.failure(&output)),
        }
    }

    /// As long as somebody wants it.
    fn run_wanted(&self, arguments: &[&str]) -> io::Result<Output> {
        let ending = Mutex::new(None);
        let begun = |process: Arc<PidFd>| {
            // It has ended where that fails.
            let end = move || drop(process.signal(Signal::SIGKILL));
            *ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.given_up.ending(end));
        };
        run_tool_in_group("env", arguments, &begun)
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
            // By timeout's word, or killed after it.
            _ if output.status.code() == Some(124) || self.until <= Instant::now() => "; it took too long",
            _ if said.contains("Operation too slow") => "; the server sends nothing",
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

/// What becomes of what a program says when `filter`, a command of a shell, reads it. A pipe would lose that the program has failed, so
/// its status is kept in `place`; that of SIGPIPE says that the filter has read enough.
fn filtered(filter: &str, place: &str) -> String {
    let kept = format!("{{ \"$@\" 2> {place}/said; echo $? > {place}/ended; }}");
    format!("{kept} | {filter} && read ended < {place}/ended && case $ended in 0 | 141) ;; *) exit $ended ;; esac")
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
    use crate::sys::process::run_tool;

    #[test]
    fn a_login_is_escaped_and_never_told() {
        assert_eq!(escape_in_address("p@ss wörd"), "p%40ss%20w%C3%B6rd");
        let login = Login { is_there: true, password: Some("p@ss".into()) };
        assert_eq!(login.hidden_in("bad p@ss, p%40ss"), "bad ******, ******");
        assert!(is_commit(&"a".repeat(40)) && !is_commit("main") && !is_commit(&"g".repeat(40)));
    }

    #[test]
    fn a_program_that_fails_before_a_filter_has_failed() {
        let place = tempfile::tempdir().unwrap();
        let run = |program: &str, filter: &str| {
            let script = filtered(filter, place.path().to_str().unwrap());
            let output = run_tool("sh", &["-c", &script, "sh", "sh", "-c", program], "").unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        assert_eq!(run("echo a", "cat"), (Some(0), "a\n".to_owned()));
        assert_eq!(run("while echo a; do :; done", "head -n 1"), (Some(0), "a\n".to_owned()), "the filter had enough");
        assert_eq!(run("echo a; exit 3", "cat").0, Some(3));
        assert_eq!(run("echo a; kill -9 $$", "cat").0, Some(137));
        assert_eq!(run("echo a", "false").0, Some(1));
    }
}
