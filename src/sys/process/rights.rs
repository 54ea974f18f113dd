//! What a process may: as which user it opens files, which of root's capabilities it keeps, and how much it is allowed.

use std::io;

/// Lifts the soft limit on open files to the hard one: each task and each open file of the mount takes some.
pub fn raise_open_files() -> io::Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Gives up what would let this process, and threads that it starts from now on, have more than a quota.
pub fn give_up_resource_override() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    sets.permitted.remove(CapabilitySet::SYS_RESOURCE);
    Ok(set_capabilities(None, sets)?)
}

/// The group that a user's processes have at first; nobody's of somebody who is not known.
pub fn primary_group_of(uid: u32) -> u32 {
    nix::unistd::User::from_uid(uid.into()).ok().flatten().map_or(65534, |user| user.gid.as_raw())
}

/// What people call a user.
pub fn name_of(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

/// Whether a group is a user's alone, as many systems give each one: their first, of their name, and nobody else is in it. That others
/// have it as their first one as well is seen of those in `/etc/passwd`: what else names users need not list them.
pub fn is_group_of_one(uid: u32, gid: u32) -> bool {
    let Ok(Some(user)) = nix::unistd::User::from_uid(uid.into()) else { return false };
    let Ok(Some(group)) = nix::unistd::Group::from_gid(gid.into()) else { return false };
    let is_own = user.gid == group.gid && user.name == group.name && has_nobody_else(&group.mem, &user.name);
    is_own && std::fs::read_to_string("/etc/passwd").is_ok_and(|users| !has_others(&users, uid, gid))
}

fn has_nobody_else(members: &[String], user: &str) -> bool {
    members.iter().all(|name| name == user)
}

/// Whether lines as those of passwd(5) have another user with that first group.
fn has_others(users: &str, uid: u32, gid: u32) -> bool {
    users.lines().any(|line| {
        let ids: Vec<Option<u32>> = line.split(':').skip(2).take(2).map(|id| id.parse().ok()).collect();
        ids.get(1) == Some(&Some(gid)) && ids.first() != Some(&Some(uid))
    })
}

/// Every group that a user is a member of; none of somebody who is not known. Where that cannot be looked up for a moment it is an
/// error: nobody is to lose what they may by it.
pub fn groups_of(uid: u32) -> io::Result<Vec<u32>> {
    use nix::errno::Errno;
    let failed = |errno: Errno| {
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("cannot look up the groups of user {uid}: {error}"))
    };
    let user = match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => user,
        // What sources of names may say of one who is not there (getpwuid(3)).
        Ok(None) | Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => return Ok(Vec::new()),
        Err(errno) => return Err(failed(errno)),
    };
    let name = std::ffi::CString::new(user.name)?;
    let groups = nix::unistd::getgrouplist(&name, user.gid).map_err(failed)?;
    Ok(groups.into_iter().map(nix::unistd::Gid::as_raw).collect())
}

/// Kinds of resource limits, by their numbers (Linux, all architectures but old ones).
const LIMITS: [&str; 16] = [
    "cpu",
    "fsize",
    "data",
    "stack",
    "core",
    "rss",
    "nproc",
    "nofile",
    "memlock",
    "as",
    "locks",
    "sigpending",
    "msgqueue",
    "nice",
    "rtprio",
    "rttime",
];

/// Takes over all resource limits of another process; raising our own needs the machine's root.
pub fn take_limits_of(pid: i32) -> io::Result<()> {
    (0..).zip(LIMITS).try_for_each(|(resource, name)| {
        let limit = limit_of(pid, resource)?;
        set_own_limit(resource, &limit).map_err(|error| {
            let why = "this machine does not let us raise it (no CAP_SYS_RESOURCE)";
            io::Error::new(error.kind(), format!("the limit {name} cannot be {}: {error}; {why}", limit.rlim_max))
        })
    })
}

#[expect(unsafe_code, reason = "neither std nor nix wraps prlimit")]
fn limit_of(pid: i32, resource: u32) -> io::Result<nix::libc::rlimit> {
    let mut limit = nix::libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: needed to read another's limits; a null new limit is allowed, the old one is ours and of the right type.
    let result = unsafe { nix::libc::prlimit(pid, resource, std::ptr::null(), &raw mut limit) };
    nix::errno::Errno::result(result)?;
    Ok(limit)
}

