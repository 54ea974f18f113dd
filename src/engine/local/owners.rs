//! Whose files are whose: who a task is inside, and whom its ids stand for outside.
//!
//! The user that a task runs as stands for the job's owner, so whatever it leaves belongs to the owner. Every other id
//! stands for one of a subordinate range, which each owner has of their own; the owner's further groups follow above.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::engine::EngineError;
use crate::store::record::Owner;
use crate::sys::file::is_opaque;
use crate::sys::file::{Durability, write_whole};
use crate::sys::idmap::{IdMap, IdRange};
use crate::sys::rooted::Rooted;

/// Ids inside of a container: 0 up to this.
const INSIDE: u32 = 65_536;
/// The first subordinate id. systemd leaves 0x70000000 to 0x7ffeffff to nobody (UIDS-GIDS.md), `useradd` ends far below.
const FIRST: u32 = 0x7000_0000;
const END: u32 = 0x7ffe_0000;
/// Most further groups of an owner that are carried over: the kernel takes a map of less than a page, 4096 bytes.
const GROUPS_MAX: usize = 200;
/// Largest `/etc/passwd` or `/etc/group` of an image that is read, bytes.
const ACCOUNTS_MAX: u64 = 4 << 20;

/// Subordinate ranges by owner, in the form of `/etc/subuid`: `OWNER:FIRST:COUNT`. Written before a range is used, and
/// never taken back: files may be left that bear its ids.
#[derive(Debug)]
pub(super) struct Subordinates {
    file: PathBuf,
    ranges: Mutex<BTreeMap<u32, u32>>,
}

impl Subordinates {
    pub(super) fn open(file: PathBuf) -> io::Result<Self> {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let ranges =
            text.lines().filter_map(range_in).filter_map(|(owner, first, _)| Some((owner.parse().ok()?, first)));
        Ok(Self { ranges: Mutex::new(ranges.collect()), file })
    }

    /// The first of the owner's subordinate ids, allotted at the first asking.
    fn first_of(&self, owner: u32) -> Result<u32, EngineError> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = ranges.get(&owner) {
            return Ok(*first);
        }
        let elsewhere = taken_elsewhere();
        let free = |first: u32| {
            let end = first + INSIDE;
            let ours = ranges.values().all(|taken| end <= *taken || taken + INSIDE <= first);
            ours && elsewhere.iter().all(|(from, to)| u64::from(end) <= *from || *to <= u64::from(first))
        };
        let first = (FIRST..END).step_by(INSIDE as usize).find(|first| free(*first));
        let first =
            first.ok_or_else(|| EngineError("there are no subordinate user ids left to give to this user".into()))?;
        ranges.insert(owner, first);
        let text: String = ranges.iter().map(|(owner, first)| format!("{owner}:{first}:{INSIDE}\n")).collect();
        let written = write_whole(&self.file, text.as_bytes(), 0o644, Durability::Machine);
        if let Err(error) = written {
            ranges.remove(&owner);
            return Err(super::failed("write down the user's subordinate ids")(error));
        }
        Ok(first)
    }

    /// The user namespace of a task of `owner` that runs as `inside`.
    pub(super) fn map(&self, owner: Owner, further: &[u32], inside: &InsideUser) -> Result<IdMap, EngineError> {
        let first = self.first_of(owner.uid)?;
        let mut groups = around(inside.gid, owner.gid, first);
        groups.extend((INSIDE..).zip(further.iter().take(GROUPS_MAX)).map(|(inside, gid)| IdRange {
            inside,
            outside: *gid,
            count: 1,
        }));
        Ok(IdMap { users: around(inside.uid, owner.uid, first), groups })
    }
}

/// `id` inside stands for `owner`, every other one for the subordinate with its number.
fn around(id: u32, owner: u32, first: u32) -> Vec<IdRange> {
    let below = IdRange { inside: 0, outside: first, count: id };
    let own = IdRange { inside: id, outside: owner, count: 1 };
    let above = IdRange { inside: id + 1, outside: first + id + 1, count: INSIDE - id - 1 };
    [below, own, above].into_iter().filter(|range| range.count > 0).collect()
}

fn range_in(line: &str) -> Option<(&str, u32, u32)> {
    let mut fields = line.split(':');
    Some((fields.next()?, fields.next()?.trim().parse().ok()?, fields.next()?.trim().parse().ok()?))
}

