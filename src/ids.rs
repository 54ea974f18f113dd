//! Names and quantities, checked at birth: whoever holds one need not check it again.
//!
//! Owns the grammar of names. A name may become a path component, a table key and a log field, so none
//! can hold `/`, `..`, NUL or control characters.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};
use unicode_normalization::{UnicodeNormalization, is_nfc};

/// Longest name, in characters.
pub const NAME_MAX_CHARS: usize = 64;
/// And in bytes: so many letters of Chinese. The names of files begin or end with more, and have 255 at most.
pub const NAME_MAX_BYTES: usize = 192;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a name cannot be empty")]
    Empty,
    #[error("a name has at most {NAME_MAX_CHARS} characters, this one has {0}")]
    TooLong(usize),
    #[error("a name has at most {NAME_MAX_BYTES} bytes of UTF-8, this one has {0}")]
    TooManyBytes(usize),
    #[error("a name starts with a letter or a digit, this one with {0:?}")]
    Start(char),
    #[error("a name holds letters with their marks, digits, '-', '_', '.' and '~', not {0:?}")]
    Character(char),
    #[error("a name is in Unicode's composed form (NFC), this one is not; write \"{composed}\", which looks the same")]
    Decomposed { composed: String },
    #[error("{0:?} is kept for Trainyard itself")]
    Reserved(String),
}

/// Letters and digits of any script with the marks upon them, as vowel signs and accents; without what nobody sees, by which names
/// that look alike would differ.
static SEEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^[[\p{Alphabetic}\p{N}\p{M}]--\p{Default_Ignorable_Code_Point}]$").expect("it is tested")
});

/// A letter, a mark upon one, or a digit, as names have them.
pub fn is_seen(letter: char) -> bool {
    if letter.is_ascii() { letter.is_ascii_alphanumeric() } else { SEEN.is_match(letter.encode_utf8(&mut [0; 4])) }
}

/// 1–64 letters, marks and digits of any script, `-` `_` `.` `~`; the first one a letter or digit. Composed: the same letters are the
/// same name, however a keyboard or a file system writes them.
fn check_name(text: &str) -> Result<(), NameError> {
    let first = text.chars().next().ok_or(NameError::Empty)?;
    let count = text.chars().count();
    if count > NAME_MAX_CHARS {
        return Err(NameError::TooLong(count));
    }
    if text.len() > NAME_MAX_BYTES {
        return Err(NameError::TooManyBytes(text.len()));
    }
    if !first.is_alphanumeric() {
        return Err(NameError::Start(first));
    }
    if let Some(bad) = text.chars().find(|c| !(is_seen(*c) || "-_.~".contains(*c))) {
        return Err(NameError::Character(bad));
    }
    match is_nfc(text) {
        true => Ok(()),
        false => Err(NameError::Decomposed { composed: text.nfc().collect() }),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, reserved: [$($reserved:literal),*]) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                check_name(text)?;
                if [$($reserved),*].contains(&text) {
                    return Err(NameError::Reserved(text.to_owned()));
                }
                Ok(Self(text.to_owned()))
            }
        }
        impl TryFrom<String> for $type {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A workspace: the people and directories that jobs belong to. What all workspaces see lies beside them.
    WorkspaceName, reserved: ["preset", "public"]
);
name!(
    /// What has a directory beside the others, and may have a quota: a workspace, or one of what all workspaces see.
    HomeName, reserved: []
);
impl HomeName {
    /// For a line of the journal: as a workspace, or as what all share.
    pub fn told(&self) -> (Option<&str>, Option<&str>) {
        if self.workspace().is_some() { (Some(self.as_str()), None) } else { (None, Some(self.as_str())) }
    }

    /// `None` for what all workspaces see.
    pub fn workspace(&self) -> Option<WorkspaceName> {
        self.0.parse().ok()
    }
}

impl From<&WorkspaceName> for HomeName {
    fn from(workspace: &WorkspaceName) -> Self {
        Self(workspace.0.clone())
    }
}

name!(
    /// A job: the stem of its job file. `by-state` and `by-user` are directories of the mount.
    JobName, reserved: ["by-state", "by-user"]
);
name!(
    /// A role of a job (`ps`, `worker`).
    RoleName, reserved: []
);
name!(
    /// A directory in a workspace's `code/` or `datasets/`, or a dataset's version.
    AssetName, reserved: []
);

/// Where a thing of `code/` or `datasets/` is looked for, by what stands before its name in a job file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Whose {
    /// Nothing: the workspace's, else the administrator's, else a public one.
    #[default]
    Nearest,
    /// The workspace's and no other.
    Mine,
    /// The administrator's and no other.
    Preset,
    /// What somebody has given to all workspaces, and no other.
    Public,
}