#[expect(unsafe_code, reason = "nix's setrlimit knows a limit by name only")]
fn set_own_limit(resource: u32, limit: &nix::libc::rlimit) -> io::Result<()> {
    // SAFETY: needed to set a limit known by number; the limit lives through the call.
    let result = unsafe { nix::libc::setrlimit(resource, limit) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

/// Runs `work` on a thread of its own that opens files with the rights of this user, as far as it is not root.
pub fn with_file_rights<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("as-owner".to_owned()).spawn_scoped(scope, || {
            if uid != 0 {
                set_own_groups(groups)?;
                // They tell nothing of a failure: asking again shows the id in force. Leaving root takes the
                // capabilities of file access from this thread.
                nix::unistd::setfsgid(gid.into());
                nix::unistd::setfsuid(uid.into());
                let in_force = nix::unistd::setfsuid(uid.into());
                if in_force.as_raw() != uid {
                    return Err(io::Error::from(io::ErrorKind::PermissionDenied));
                }
                // The others would let it through the links of /proc to what processes of other users see.
                drop_own_capabilities()?;
            }
            Ok(work())
        })?;
        thread.join().map_err(|_| io::Error::other("a thread with a user's rights panicked"))?
    })
}

/// What a process keeps of root's capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    /// To read what it may not read as its user.
    Reading,
}

/// Becomes this user for good, without further capabilities, in so much address space, and unseen by the user's other
/// processes. For processes of one thread.
pub fn become_user(uid: u32, gid: u32, groups: &[u32], memory: u64, kept: Kept) -> io::Result<()> {
    use nix::sys::resource::{Resource, setrlimit};
    use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
    setrlimit(Resource::RLIMIT_AS, memory, memory)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // Who is not root is a test's, and has nobody else to become.
    if Uid::effective().is_root() {
        setgroups(&groups)?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
    }
    let kept = match kept {
        Kept::Nothing => rustix::thread::CapabilitySet::empty(),
        Kept::Reading => rustix::thread::CapabilitySet::DAC_READ_SEARCH,
    };
    set_own_capabilities(kept)?;
    nix::sys::prctl::set_no_new_privs()?;
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Of this thread alone, and for good.
pub fn drop_own_capabilities() -> io::Result<()> {
    set_own_capabilities(rustix::thread::CapabilitySet::empty())
}

fn set_own_capabilities(kept: rustix::thread::CapabilitySet) -> io::Result<()> {
    let none = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

#[expect(unsafe_code, reason = "libc's setgroups changes every thread of the process")]
fn set_own_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: needed so that only this thread has these groups; the list lives through the call and its length is true.
    let result = unsafe { nix::libc::syscall(nix::libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the limits are those of any process")]
    fn a_limit_that_this_machine_does_not_allow_is_told_by_name() {
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(other.id()).unwrap();
        assert!(take_limits_of(pid).is_ok(), "they are the same");
        let told = std::thread::spawn(move || {
            let own = limit_of(pid, 7).unwrap();
            let less = nix::libc::rlimit { rlim_cur: own.rlim_cur.min(own.rlim_max - 1), rlim_max: own.rlim_max - 1 };
            set_own_limit(7, &less).unwrap();
            drop_own_capabilities().unwrap();
            take_limits_of(pid).unwrap_err().to_string()
        });
        let told = told.join().unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(told.starts_with("the limit nofile cannot be ") && told.contains("no CAP_SYS_RESOURCE"), "{told}");
    }

    #[test]
    fn a_group_is_a_user_s_alone_where_nobody_else_has_it() {
        let users = "ann:x:1001:1003::/home/ann:/bin/sh\nbob:x:1002:1002::/:/bin/sh\nbroken\n";
        assert!(!has_others(users, 1001, 1003) && !has_others(users, 1002, 1002) && !has_others(users, 5, 5));
        assert!(has_others(users, 1001, 1002), "it is bob's as well");
        assert!(!is_group_of_one(4_000_001, 4_000_001), "nobody is called so, whatever the numbers are");
        // As every Debian has it: a first group of their name, with nobody in it.
        let daemon = nix::unistd::User::from_name("daemon").unwrap();
        assert!(daemon.is_none_or(|daemon| is_group_of_one(daemon.uid.as_raw(), daemon.gid.as_raw())));
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(has_nobody_else(&[], "ann") && has_nobody_else(&names(&["ann"]), "ann"));
        assert!(!has_nobody_else(&names(&["ann", "bob"]), "ann"));
        let other = nix::unistd::Group::from_gid(1.into()).unwrap();
        assert!(other.is_none_or(|_| !is_group_of_one(0, 1)), "it is no first group of root's");
    }

    #[test]
    fn the_rights_of_a_user_open_no_links_of_proc() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        // The root of our parent is the same as ours, but only its owner may go through that link.
        let path = format!("/proc/{}/root/etc", nix::unistd::getppid());
        let open = || std::fs::metadata(&path);
        assert!(with_file_rights(0, 0, &[], open).unwrap().is_ok());
        let refused = with_file_rights(4321, 4321, &[], open).unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(open().is_ok(), "this thread has kept its rights");
    }
}
