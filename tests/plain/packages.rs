//! What packages ship: the commented configuration, man pages, completions, units. It is the program's own, and whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use super::documents::links;
use trainyard::config::Config;

const BINARY: &str = env!("CARGO_BIN_EXE_trainyard");

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn commented() -> String {
    fs::read_to_string(repository().join("packaging/trainyard.toml")).unwrap()
}

fn load(text: &str) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("etc/trainyard");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("trainyard.toml"), text).unwrap();
    Config::load(directory.path()).map_err(|error| error.to_string())
}

/// The file with its settings in force: all of them, or those that say that they are the defaults.
fn in_force(only_defaults: bool) -> String {
    let (mut text, mut is_example) = (String::new(), false);
    for line in commented().lines() {
        match line.strip_prefix('#') {
            Some(remark) if remark.is_empty() || remark.starts_with(' ') => is_example = remark.contains("xample"),
            Some(setting) if !(only_defaults && is_example) => text.push_str(&format!("{setting}\n")),
            Some(_) => {}
            None => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

#[test]
fn the_commented_configuration_is_accepted_as_it_is_and_with_everything_in_force() {
    load(&commented()).unwrap();
    let config = load(&in_force(false)).unwrap();
    assert_eq!((config.limits.cpu, config.quotas.len(), config.pools.len()), (Some(30.0), 1, 1));
}

#[test]
fn what_it_calls_a_default_is_one() {
    let (said, mut wanted) = (load(&in_force(true)).unwrap(), load("").unwrap());
    assert_eq!(said.network.range, Config::load(Path::new("/")).unwrap().network.range, "that of the service");
    wanted.network.range = said.network.range;
    let all = |config: &Config| {
        let Config {
            limits,
            network,
            images,
            logs,
            mounts_below,
            pools,
            direct,
            storage,
            gpu,
            specs,
            queue,
            usage,
            quotas,
            ..
        } = config;
        format!(
            "{limits:#?}\n{network:#?}\n{images:#?}\n{logs:#?}\n{mounts_below:#?}\n{pools:#?}\n{direct:#?}\n{storage:#?}\n{gpu:#?}\n\
             {specs:#?}\n{queue:#?}\n{usage:#?}\n{quotas:#?}"
        )
    };
    assert_eq!(all(&said), all(&wanted));
}

/// The keys that a table knows, from what is said of one that it does not.
fn keys_of(table: &str) -> BTreeSet<String> {
    let error = load(&format!("{table}\nno_such_key = 1\n")).unwrap_err();
    let expected = error.split("expected").nth(1).unwrap_or_else(|| panic!("{table}: {error}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn it_names_every_key() {
    let text = commented();
    for section in keys_of("") {
        let is_there = text.contains(&format!("[{section}]")) || text.contains(&format!("[{section}."));
        assert!(is_there, "[{section}] is missing");
    }
    for (table, heading) in [
        ("[limits]", "[limits]"),
        ("[queue]", "[queue]"),
        ("[usage]", "[usage]"),
        ("[network]", "[network]"),
        ("[images]", "[images]"),
        ("[logs]", "[logs]"),
        ("[mount]", "[mount]"),
        ("[mounts]", "[mounts]"),
        ("[gpu]", "[gpu]"),
        ("[[listen]]", "#[[listen]]"),
        ("[alerts.a]", "#[alerts.ops]"),
        ("[workspaces.w]", "#[workspaces.vision]"),
        ("[specs.s]", "#[specs.small]"),
        ("[pools.p]", "#[pools.lab]"),
    ] {
        let section = text.split(&format!("\n{heading}\n")).nth(1).unwrap_or_else(|| panic!("{heading} is missing"));
        let section = section.split("\n\n").next().unwrap();
        for key in keys_of(table) {
            let is_there = section.contains(&format!("{key} = ")) || section.contains(&format!(".{key}."));
            assert!(is_there, "{key} is missing in {heading}");
        }
    }
}

fn generated(what: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(BINARY).args(["generate", what]).arg(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn help(verb: &[String]) -> String {
    let output = Command::new(BINARY).args(verb).arg("--help").output().unwrap();
    assert!(output.status.success(), "{verb:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The verbs below one, by its help.
fn verbs_of(help: &str) -> Vec<String> {
    let Some(list) = help.split("Commands:\n").nth(1) else { return Vec::new() };
    let list = list.split("\n\n").next().unwrap();
    let verbs = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    verbs.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help").map(str::to_owned).collect()
}

fn options_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.starts_with("--") && word.len() > 3).map(str::to_owned).collect()
}

/// Without what roff is told.
fn plain(page: &str) -> String {
    ["\\fB", "\\fI", "\\fR"]
        .iter()
        .fold(page.replace("\\-", "-"), |page, font| page.replace(font, " "))
        .replace("\\*(Aq", "'")
}

/// Looks at a verb and all below it; returns the names of their pages.
fn compare(verb: &[String], pages: &Path, names: &mut BTreeSet<String>) {
    let name = std::iter::once("trainyard".to_owned()).chain(verb.iter().cloned()).collect::<Vec<_>>().join("-");
    let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap_or_else(|_| panic!("{name} has no page"));
    let page = plain(&page);
    let help = help(verb);
    assert_eq!(options_in(&page), options_in(&help), "{name}");
    let about = help.lines().next().unwrap();
    assert!(page.contains(about.trim_end_matches('.')), "{name}: {about}");
    names.insert(format!("{name}.1"));
    for below in verbs_of(&help) {
        compare(&[verb, &[below]].concat(), pages, names);
    }
}

/// What a text says of exit codes.
fn codes(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let begin = text.find("0 done; ").unwrap();
    let length = text[begin..].find("is not known.").unwrap();
    text[begin..begin + length].to_owned()
}

#[test]
fn every_verb_has_a_man_page_which_agrees_with_its_help() {
    let pages = generated("man");
    let mut names = BTreeSet::from(["trainyard.toml.5".to_owned(), "trainyard-job.5".to_owned()]);
    compare(&[], pages.path(), &mut names);
    assert!(names.len() > 40 && names.contains("trainyard-image-pull.1"), "{names:?}");
    assert_eq!(names_in(pages.path()), names);
    let referred = regex::Regex::new(r"\b(trainyard[a-z.-]*) *\(([15])\)").unwrap();
    for name in &names {
        let page = plain(&fs::read_to_string(pages.path().join(name)).unwrap());
        for found in referred.captures_iter(&page) {
            let page = format!("{}.{}", &found[1], &found[2]);
            assert!(names.contains(&page), "{name} names {page}, which is no page");
        }
    }
    assert!(codes(&help(&[])).contains("125 where it could not be run"));
    assert_eq!(codes(&plain(&fs::read_to_string(pages.path().join("trainyard.1")).unwrap())), codes(&help(&[])));
    let read = |name: &str| fs::read_to_string(pages.path().join(name)).unwrap();
    let read = |name: &str| plain(&read(name));
    let job = read("trainyard-job.5");
    for key in trainyard::spec::keys::KEYS.iter().filter(|key| key.support == trainyard::spec::keys::Support::Now) {
        assert!(job.contains(key.path), "{}", key.path);
    }
    let configuration = read("trainyard.toml.5");
    for setting in ["stop_grace = \"30s\"", "[pools.lab]", "host_workspaces = []", "[mounts]"] {
        assert!(configuration.contains(setting), "{setting}");
    }
}

/// What bash offers where the last of `words` is being typed, by the file that packages ship.
fn offered(completions: &Path, words: &[String]) -> BTreeSet<String> {
    let script = ". \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _clap_complete_trainyard trainyard \"${@: -1}\"; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let place = Path::new(BINARY).parent().unwrap().display();
    let output = Command::new("bash")
        .args(["-c", script])
        .arg(completions.join("trainyard.bash"))
        .arg("trainyard")
        .args(words)
        .env("PATH", format!("{place}:{}", std::env::var("PATH").unwrap()))
        // Nobody answers there: no names of jobs are among them.
        .env("TRAINYARD_ROOT", completions)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The options of which a help has an entry; it may name others in sentences.
fn entries_in(help: &str) -> BTreeSet<String> {
    // Elsewhere are sentences, which are folded anywhere.
    let is_entry =
        |line: &&str| line.trim_start().starts_with('-') && (2..=6).contains(&(line.len() - line.trim_start().len()));
    let entries = help.lines().filter(is_entry).map(str::trim_start);
    entries.flat_map(|line| options_in(line.split("  ").next().unwrap())).collect()
}

fn compare_completions(verb: &[String], completions: &Path) -> usize {
    let help = help(verb);
    let offers = |typed: &str| offered(completions, &[verb, &[typed.to_owned()]].concat());
    assert_eq!(offers("--"), entries_in(&help), "{verb:?}");
    let below = verbs_of(&help);
    if !below.is_empty() {
        let mut verbs = offers("");
        verbs.retain(|word| word != "help" && !word.starts_with('-'));
        assert_eq!(verbs, below.iter().cloned().collect(), "{verb:?}");
    }
    1 + below.into_iter().map(|name| compare_completions(&[verb, &[name]].concat(), completions)).sum::<usize>()
}

#[test]
fn completions_offer_what_help_names_and_nothing_that_is_hidden() {
    let directory = generated("completions");
    let names = ["_trainyard", "trainyard.bash", "trainyard.fish"].map(str::to_owned);
    assert_eq!(names_in(directory.path()), BTreeSet::from(names.clone()));
    assert!(compare_completions(&[], directory.path()) > 40);
    for name in names {
        let text = fs::read_to_string(directory.path().join(&name)).unwrap();
        // They ask whichever program is installed, and name no place where it was built.
        assert!(text.contains("COMPLETE=") && !text.contains(BINARY), "{name}: {text}");
    }
}

/// Files that the package puts at a place, by Cargo.toml.
fn assets() -> Vec<(PathBuf, String)> {
    let manifest: toml::Table = fs::read_to_string(repository().join("Cargo.toml")).unwrap().parse().unwrap();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    assets.iter().map(|asset| (PathBuf::from(text(&asset[0])), text(&asset[1]))).collect()
}

#[test]
fn what_the_package_ships_is_there_and_none_of_it_is_an_active_job() {
    for (source, target) in assets() {
        assert!(!target.starts_with("etc/trainyard/jobs.d"), "{target} would run by itself");
        // What packaging/build makes is not here.
        let Ok(source) = source.strip_prefix("target/package") else {
            let directory = repository().join(source.parent().unwrap());
            assert!(directory.is_dir(), "{}", directory.display());
            continue;
        };
        assert!(!target.is_empty(), "{}", source.display());
    }
    // By these names cargo-deb looks for them.
    for part in ["trainyard.service", "trainyard.sysusers", "trainyard.tmpfile"] {
        assert!(repository().join("systemd").join(part).is_file(), "{part}");
    }
}

/// What of the repository's own the package puts where, by where it is then.
fn installed() -> BTreeMap<PathBuf, PathBuf> {
    let mut installed = BTreeMap::new();
    for (source, target) in assets().into_iter().filter(|(source, _)| !source.starts_with("target")) {
        let pattern = source.file_name().unwrap().to_str().unwrap();
        let (before, after) = pattern.split_once('*').unwrap_or((pattern, ""));
        let directory = source.parent().unwrap();
        for name in names_in(&repository().join(directory)) {
            let is_meant = match pattern.contains('*') {
                true => name.starts_with(before) && name.ends_with(after),
                false => name == pattern,
            };
            if is_meant && repository().join(directory).join(&name).is_file() {
                let place = if target.ends_with('/') { Path::new(&target).join(&name) } else { PathBuf::from(&target) };
                installed.insert(place, directory.join(&name));
            }
        }
    }
    installed
}

#[test]
fn the_package_has_all_documents_and_jobs_and_the_links_of_what_is_installed_lead_to_what_is() {
    let installed = installed();
    let sources: BTreeSet<&Path> = installed.values().map(PathBuf::as_path).collect();
    for (directory, ending) in
        [("", ".md"), ("docs", ".md"), ("docs/from", ".md"), ("jobs.d", ".toml"), ("jobs.d/examples", ".toml")]
    {
        let names = names_in(&repository().join(directory)).into_iter().filter(|name| name.ends_with(ending));
        for path in names.map(|name| Path::new(directory).join(name)) {
            assert!(sources.contains(&*path), "{} is in no package", path.display());
        }
    }
    let mut count = 0;
    for (place, source) in installed.iter().filter(|(_, source)| source.extension().is_some_and(|kind| kind == "md")) {
        let text = fs::read_to_string(repository().join(source)).unwrap();
        for link in links(&text) {
            let mut target = place.parent().unwrap().to_owned();
            Path::new(link).components().for_each(|part| match part {
                Component::ParentDir => drop(target.pop()),
                part => target.push(part),
            });
            assert!(installed.contains_key(&target), "{}: {link}", place.display());
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
}

/// What packaging/build puts beside the tarball's script, with a program that is none.
fn unpacked() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    let here = |name: &str| tree.path().join(name);
    fs::write(here("trainyard"), "the program").unwrap();
    fs::write(here("trainyard.cdx.json"), "{}").unwrap();
    for what in ["man", "completions"] {
        let output = Command::new(BINARY).args(["generate", what]).arg(here(what)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let parts = [
        "README.md",
        "LICENSE",
        "LICENSE-MIT",
        "systemd",
        "docs",
        "packaging/trainyard.toml",
        "packaging/tarball/install",
    ];
    let copied = Command::new("cp").arg("-r").args(parts.map(|part| repository().join(part))).arg(tree.path()).status();
    assert!(copied.unwrap().success());
    fs::create_dir(here("examples")).unwrap();
    tree
}

/// Files below a directory.
fn files_below(directory: &Path) -> BTreeSet<PathBuf> {
    let output = Command::new("find").arg(directory).args(["-type", "f", "-printf", "%P\\n"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(PathBuf::from).collect()
}

#[test]
fn the_tarball_s_script_installs_what_it_brings_and_takes_it_away_again() {
    let (tree, place) = (unpacked(), tempfile::tempdir().unwrap());
    let done = |more: &[&str]| {
        let mut script = Command::new("sh");
        script.arg(tree.path().join("install")).args(more).env("DESTDIR", place.path()).output().unwrap()
    };
    let install = |more: &[&str]| {
        let output = done(more);
        assert!(output.status.success(), "{output:?}");
    };
    for wrong in [&["--remvoe"][..], &["--help"], &["--remove", "it"], &[""]] {
        assert!(!done(wrong).status.success(), "{wrong:?}");
    }
    assert!(files_below(place.path()).is_empty(), "what is not understood does nothing");
    install(&[]);
    let found = files_below(place.path());
    for file in [
        "usr/bin/trainyard",
        "usr/share/man/man1/trainyard-image-pull.1",
        "usr/share/man/man5/trainyard.toml.5",
        "usr/share/bash-completion/completions/trainyard",
        "usr/share/zsh/site-functions/_trainyard",
        "usr/share/fish/vendor_completions.d/trainyard.fish",
        "usr/lib/systemd/system/trainyard.service",
        "usr/lib/sysusers.d/trainyard.conf",
        "usr/lib/tmpfiles.d/trainyard.conf",
        "usr/share/doc/trainyard/docs/JOBS.md",
        "etc/trainyard/trainyard.toml",
    ] {
        assert!(found.contains(Path::new(file)), "{file} is missing in {found:?}");
    }
    assert!(fs::metadata(place.path().join("usr/bin/trainyard")).unwrap().permissions().mode() & 0o111 == 0o111);
    // An upgrade: what the administrator has written stays, the rest is replaced.
    let (configuration, program) =
        ["etc/trainyard/trainyard.toml", "usr/bin/trainyard"].map(|at| place.path().join(at)).into();
    fs::write(&configuration, "# ours").unwrap();
    fs::write(tree.path().join("trainyard"), "a newer program").unwrap();
    install(&[]);
    assert_eq!(files_below(place.path()), found);
    assert_eq!(fs::read_to_string(&configuration).unwrap(), "# ours");
    assert_eq!(fs::read_to_string(program).unwrap(), "a newer program");
    install(&["--remove"]);
    assert_eq!(files_below(place.path()), BTreeSet::from(["etc/trainyard/trainyard.toml".into()]));
}

#[test]
fn the_unit_lets_tasks_and_the_mount_live_on_and_be_seen() {
    let unit = fs::read_to_string(repository().join("systemd/trainyard.service")).unwrap();
    let says = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default();
    assert_eq!((says("Type"), says("KillMode"), says("Delegate")), ("notify", "process", "yes"));
    assert_eq!(says("DelegateSubgroup"), "daemon", "as sys::cgroup has it");
    // A mount namespace of its own would hide the mount; a filter or a list of devices would be the tasks' as well.
    for key in [
        "Protect",
        "Private",
        "ReadOnly",
        "ReadWrite",
        "Inaccessible",
        "Temporary",
        "Bind",
        "Root",
        "Dynamic",
        "SystemCall",
        "Device",
        "RuntimeDirectory",
        "StateDirectory",
        "MemoryDeny",
        "Restrict",
    ] {
        let found = unit.lines().find(|line| line.starts_with(key) && !line.starts_with("Restart"));
        assert_eq!(found, None);
    }
}