impl Whose {
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Nearest => "",
            Self::Mine => "mine:",
            Self::Preset => "preset:",
            Self::Public => "public:",
        }
    }

    /// Takes it off what a job file says.
    pub fn of(text: &str) -> (Self, &str) {
        let named = [Self::Mine, Self::Preset, Self::Public];
        let found = named.into_iter().find_map(|whose| Some((whose, text.strip_prefix(whose.prefix())?)));
        found.unwrap_or((Self::Nearest, text))
    }
}

impl WorkspaceName {
    /// The workspace of job files that lie in `jobs.d` itself.
    pub fn default_workspace() -> Self {
        Self("default".to_owned())
    }
}

impl RoleName {
    /// The one role of a job without `[roles]`.
    pub fn main_role() -> Self {
        Self("main".to_owned())
    }

    /// The role as part of an environment variable: upper case, all but A–Z and digits as `_`. Among others see [`role_variables`].
    pub fn variable(&self) -> String {
        self.0.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
    }
}

/// The roles of a job as parts of environment variables. Of several that would be one, those in letters of other scripts have their
/// place in the job behind it, from 0.
pub fn role_variables<'a>(names: impl Iterator<Item = &'a RoleName>) -> Vec<String> {
    let all: Vec<(&RoleName, String)> = names.map(|name| (name, name.variable())).collect();
    let one = |(place, (name, variable)): (usize, &(&RoleName, String))| {
        let is_alone = all.iter().filter(|(_, other)| other == variable).count() < 2;
        if is_alone || name.0.is_ascii() { variable.clone() } else { format!("{variable}_{place}") }
    };
    all.iter().enumerate().map(one).collect()
}

/// What variables that tell of a role end in, by the role as part of them: how many tasks it has, and where they are.
pub fn role_counts(variable: &str) -> [String; 2] {
    [format!("{variable}_COUNT"), format!("{variable}_HOSTS")]
}

/// The one that tells the ports of a label of the role.
pub fn role_ports(variable: &str, label: &str) -> String {
    format!("{variable}_PORTS_{}", label_variable(label))
}

/// A port's label as part of an environment variable.
pub fn label_variable(label: &str) -> String {
    label.to_ascii_uppercase().replace(['-', '.', '~'], "_")
}

/// A job of a workspace; printed as `JOB` in the default workspace, else `WORKSPACE/JOB`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobKey {
    pub workspace: WorkspaceName,
    pub job: JobName,
}

impl JobKey {
    pub fn new(workspace: WorkspaceName, job: JobName) -> Self {
        Self { workspace, job }
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.workspace == WorkspaceName::default_workspace() {
            return self.job.fmt(f);
        }
        write!(f, "{}/{}", self.workspace, self.job)
    }
}

impl FromStr for JobKey {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.split_once('/') {
            Some((workspace, job)) => Ok(Self::new(workspace.parse()?, job.parse()?)),
            None => Ok(Self::new(WorkspaceName::default_workspace(), text.parse()?)),
        }
    }
}

impl TryFrom<String> for JobKey {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<JobKey> for String {
    fn from(key: JobKey) -> String {
        key.to_string()
    }
}

/// A task of an attempt by role and index (from 0), printed `worker-0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskName {
    pub role: RoleName,
    pub index: u32,
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role, self.index)
    }
}

impl FromStr for TaskName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let (role, index) = text.rsplit_once('-').ok_or(NameError::Empty)?;
        let index = index.parse().map_err(|_| NameError::Character('-'))?;
        Ok(Self { role: role.parse()?, index })
    }
}

/// An attempt, unique in one state directory and never used twice; printed `a17`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId(pub u64);

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{}", self.0)
    }
}

impl FromStr for AttemptId {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix('a').unwrap_or("").parse().map(Self)
    }
}

/// A task of an attempt by its place in the attempt (from 0); printed `a17-3`. Names its directory, cgroup and container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    pub attempt: AttemptId,
    pub ordinal: u32,
    /// How often it has been started again within the attempt.
    #[serde(default)]
    pub again: u32,
}

impl TaskId {
    /// Of one that has not been started again.
    pub fn first(attempt: AttemptId, ordinal: u32) -> Self {
        Self { attempt, ordinal, again: 0 }
    }

    /// What tells it from the others of its attempt: `3` or, started again, `3.1`.
    pub fn within_attempt(self) -> String {
        if self.again == 0 { self.ordinal.to_string() } else { format!("{}.{}", self.ordinal, self.again) }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.attempt, self.within_attempt())
    }
}

impl FromStr for TaskId {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (attempt, task) = text.split_once('-').unwrap_or((text, ""));
        let (ordinal, again) = task.split_once('.').unwrap_or((task, "0"));
        Ok(Self { attempt: attempt.parse()?, ordinal: ordinal.parse()?, again: again.parse()? })
    }
}

