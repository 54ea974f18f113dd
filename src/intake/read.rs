//! From a path below `jobs.d` to what came of it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::sources::{OVERRIDES_SUFFIX, Reader, TEMPLATE_SUFFIX, Unread, is_mask};
use super::{Arrival, Made, Swept};
use crate::config::JobFiles;
use crate::contract::advice;
use crate::ids::{JobKey, JobName, NameError, WorkspaceName};
use crate::spec::sweep::{Combination, in_each_other_s_way, told_once};
use crate::spec::{Diagnostic, JobSpec, Layer, Offer, ResourceSpecs, Stack};
use crate::store::record::{Owner, SourceRecord, SweepRecord, TemplateRecord};

/// What editors and packagers leave beside the files that count.
const IGNORED_SUFFIXES: [&str; 12] =
    [".swp", ".swx", ".bak", ".old", ".new", ".tmp", ".orig", ".rej", ".rpmnew", ".rpmsave", ".rpmorig", "~"];
const IGNORED_PARTS: [&str; 2] = [".dpkg-", ".ucf-"];

/// Whether a name is not a job file's, so that nobody need be told of it.
pub fn is_ignored(name: &str) -> bool {
    let ignored = name.starts_with('.')
        || name.starts_with('#')
        || IGNORED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        || IGNORED_PARTS.iter().any(|part| name.contains(part));
    ignored || !name.ends_with(".toml")
}

/// What came of looking at a path.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, for a moment")]
#[derive(Debug, PartialEq)]
pub enum Look {
    /// Nothing of ours, or nothing that need be told.
    Nothing,
    /// Something of it is still being written.
    Unfinished,
    Arrived(Arrival),
}

/// What a path below `jobs.d` is to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Job(PathBuf),
    Template(PathBuf),
}

/// The job file or template that a change of `path` concerns; overrides, and their directories, are part of a job.
pub(super) fn part_of(root: &Path, path: &Path) -> Option<Part> {
    let depth = path.strip_prefix(root).ok()?.components().count();
    let name = path.file_name()?.to_string_lossy().into_owned();
    if let Some(job) = job_of_overrides(path) {
        return (depth <= 2 && is_own(&job)).then_some(Part::Job(job));
    }
    if is_ignored(&name) {
        return None;
    }
    if let Some(job) = path.parent().and_then(job_of_overrides) {
        return (depth <= 3 && is_own(&job)).then_some(Part::Job(job));
    }
    match name.strip_suffix(TEMPLATE_SUFFIX) {
        Some(_) => Some(Part::Template(path.to_owned())),
        None => Some(Part::Job(path.to_owned())),
    }
}

fn job_of_overrides(directory: &Path) -> Option<PathBuf> {
    directory.to_str()?.strip_suffix(".d").filter(|job| job.ends_with(".toml")).map(PathBuf::from)
}

fn is_own(job: &Path) -> bool {
    job.file_name().is_some_and(|name| !is_ignored(&name.to_string_lossy()))
}