/// What the machine's administrator has given to others.
fn taken_elsewhere() -> Vec<(u64, u64)> {
    let texts = ["/etc/subuid", "/etc/subgid"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let ranges = texts.iter().flat_map(|text| text.lines()).filter_map(range_in);
    ranges.map(|(_, first, count)| (u64::from(first), u64::from(first) + u64::from(count))).collect()
}

/// Whom a task runs as, by the image's own numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InsideUser {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Further groups that the image gives to this user.
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
}

/// The accounts of an image: `/etc/passwd` and `/etc/group`, as its layers show them.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// Reads them from layers, top first, below which they lie at `etc`.
    pub(super) fn read(layers: &[PathBuf], etc: &Path) -> io::Result<Self> {
        Ok(Self { passwd: topmost(layers, &etc.join("passwd"))?, group: topmost(layers, &etc.join("group"))? })
    }

    /// The user that `wanted` names: `NAME`, `UID`, `NAME:GROUP`, `UID:GID`; root when it is empty.
    pub(super) fn user(&self, wanted: &str) -> Result<InsideUser, EngineError> {
        let (name, group) = match wanted.split_once(':') {
            Some((name, group)) => (name, Some(group)),
            None => (wanted, None),
        };
        let name = if name.is_empty() { "0" } else { name };
        let number = name.parse::<u32>().ok();
        let is_wanted = |fields: &Fields<'_>| fields.name == name || (number.is_some() && fields.number(2) == number);
        let entry = self.passwd.lines().map(Fields::of).find(is_wanted);
        let uid = entry.as_ref().and_then(|fields| fields.number(2)).or(number);
        let uid = uid.ok_or_else(|| self.unknown("user", name))?;
        let gid = match group {
            Some(group) => self.group_id(group)?,
            None => entry.as_ref().and_then(|fields| fields.number(3)).unwrap_or(0),
        };
        if let Some(id) = [uid, gid].into_iter().find(|id| *id >= INSIDE) {
            return Err(EngineError(format!(
                "user = {wanted:?}: the id {id} is too large, a container has ids up to {}",
                INSIDE - 1
            )));
        }
        let login = entry.as_ref().map(|fields| fields.name);
        Ok(InsideUser {
            uid,
            gid,
            groups: if group.is_none() { self.groups_with(login, gid) } else { Vec::new() },
            home: entry
                .and_then(|fields| fields.text(5))
                .filter(|home| home.starts_with('/'))
                .unwrap_or("/")
                .to_owned(),
        })
    }

    fn group_id(&self, name: &str) -> Result<u32, EngineError> {
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        let entry = self.group.lines().map(Fields::of).find(|fields| fields.name == name);
        entry.and_then(|fields| fields.number(2)).ok_or_else(|| self.unknown("group", name))
    }

    fn groups_with(&self, login: Option<&str>, primary: u32) -> Vec<u32> {
        let Some(login) = login else { return Vec::new() };
        let member = |fields: &Fields<'_>| fields.text(3).unwrap_or_default().split(',').any(|name| name == login);
        let groups = self.group.lines().map(Fields::of).filter(member).filter_map(|fields| fields.number(2));
        groups.filter(|gid| *gid != primary && *gid < INSIDE).collect()
    }

    fn unknown(&self, what: &str, name: &str) -> EngineError {
        let (file, content) = if what == "user" { ("/etc/passwd", &self.passwd) } else { ("/etc/group", &self.group) };
        let why = if content.is_empty() { "has no" } else { "does not name it in" };
        EngineError(format!("user: the image {why} {file}, so {what} {name:?} cannot be found; write its number"))
    }
}

/// One line of an accounts file.
struct Fields<'a> {
    name: &'a str,
    all: Vec<&'a str>,
}

impl<'a> Fields<'a> {
    fn of(line: &'a str) -> Self {
        let all: Vec<&str> = line.split(':').collect();
        Self { name: all.first().copied().unwrap_or_default(), all }
    }

    fn text(&self, at: usize) -> Option<&'a str> {
        self.all.get(at).copied()
    }

    fn number(&self, at: usize) -> Option<u32> {
        self.text(at)?.parse().ok()
    }
}