/// A graphics card, or a slice of one, as NVIDIA's driver names it for ever: `GPU-…` or `MIG-…`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(String);

/// Why a text is not the UUID of a card.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the UUID of a card: it begins with GPU- or MIG- and has letters, digits, '-' and '/'")]
pub struct GpuUuidError(String);

/// Longer than any that the driver gives out.
const GPU_UUID_MAX: usize = 96;

impl GpuUuid {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GpuUuid {
    type Err = GpuUuidError;
    fn from_str(text: &str) -> Result<Self, GpuUuidError> {
        let rest = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
        let plain = |rest: &str| rest.chars().all(|c| c.is_ascii_alphanumeric() || "-/".contains(c));
        match rest {
            Some(rest) if !rest.is_empty() && text.len() <= GPU_UUID_MAX && plain(rest) => Ok(Self(text.to_owned())),
            _ => Err(GpuUuidError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for GpuUuid {
    type Error = GpuUuidError;
    fn try_from(text: String) -> Result<Self, GpuUuidError> {
        text.parse()
    }
}

impl From<GpuUuid> for String {
    fn from(uuid: GpuUuid) -> Self {
        uuid.0
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An amount of memory or storage in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(pub u64);

/// Units of a size, largest first, so that printing picks the largest that divides.
const BYTE_UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("{0:?} is not a size: write a number and a unit, as in \"4GiB\" or \"500MB\"")]
    Size(String),
    #[error("{0:?} is not a duration: write numbers and units, as in \"90s\", \"2h\" or \"1d12h\"")]
    Duration(String),
}

impl Bytes {
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// As people write it in a sentence: exactly where that is short, as in `1536MiB`, else with one digit of the largest unit.
    pub fn told(self) -> String {
        // The first are the powers of two, the largest first.
        let (unit, factor) = *BYTE_UNITS.iter().take(4).find(|(_, factor)| self.0 >= *factor).unwrap_or(&("B", 1));
        let exact = self.to_string();
        match exact.find(|letter: char| !letter.is_ascii_digit()) {
            Some(digits) if digits <= 4 => exact,
            _ => format!("{:.1}{unit}", self.0 as f64 / factor as f64),
        }
    }

    /// The same, of what is less than `other`: as MiB where one digit would hide that.
    pub fn told_beside(self, other: u64) -> String {
        let is_near = self.0 >= 1 << 30 && other.saturating_sub(self.0) < self.0 / 100;
        if is_near { format!("{}MiB", self.0 >> 20) } else { self.told() }
    }

    /// For people, who need no more than the first digits of what was measured.
    pub fn roughly(self) -> String {
        let digits = |unit: &str, factor: u64| format!("{:.1}{unit}", self.0 as f64 / factor as f64);
        match self.0 {
            bytes if bytes.is_multiple_of(1 << 20) || bytes < 1 << 20 => self.to_string(),
            bytes if bytes >= 1 << 40 => digits("TiB", 1 << 40),
            bytes if bytes >= 1 << 30 => digits("GiB", 1 << 30),
            _ => digits("MiB", 1 << 20),
        }
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let bad = || QuantityError::Size(text.to_owned());
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim();
        let factor = match unit {
            "" | "B" => 1,
            _ => BYTE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(bad)?.1,
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        let bytes = number * factor as f64;
        if !(0.0..=1e18).contains(&bytes) {
            return Err(bad());
        }
        Ok(Self(bytes.round() as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BYTE_UNITS.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor)) {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None if self.0 >= 1 << 30 => write!(f, "{:.1}GiB", self.0 as f64 / (1u64 << 30) as f64),
            None if self.0 >= 1 << 20 => write!(f, "{:.1}MiB", self.0 as f64 / (1u64 << 20) as f64),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// Processor time in thousandths of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cpu(pub u64);

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 as f64 / 1000.0)
    }
}

/// Graphics cards, in thousandths of one: a share or a slice is part of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CardAmount(pub u64);

impl fmt::Display for CardAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 as f64 / 1000.0)
    }
}

/// How much of a task's output is kept: parts of each stream, and the size from which one is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Bytes; a part that ends in a long line may hold up to twice as many.
    pub part_size: u64,
    /// Of each stream, the one that is written included; 2 to [`Self::PARTS_MAX`].
    pub parts: u32,
}

impl LogLimits {
    pub const PART_SIZE_MIN: u64 = 64 << 10;
    pub const PARTS_MAX: u32 = 48;
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { part_size: 256 << 20, parts: 4 }
    }
}

/// A point of wall-clock time, milliseconds since 1970; for records and people, never for deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Without what is smaller than a second.
    pub fn to_seconds(self) -> String {
        Self(self.0 - self.0 % 1000).to_string().replace(".000", "")
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.0).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_millisecond(millis) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => write!(f, "@{millis}ms"),
        }
    }
}