/// Reads the job file or template at `path`, below `root`, with all that belongs to it.
pub fn read_path(root: &Path, path: &Path, specs: &ResourceSpecs) -> Look {
    let Ok(relative) = path.strip_prefix(root) else { return Look::Nothing };
    let file = relative.display().to_string();
    if let Some(name) = relative.to_str().filter(|name| !name.contains('/') && is_workspace_name(name)) {
        return Look::Arrived(directory(root, name));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if is_ignored(&name) {
        return Look::Nothing;
    }
    let is_read = match is_read(root, relative) {
        Ok(is_read) => is_read,
        // Not known for a moment: nothing goes by that.
        Err(_) => return Look::Unfinished,
    };
    let key = match key_of(relative) {
        Ok(Some(key)) => key,
        Ok(None) => return Look::Nothing,
        Err(_) if !is_read => return Look::Arrived(Arrival::Stray { file, diagnostics: Vec::new() }),
        Err(wrong) => return Look::Arrived(stray(path, file, &wrong)),
    };
    if !is_read {
        // As if its workspace had gone.
        let is_template = name.ends_with(TEMPLATE_SUFFIX);
        let gone = Arrival::Stray { file, diagnostics: Vec::new() };
        return Look::Arrived(if is_template { gone } else { Arrival::Removed { key } });
    }
    if name.ends_with(TEMPLATE_SUFFIX) {
        return read_template(root, path, file, specs.of_template(&key.workspace));
    }
    if is_mask(path) {
        return Look::Arrived(Arrival::Removed { key });
    }
    Look::Arrived(match read(root, path, &key, specs) {
        Ok(made) => made.into(),
        Err(Unread::Missing) => Arrival::Removed { key },
        Err(Unread::Unfinished) => return Look::Unfinished,
        Err(Unread::Bad(diagnostics)) => Arrival::Refused { key, owner: owner_of(path), diagnostics },
    })
}

fn owner_of(path: &Path) -> Option<Owner> {
    let found = fs::symlink_metadata(path).ok()?;
    Some(Owner { uid: found.uid(), gid: found.gid() })
}

/// A directory that may be a workspace's: it is told of where it is a stranger's.
fn directory(root: &Path, name: &str) -> Arrival {
    let why = name.parse().ok().and_then(|workspace| JobFiles::why_none(root, &workspace));
    let diagnostics = why.map(|why| Diagnostic::of_file(name, why)).into_iter().collect();
    Arrival::Stray { file: name.to_owned(), diagnostics }
}

/// Whether what lies there counts: nothing does that lies in a directory which is a stranger's, or has gone.
fn is_read(root: &Path, relative: &Path) -> io::Result<bool> {
    let first = relative.iter().next().and_then(|name| name.to_str()).filter(|_| relative.iter().count() > 1);
    match first.and_then(|name| name.parse().ok()) {
        // Through a link in its place nothing is.
        Some(workspace) => Ok(matches!(JobFiles::of(root, &workspace)?, JobFiles::Open(_))),
        None => Ok(true),
    }
}

/// Why a file that lies below `root`, whatever is in it, is no job file and no template.
pub fn why_unread(root: &Path, path: &Path) -> Option<String> {
    let relative = path.strip_prefix(root).ok()?;
    let name = path.file_name()?.to_string_lossy();
    let first = relative.iter().next().and_then(|name| name.to_str()).filter(|_| relative.iter().count() > 1);
    let strangers = first.and_then(|name| JobFiles::why_none(root, &name.parse().ok()?));
    match key_of(relative) {
        _ if is_ignored(&name) => {
            Some(format!("{name:?} is skipped: so editors and packagers call what is no job file"))
        }
        Err(wrong) => Some(wrong.to_string()),
        Ok(None) => {
            Some("lies too deep in jobs.d: a job file is read in jobs.d itself and in directories there".to_owned())
        }
        Ok(Some(_)) => strangers.map(|why| format!("its directory {why}")),
    }
}

/// A template runs nothing; what is wrong with it is told of the file.
fn read_template(root: &Path, path: &Path, file: String, specs: Offer) -> Look {
    let diagnostics = match (Reader::Watching { jobs_d: root }).layer(path) {
        Ok((layer, _)) => {
            let mut stack = Stack::of_template(layer);
            stack.specs = specs;
            stack.problems_of_template()
        }
        Err(Unread::Missing) => Vec::new(),
        Err(Unread::Unfinished) => return Look::Unfinished,
        Err(Unread::Bad(diagnostics)) => diagnostics,
    };
    Look::Arrived(Arrival::Stray { file, diagnostics })
}

fn stray(path: &Path, file: String, wrong: &WrongName) -> Arrival {
    let gone = fs::symlink_metadata(path).is_err();
    let diagnostics = if gone { Vec::new() } else { vec![Diagnostic::of_file(&file, wrong.to_string())] };
    Arrival::Stray { file, diagnostics }
}

/// What of a path is no name.
#[derive(Debug, thiserror::Error)]
enum WrongName {
    #[error("its directory's name cannot name a workspace: {0}; rename it")]
    Workspace(NameError),
    /// Its files would be those of others once more.
    #[error(
        "its directory's name cannot name a workspace: the files of default lie in jobs.d itself; move them there, or rename it"
    )]
    Default,
    #[error("the file's name cannot name a job or template: {0}; rename it")]
    File(NameError),
}

