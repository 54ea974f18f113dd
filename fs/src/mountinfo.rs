//! Which mount lies on top at a path, read from `/proc/thread-self/mountinfo` without touching the mount itself.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mount of this process's mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountRow {
    id: u64,
    parent: u64,
    /// Device number as the kernel writes it, such as `0:53`; its own for each FUSE mount.
    pub device: String,
    pub mountpoint: PathBuf,
    pub fs_type: OsString,
    pub source: OsString,
}

/// The uppermost mount at exactly `mountpoint`, which must be canonical.
pub(crate) fn top_at(mountpoint: &Path) -> io::Result<Option<MountRow>> {
    let text = fs::read("/proc/thread-self/mountinfo")?;
    Ok(uppermost(parse(&text), mountpoint))
}

/// Whether a mount of this device is at exactly `mountpoint`, be it below others: copies of it elsewhere do not stand for it.
pub(crate) fn has(device: &str, mountpoint: &Path) -> io::Result<bool> {
    Ok(is_among(&parse(&fs::read("/proc/thread-self/mountinfo")?), device, mountpoint))
}

fn is_among(rows: &[MountRow], device: &str, mountpoint: &Path) -> bool {
    rows.iter().any(|row| row.device == device && row.mountpoint == mountpoint)
}

/// Mounts at one place are stacked: each is the parent of the next.
fn uppermost(rows: Vec<MountRow>, mountpoint: &Path) -> Option<MountRow> {
    let here: Vec<_> = rows.into_iter().filter(|row| row.mountpoint == mountpoint).collect();
    let covered = |row: &MountRow| here.iter().any(|other| other.parent == row.id);
    here.iter().find(|row| !covered(row)).cloned()
}

/// Lines that are not understood are left out.
fn parse(text: &[u8]) -> Vec<MountRow> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

/// `id parent device root mountpoint options [optional…] - type source super-options`
fn parse_line(line: &[u8]) -> Option<MountRow> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let mountpoint = PathBuf::from(unescape(fields.nth(1)?));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = unescape(rest.next()?);
    let source = unescape(rest.next()?);
    Some(MountRow { id, parent, device, mountpoint, fs_type, source })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// The kernel writes blanks, tabs, newlines and backslashes as `\` and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        match (first, after.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digits = OsStr::from_bytes(digits).to_str()?;
    u8::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"22 1 8:1 / / rw - ext4 /dev/vda rw\n\
        30 22 0:40 / /srv/a\\040b rw,nosuid shared:5 - fuse my\\134name rw,user_id=0\n\
        31 30 0:41 / /srv/a\\040b rw - tmpfs tmpfs rw\nnonsense\n";

    #[test]
    fn reads_escaped_names_and_skips_optional_fields() {
        let rows = parse(TEXT);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1].mountpoint, Path::new("/srv/a b"));
        assert_eq!(rows[1].fs_type, "fuse");
        assert_eq!(rows[1].source, "my\\name");
        assert_eq!(rows[1].device, "0:40");
    }

    #[test]
    fn a_mount_is_known_at_its_place_alone_also_below_another() {
        let rows = parse(TEXT);
        let has = |device: &str, place: &str| is_among(&rows, device, Path::new(place));
        assert_eq!([has("0:40", "/srv/a b"), has("0:41", "/srv/a b")], [true, true]);
        assert_eq!([has("0:40", "/"), has("8:1", "/srv/a b"), has("8:1", "/")], [false, false, true]);
    }

    #[test]
    fn the_uppermost_of_stacked_mounts_is_the_one_that_covers() {
        let top = |text: &[u8], at: &str| uppermost(parse(text), Path::new(at));
        assert_eq!(top(TEXT, "/srv/a b").unwrap().device, "0:41");
        assert_eq!(top(TEXT, "/srv"), None);
        let mut lines: Vec<_> = TEXT.split_inclusive(|byte| *byte == b'\n').collect();
        lines.swap(1, 2);
        assert_eq!(top(&lines.concat(), "/srv/a b").unwrap().device, "0:41");
    }
}