/// How a store of another machine is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// Also UFile, OBS, COS, MinIO and Ceph.
    S3,
    /// Alibaba's.
    Oss,
    WebHdfs,
    Sftp,
    /// Reads single files.
    Http,
}

impl StoreKind {
    pub const ALL: [Self; 5] = [Self::S3, Self::Oss, Self::WebHdfs, Self::Sftp, Self::Http];

    /// As job files and the configuration write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Oss => "oss",
            Self::WebHdfs => "webhdfs",
            Self::Sftp => "sftp",
            Self::Http => "http",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Percent-encodes all but letters, digits and `-_.~` of ASCII.
pub fn escape_in_address(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Parses `90s`, `2h`, `1d12h`; units d, h, m, s, ms.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, QuantityError> {
    let bad = || QuantityError::Duration(text.to_owned());
    let mut rest = text.trim();
    let mut millis: u64 = 0;
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let factor = match &rest[..letters] {
            "d" => 86_400_000,
            "h" => 3_600_000,
            "m" | "min" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return Err(bad()),
        };
        millis = number.checked_mul(factor).and_then(|part| millis.checked_add(part)).ok_or_else(bad)?;
        rest = rest[letters..].trim_start();
    }
    Ok(std::time::Duration::from_millis(millis))
}

/// Prints a duration as people write it: `1d2h`, `3m20s`, `1.4s`.
pub fn format_duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_sentences_are_in_the_units_that_people_write() {
        for (bytes, said) in [
            (0, "0B"),
            (512 << 10, "512KiB"),
            (1536 << 20, "1536MiB"),
            (64 << 30, "64GiB"),
            (130_023_424 << 10, "124GiB"),
            (127_000 << 20, "124.0GiB"),
            (4_000_000_000, "3.7GiB"),
            (u64::MAX, "16777216.0TiB"),
        ] {
            assert_eq!(Bytes(bytes).told(), said);
        }
        let room = Bytes(126_976 << 20);
        assert_eq!(room.told_beside(200 << 30), "124GiB");
        assert_eq!(Bytes(126_950 << 20).told_beside(124 << 30), "126950MiB", "what is hidden by a digit is told");
    }

    #[test]
    fn names_of_any_script_are_names_and_path_tricks_are_not() {
        let signs = ["हिन्दी", "தமிழ்", "ไทยที่", "\u{fc}ber", "שָׁלוֹם"];
        for good in ["digits", "训练_a-1", "a", "1.5~b", &"x".repeat(64), &"训".repeat(64)].into_iter().chain(signs)
        {
            assert!(good.parse::<JobName>().is_ok(), "{good}");
        }
        for bad in ["", "..", ".hidden", "a/b", "a\0b", "a b", "-x", "a\nb", &"x".repeat(65), "by-state", "by-user"] {
            assert!(bad.parse::<JobName>().is_err(), "{bad:?}");
        }
        // A mark begins nothing, and what nobody sees makes no other name of one that looks alike.
        for bad in ["\u{301}a", "a\u{200d}b", "a\u{fe0f}", "a\u{34f}b", "a\u{3164}", "\u{ffa0}", &"𠀀".repeat(49)] {
            assert!(bad.parse::<JobName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_that_is_not_composed_is_refused_with_the_one_to_write() {
        for (apart, composed) in
            [("u\u{308}ber", "\u{fc}ber"), ("\u{1112}\u{1161}\u{11ab}", "\u{d55c}"), ("\u{212b}", "\u{c5}")]
        {
            let refused = apart.parse::<JobName>().unwrap_err();
            assert_eq!(refused, NameError::Decomposed { composed: composed.to_owned() });
            assert!(refused.to_string().contains(composed), "{refused}");
            assert!(composed.parse::<JobName>().is_ok());
        }
    }

    #[test]
    fn sizes_and_durations_read_back() {
        assert_eq!("4GiB".parse(), Ok(Bytes(4 << 30)));
        assert_eq!("1.5 GB".parse(), Ok(Bytes(1_500_000_000)));
        assert_eq!(Bytes(4 << 30).to_string(), "4GiB");
        for bad in ["", "GiB", "4XB", "-1MB", "1e9", "99999999TiB"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
        assert_eq!(parse_duration("1d12h").unwrap().as_secs(), 129_600);
        for bad in ["", "5", "h", "3 parsecs", "18446744073709551615d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_and_task_names_read_back() {
        for text in ["digits", "vision/resnet"] {
            assert_eq!(text.parse::<JobKey>().unwrap().to_string(), text);
        }
        let task: TaskName = "my-role-3".parse().unwrap();
        assert_eq!((task.role.as_str(), task.index), ("my-role", 3));
        assert_eq!("a17-3".parse::<TaskId>().unwrap().to_string(), "a17-3");
    }
}