/// `NAME.toml` or `WORKSPACE/NAME.toml`; deeper ones are not job files.
fn key_of(relative: &Path) -> Result<Option<JobKey>, WrongName> {
    let parts: Vec<String> = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let (workspace, file) = match parts.as_slice() {
        [file] => (WorkspaceName::default_workspace(), file),
        [workspace, _] if *workspace == WorkspaceName::default_workspace().to_string() => {
            return Err(WrongName::Default);
        }
        [workspace, file] => (workspace.parse().map_err(WrongName::Workspace)?, file),
        _ => return Ok(None),
    };
    let stem = file.strip_suffix(TEMPLATE_SUFFIX).or_else(|| file.strip_suffix(".toml"));
    let job: JobName = stem.unwrap_or(file).parse().map_err(WrongName::File)?;
    Ok(Some(JobKey::new(workspace, job)))
}

fn read(root: &Path, path: &Path, key: &JobKey, specs: &ResourceSpecs) -> Result<Made, Unread> {
    let (stack, owner) = Reader::Watching { jobs_d: root }.stack(path, &templates_of(root, key))?;
    arrived(stack, owner, key, specs)
}

/// What would come of `text`, if the user `owner` wrote it to the job's file at `path`.
pub fn read_text(
    root: &Path,
    path: &Path,
    key: &JobKey,
    text: &[u8],
    owner: Owner,
    specs: &ResourceSpecs,
) -> Result<Made, Vec<Diagnostic>> {
    let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
    let layer = Layer::from_bytes(&file, text.to_vec()).map_err(|found| vec![found])?;
    let stack = Reader::Watching { jobs_d: root }.stack_on(layer, path, owner, &templates_of(root, key));
    stack.and_then(|stack| arrived(stack, owner, key, specs)).map_err(|unread| found_in(&file, unread))
}

/// The same of a text that is all of the job: nothing that lies in `jobs.d` is put on top of it or below.
pub fn read_whole(key: &JobKey, text: &[u8], owner: Owner, specs: &ResourceSpecs) -> Result<Made, Vec<Diagnostic>> {
    let file = format!("{key}.toml");
    let layer = Layer::from_bytes(&file, text.to_vec()).map_err(|found| vec![found])?;
    arrived(Stack::of(layer), owner, key, specs).map_err(|unread| found_in(&file, unread))
}

fn found_in(file: &str, unread: Unread) -> Vec<Diagnostic> {
    match unread {
        Unread::Bad(found) => found,
        Unread::Missing | Unread::Unfinished => {
            vec![Diagnostic::of_file(file, "something that it is made of is being written just now; try again")]
        }
    }
}

fn templates_of(root: &Path, key: &JobKey) -> [PathBuf; 2] {
    [JobFiles::directory(root, &key.workspace), root.to_owned()]
}

fn arrived(mut stack: Stack, owner: Owner, key: &JobKey, specs: &ResourceSpecs) -> Result<Made, Unread> {
    stack.specs = specs.of(&key.workspace);
    let Some(combinations) = stack.combinations(&key.job).map_err(Unread::Bad)? else {
        let (source, spec) = accept(&stack, &key.job, &key.job, owner)?;
        let job = Swept { key: key.clone(), source, spec };
        return Ok(Made { key: key.clone(), jobs: vec![job] });
    };
    let job = |combination: Combination| {
        let (mut source, spec) = accept(&stack.with(&combination), &key.job, &combination.name, owner)?;
        source.sweep = Some(SweepRecord { of: key.job.clone(), values: combination.values });
        Ok(Swept { key: JobKey::new(key.workspace.clone(), combination.name), source, spec })
    };
    let (mut jobs, mut bad) = (Vec::new(), Vec::new());
    for made in combinations.into_iter().map(job) {
        match made {
            Ok(job) => jobs.push(job),
            Err(Unread::Bad(found)) => bad.extend(found),
            Err(other) => return Err(other),
        }
    }
    if !bad.is_empty() {
        return Err(Unread::Bad(told_once(bad)));
    }
    let named = jobs.iter().map(|swept| (&swept.key.job, &swept.spec));
    match in_each_other_s_way(&stack.job.file, named) {
        Some(found) => Err(Unread::Bad(vec![found])),
        None => Ok(Made { key: key.clone(), jobs }),
    }
}