fn topmost(layers: &[PathBuf], path: &Path) -> io::Result<String> {
    let content = topmost_file(layers, path, ACCOUNTS_MAX)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// What the regular file at `path`, beneath the root, holds, up to `limit` bytes, as layers show it, top first; links are followed within
/// a layer alone.
pub(super) fn topmost_file(layers: &[PathBuf], path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    for files in layers {
        let layer = Rooted::open(files)?;
        if let Some(content) = layer.read(path, limit)? {
            return Ok(Some(content));
        }
        let mut above = path.ancestors().skip(1);
        if path.ancestors().any(|part| layer.is_white_out(part))
            || above.any(|part| is_opaque(&files.join(part)).unwrap_or(false))
        {
            break;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::idmap::outside;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0::/root:/bin/sh\nada:x:1000:1001::/home/ada:/bin/sh\n1000:x:7:7::/odd:\n".into(),
            group: "root:x:0:\nvideo:x:44:ada,bob\nstaff:x:50:\nbig:x:70000:ada\n".into(),
        }
    }

    #[test]
    fn users_are_found_by_name_number_and_group() {
        let found = |wanted: &str| accounts().user(wanted).map(|user| (user.uid, user.gid, user.groups, user.home));
        assert_eq!(found("").unwrap(), (0, 0, vec![], "/root".into()));
        assert_eq!(found("ada").unwrap(), (1000, 1001, vec![44], "/home/ada".into()));
        assert_eq!(found("ada:staff").unwrap(), (1000, 50, vec![], "/home/ada".into()));
        assert_eq!(found("4242").unwrap(), (4242, 0, vec![], "/".into()));
        assert_eq!(found("4242:7").unwrap(), (4242, 7, vec![], "/".into()));
        for (wanted, word) in [("bob", "bob"), ("ada:nobody", "/etc/group"), ("70000", "too large")] {
            assert!(found(wanted).unwrap_err().0.contains(word));
        }
        assert!(Accounts::default().user("ada").unwrap_err().0.contains("has no /etc/passwd"));
    }

    #[test]
    fn accounts_of_a_directory_that_is_hidden_are_nobody_s() {
        let dir = tempfile::tempdir().unwrap();
        let layers = ["upper", "lower"].map(|name| dir.path().join(name));
        for layer in &layers {
            fs::create_dir_all(layer.join("etc")).unwrap();
        }
        fs::write(layers[1].join("etc/passwd"), "ada:x:1000:1000::/:\n").unwrap();
        assert!(topmost(&layers, Path::new("etc/passwd")).unwrap().starts_with("ada"));
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(layers[0].join("etc"), "trusted.overlay.opaque", b"y", none).unwrap();
        assert_eq!(topmost(&layers, Path::new("etc/passwd")).unwrap(), "");
    }

    #[test]
    fn a_map_of_many_groups_fits_the_kernel_s_page() {
        let dir = tempfile::tempdir().unwrap();
        let subordinates = Subordinates::open(dir.path().join("subordinate-ids")).unwrap();
        let inside = InsideUser { uid: 1000, gid: 1000, groups: vec![], home: "/".into() };
        let further: Vec<u32> = (0..1000).map(|number| u32::MAX - 1 - number).collect();
        let map = subordinates.map(Owner { uid: 1, gid: 1 }, &further, &inside).unwrap();
        let lines = map.groups.iter().map(|range| format!("{} {} {}\n", range.inside, range.outside, range.count));
        assert!(lines.map(|line| line.len()).sum::<usize>() < 4096);
        assert_eq!(map.groups.len(), 203);
    }

    #[test]
    fn the_running_user_stands_for_the_owner_and_nobody_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("subordinate-ids");
        let inside = |uid| InsideUser { uid, gid: 5, groups: vec![], home: "/".into() };
        let owner = Owner { uid: 1234, gid: 1235 };
        let mut firsts = Vec::new();
        for uid in [0, 1, 1000, 65_535] {
            let map = Subordinates::open(file.clone()).unwrap().map(owner, &[88, 99], &inside(uid)).unwrap();
            assert_eq!(outside(&map.users, uid), Some(1234));
            assert_eq!(outside(&map.groups, 5), Some(1235));
            assert_eq!((outside(&map.groups, 65_536), outside(&map.groups, 65_537)), (Some(88), Some(99)));
            let all: Vec<u32> = (0..INSIDE).filter_map(|id| outside(&map.users, id)).collect();
            assert_eq!(all.len(), INSIDE as usize, "every id stands for one");
            assert_eq!(all.iter().filter(|id| **id == 1234).count(), 1);
            firsts.push(outside(&map.users, 7));
        }
        firsts.dedup();
        assert_eq!(firsts.len(), 1, "the range of an owner stays, also after a restart");
        let other = Subordinates::open(file).unwrap().map(Owner { uid: 5, gid: 5 }, &[], &inside(0)).unwrap();
        assert!(!firsts.contains(&outside(&other.users, 7)), "another owner has another");
    }
}
