//! Installs what a job's code lists, and the code itself where that is a package, before its command runs: a step of the container's first process, under all that
//! holds the command.
//!
//! The tasks of all jobs that need the same share one place, and whoever has its lock installs there; the others find it
//! done. A task that is killed leaves the lock, and half an installation that the next one makes anew.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::init::Command;
use crate::rundir::Requirements;

/// Of what pip has told, so much of the end is looked at for a reason, bytes.
const ERRORS_MAX: u64 = 64 << 10;
/// Longest reason, characters.
const REASON_MAX: usize = 500;

/// pip's own words go to the task's log as they come, its errors when it has ended.
const SCRIPT: &str = r#"
list=$1 place=$2 package=$3
fail() {
    echo "ERROR: $1" >> "$place/errors"
    cat "$place/errors" >&2
    exit 1
}
rm -rf "$place/env" "$place/site"
: > "$place/errors"
python=$(command -v python3 || command -v python) || fail "the image has no Python to install them for"
for what in ${list:+"$list"} ${package:+"$package"}; do echo "trainyard: installing $what"; done
"$python" -m venv --without-pip --system-site-packages "$place/env" >> "$place/errors" 2>&1 ||
    fail "$python cannot make a virtual environment"
own=$place/env/bin/python
"$own" -m pip --version > /dev/null 2>&1 || "$own" -m ensurepip > /dev/null 2>> "$place/errors" ||
    fail "the image has no pip"
# As pip itself waits for no server that says nothing, nor does the git that it runs.
export GIT_HTTP_LOW_SPEED_LIMIT="${GIT_HTTP_LOW_SPEED_LIMIT:-1}" GIT_HTTP_LOW_SPEED_TIME="${GIT_HTTP_LOW_SPEED_TIME:-60}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore
set -- ${package:+.} ${list:+-r "$list"}
[ -z "$package" ] || cd "$package" || fail "there is no $package"
"$own" -m pip install "$@" 2>> "$place/errors" || fail "pip ended with $?"
cat "$place/errors" >&2
ln -s "$("$own" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" "$place/site" &&
    : > "$place/complete"
"#;

/// What installs them, with the environment of the task's command.
pub(super) fn installer(requirements: &Requirements, command: &Command) -> Option<Command> {
    let [list, package] = [&requirements.list, &requirements.package].map(|path| path.as_deref().unwrap_or_default());
    let words = ["/bin/sh", "-c", SCRIPT, "sh", list, &requirements.place, package];
    let args = words.into_iter().map(CString::new).collect::<Result<_, _>>().ok()?;
    let own_cache = command.env.iter().any(|entry| entry.as_bytes().starts_with(b"PIP_CACHE_DIR="));
    let cache = CString::new(format!("PIP_CACHE_DIR={}", requirements.wheels)).ok().filter(|_| !own_cache);
    Some(Command { args, env: command.env.iter().cloned().chain(cache).collect() })
}

/// Waits until nobody else installs there; whether it is still to be done. The lock goes with the processes that come of
/// this one.
pub(super) fn take_turn(requirements: &Requirements) -> io::Result<bool> {
    let place = Path::new(&requirements.place);
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(place.join("lock"))?;
    crate::sys::lock::wait_until_taken(&lock)?;
    fcntl(&lock, FcntlArg::F_SETFD(FdFlag::empty()))?;
    // Held until the last process that has it ends.
    std::mem::forget(lock);
    Ok(!place.join(Requirements::COMPLETE).is_file())
}

/// Why it has failed, as pip has told last.
pub(super) fn reason(requirements: &Requirements, end: &str) -> String {
    let told = last_error(&Path::new(&requirements.place).join("errors")).unwrap_or_else(|_| end.to_owned());
    format!("{} cannot be installed: {told}; the task's log tells more", requirements.name)
}

fn last_error(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(ERRORS_MAX)))?;
    let mut bytes = Vec::new();
    file.take(ERRORS_MAX).read_to_end(&mut bytes)?;
    chosen(&String::from_utf8_lossy(&bytes)).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The last error that names something: the script's own comes after pip's.
fn chosen(text: &str) -> Option<String> {
    let errors = || text.lines().filter_map(|line| line.trim().strip_prefix("ERROR: "));
    let of_pip = errors().rfind(|line| !line.starts_with("pip ended with "));
    let line = of_pip.or_else(|| errors().next_back())?;
    Some(line.chars().filter(|letter| !letter.is_control()).take(REASON_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_what_pip_said_last() {
        let pip = "WARNING: x\nERROR: Could not find a version that satisfies the requirement nope==1 (from versions: none)\n\
                   ERROR: No matching distribution found for nope==1\nERROR: pip ended with 1\n";
        assert_eq!(chosen(pip).as_deref(), Some("No matching distribution found for nope==1"));
        assert_eq!(chosen("ERROR: pip ended with 137").as_deref(), Some("pip ended with 137"));
        assert_eq!(chosen("nothing"), None);
    }
}