/// `file` is the name of the file, `job` that of the job, which a sweep has made of it.
fn accept(stack: &Stack, file: &JobName, job: &JobName, owner: Owner) -> Result<(SourceRecord, JobSpec), Unread> {
    let expanded = stack.expand();
    let Some(spec) = expanded.spec else { return Err(Unread::Bad(expanded.diagnostics)) };
    let mut told = expanded.diagnostics;
    told.extend(advice::diagnostics(stack, file, &spec));
    told.extend(stack.awaits_itself(&[file, job], &spec));
    if told.iter().any(Diagnostic::is_error) {
        return Err(Unread::Bad(told));
    }
    let template = expanded.template.map(|used| TemplateRecord {
        name: used.name,
        own: used.own,
        own_live: used.own_live,
        price: used.price.map(|price| price.hourly),
        price_is_part: used.price.is_some_and(|price| price.is_part),
    });
    let (plain, read_by) = (SourceRecord::new(expanded.text, spec.meaning(), owner), Some(stack.read_by()));
    Ok((SourceRecord { warnings: told, template, read_by, ..plain }, spec))
}

/// Whether a directory of this name in `jobs.d` is a workspace's.
pub(super) fn is_workspace_name(name: &str) -> bool {
    !name.starts_with('.') && !name.ends_with(".toml") && !name.ends_with(OVERRIDES_SUFFIX)
}

/// All job files and templates there are now.
#[derive(Debug, Default)]
pub struct Scan {
    pub paths: Vec<PathBuf>,
    /// Jobs whose file is there, whatever its content.
    pub keys: BTreeSet<JobKey>,
}

impl Scan {
    /// Lists `root` and the workspaces in it.
    pub fn of(root: &Path) -> io::Result<Self> {
        let mut scan = Self::default();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_workspace = entry.file_type()?.is_dir() && is_workspace_name(&name);
            if name.ends_with(OVERRIDES_SUFFIX) {
                continue;
            }
            if is_workspace && !is_read(root, &Path::new(&name).join("x"))? {
                // It is told of, and nothing in it.
                scan.paths.push(entry.path());
                continue;
            }
            match is_workspace.then(|| fs::read_dir(entry.path())) {
                Some(Ok(entries)) => entries.flatten().for_each(|entry| scan.add(root, entry.path())),
                // Removed in this moment.
                Some(Err(_)) => {}
                None => scan.add(root, entry.path()),
            }
        }
        Ok(scan)
    }

    fn add(&mut self, root: &Path, path: PathBuf) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if is_ignored(&name) {
            return;
        }
        if let Ok(Some(key)) = key_of(path.strip_prefix(root).unwrap_or(&path))
            && !name.ends_with(TEMPLATE_SUFFIX)
        {
            self.keys.insert(key);
        }
        self.paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use crate::spec::layers::OVERRIDES_MAX;
    use crate::spec::platform::CONTRACTS;

    fn look(root: &Path, path: &Path) -> Look {
        read_path(root, path, &ResourceSpecs::default())
    }

    fn refusal(look: Look) -> String {
        match look {
            Look::Arrived(Arrival::Refused { diagnostics, .. } | Arrival::Stray { diagnostics, .. }) => {
                diagnostics[0].to_string()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_editors_and_packagers_leave_is_ignored() {
        let names = [
            ".a.toml",
            "#a.toml#",
            "a.toml~",
            "a.toml.swp",
            "a.toml.dpkg-new",
            "a.toml.rpmsave",
            "a.txt",
            "a.toml.bak",
        ];
        for name in names {
            assert!(is_ignored(name), "{name}");
        }
        assert!(!is_ignored("a.toml"));
    }

    #[test]
    fn each_kind_of_bad_file_is_refused_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let put = |name: &str, content: &[u8]| {
            fs::write(root.join(name), content).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o644)).unwrap();
            root.join(name)
        };
        let cases = [
            (put("large.toml", &vec![b'x'; 1 << 20]), "too large"),
            (put("binary.toml", &[0xff; 64]), "not UTF-8"),
            (put("a b.toml", b""), "cannot name a job"),
            (put(&format!("{}.toml", "x".repeat(65)), b""), "at most 64"),
            (put("by-state.toml", b""), "kept for Trainyard"),
        ];
        fs::create_dir(root.join("bad ws")).unwrap();
        let of_directory = (put("bad ws/x.toml", b""), "its directory's name cannot name a workspace");
        for (path, word) in cases.into_iter().chain([of_directory]) {
            let text = refusal(look(root, &path));
            assert!(text.contains(word), "{text}");
        }
        fs::create_dir(root.join("x.toml")).unwrap();
        assert!(refusal(look(root, &root.join("x.toml"))).contains("directory"));
        std::os::unix::fs::symlink("large.toml", root.join("link.toml")).unwrap();
        assert!(refusal(look(root, &root.join("link.toml"))).contains("symbolic link"));
        let open = put("open.toml", b"");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(refusal(look(root, &open)).contains("everybody may write"));
    }

    #[test]
    fn a_link_to_dev_null_masks_and_a_missing_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let key: JobKey = "m".parse().unwrap();
        let path = dir.path().join("m.toml");
        assert_eq!(look(dir.path(), &path), Look::Arrived(Arrival::Removed { key: key.clone() }));
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(look(dir.path(), &path), Look::Arrived(Arrival::Removed { key }));
    }

    #[test]
    fn overrides_and_templates_are_part_of_a_job() {
        let root = Path::new("/jobs.d");
        let job = |path: &str| Some(Part::Job(root.join(path)));
        for (path, part) in [
            ("a.toml", job("a.toml")),
            ("v/a.toml", job("v/a.toml")),
            ("a.toml.d", job("a.toml")),
            ("a.toml.d/1.toml", job("a.toml")),
            ("v/a.toml.d/1.toml", job("v/a.toml")),
            ("a.toml.d/1.toml~", None),
            (".a.toml.d/1.toml", None),
            ("v/w/a.toml.d/1.toml", None),
            ("v/t.template.toml", Some(Part::Template(root.join("v/t.template.toml")))),
        ] {
            assert_eq!(part_of(root, &root.join(path)), part, "{path}");
        }
    }

    #[test]
    fn a_sweep_is_taken_under_every_contract_whose_rule_the_file_s_name_keeps() {
        let dir = tempfile::tempdir().unwrap();
        let look_at = |name: &str, contract: &str| {
            let path = dir.path().join(name);
            let text = format!("contract = '{contract}'\ncommand = 'x'\n[sweep]\nlr = [0.1, 1]\ntag = ['a_b', 'ü']\n");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            look(dir.path(), &path)
        };
        for (contract, ..) in CONTRACTS {
            let Look::Arrived(Arrival::Swept { jobs, .. }) = look_at("sw-1.toml", contract) else {
                panic!("{contract}: {}", refusal(look_at("sw-1.toml", contract)));
            };
            assert_eq!(jobs[0].key.job.as_str(), "sw-1~0.1~a_b", "{contract}");
        }
        assert!(refusal(look_at("s_w.toml", "sagemaker")).contains("rename the file of \"s_w\""));
        assert!(refusal(look_at("a~b.toml", "modelarts")).contains("rename the file of \"a~b\""));
    }

    #[test]
    fn all_that_is_wrong_with_jobs_of_a_sweep_is_told_at_once_and_each_of_it_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sw.toml");
        let look_at = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            look(dir.path(), &path)
        };
        // The first is good, and the last error is one that the others hide where they stand beside it.
        let text = "command = 'x'\n[sweep]\nresources.cpu = [1, -1]\nretries = [0, -2]\nafter = [['b'], ['sw']]\nlr = [1, 2]\n";
        let Look::Arrived(Arrival::Refused { diagnostics, .. }) = look_at(text) else { panic!("{text}") };
        let told: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:#?}");
        for begin in [
            "sw.toml:3:21: `resources.cpu`: is -1",
            "sw.toml:4:15: `retries`: is -2",
            "sw.toml:5:1: `after` names the job itself",
        ] {
            assert!(told.iter().any(|told| told.starts_with(begin)), "{begin} among {told:#?}");
        }
        // As the API, which has the text before it is a file.
        let (key, specs) = ("sw".parse().unwrap(), ResourceSpecs::default());
        let uid = nix::unistd::getuid().as_raw();
        let owner = Owner { uid, gid: nix::unistd::getgid().as_raw() };
        assert_eq!(read_text(dir.path(), &path, &key, text.as_bytes(), owner, &specs).unwrap_err(), diagnostics);
        let good = text.replace("-1", "2").replace("-2", "1").replace("'sw'", "'c'");
        let Look::Arrived(Arrival::Swept { jobs, .. }) = look_at(&good) else { panic!("{}", refusal(look_at(&good))) };
        assert_eq!(jobs.len(), 16);
    }

    #[test]
    fn a_job_is_read_with_its_overrides_and_its_template() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let put = |name: &str, content: &str| {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), content).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        };
        let text = || match look(root, &root.join("v/a.toml")) {
            Look::Arrived(Arrival::Accepted { source, .. }) => source.text,
            other => refusal(other),
        };
        put("v/a.toml", "template = 't'");
        assert!(text().contains("there is no template \"t\""), "{}", text());
        put("train.template.toml", "command = 'x'");
        put("v/a.toml", "template = 'trian'");
        assert!(text().contains("did you mean \"train\"?"), "{}", text());
        put("v/a.toml", "template = 't'");
        put("t.template.toml", "command = 'of default'");
        assert!(text().contains("of default"));
        put("v/t.template.toml", "command = 'of v'");
        assert!(text().contains("of v"));
        put("v/a.toml.d/10.toml", "command = 'x'");
        put("v/a.toml.d/9.toml", "command = 'y'");
        put("v/a.toml.d/9.toml.bak", "?");
        assert!(text().contains("command = 'y'"), "in the order of names: {}", text());
        put("v/a.toml.d/9.toml", "comand = 'y'");
        assert!(text().starts_with("v/a.toml.d/9.toml:1:1: unknown key `comand`"), "{}", text());
        fs::remove_file(root.join("v/a.toml.d/9.toml")).unwrap();
        std::os::unix::fs::symlink("10.toml", root.join("v/a.toml.d/11.toml")).unwrap();
        assert!(text().contains("symbolic link"));
        fs::remove_file(root.join("v/a.toml.d/11.toml")).unwrap();
        fs::set_permissions(root.join("v/a.toml.d/10.toml"), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(text().contains("everybody may write it"));
        fs::set_permissions(root.join("v/a.toml.d/10.toml"), fs::Permissions::from_mode(0o644)).unwrap();
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(root.join("v/a.toml.d/10.toml"), Some(1), Some(1)).unwrap();
            assert!(text().contains("belongs neither to the owner"), "{}", text());
            std::os::unix::fs::chown(root.join("v/a.toml.d/10.toml"), Some(0), Some(0)).unwrap();
        }
        (0..OVERRIDES_MAX).for_each(|number| put(&format!("v/a.toml.d/x{number}.toml"), ""));
        assert!(text().contains("at most 64"));
    }
}
