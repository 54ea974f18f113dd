//! The rules of the house, as tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(below: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![repository().join(below)];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Rows of the table of docs/ARCHITECTURE.md: a module and what it may use.
fn table_of_imports() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(repository().join("docs/ARCHITECTURE.md")).unwrap();
    let table = text.split("<!-- imports -->").nth(1).expect("the table stands between two marks");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        (names(cells[1]).pop_first().unwrap(), names(cells[2]))
    })
    .collect()
}

fn module_of(path: &Path) -> String {
    let relative = path.strip_prefix(repository().join("src")).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// Without tests: they may use anything.
fn production(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap()
}

#[test]
fn modules_use_only_what_the_architecture_allows() {
    let allowed: BTreeMap<_, _> = table_of_imports().into_iter().collect();
    let mut wrong = Vec::new();
    let mut modules = BTreeSet::new();
    for path in rust_files("src") {
        let module = module_of(&path);
        let is_test = path.file_name().unwrap() == "tests.rs";
        if module == "lib" || module == "main" || is_test {
            continue;
        }
        modules.insert(module.clone());
        let may = allowed.get(&module).unwrap_or_else(|| panic!("{module} is missing in the table of imports"));
        let text = fs::read_to_string(&path).unwrap();
        for part in production(&text).split("crate::").skip(1) {
            let used: String = part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            if used != module && !may.contains(&used) {
                wrong.push(format!("{} uses {used}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let listed: BTreeSet<String> = allowed.into_keys().collect();
    assert_eq!(listed, modules, "the table lists the modules that there are");
}

#[test]
fn imports_go_down_only() {
    let mut above = BTreeSet::new();
    for (module, uses) in table_of_imports() {
        assert!(uses.is_subset(&above), "{module} uses {:?}, which stand below it", uses.difference(&above));
        above.insert(module);
    }
}

#[test]
fn each_library_is_known_to_one_module_alone() {
    let owners = [
        ("libcontainer::", "src/shim"),
        ("redb::", "src/store"),
        ("fuser::", "fs/src"),
        ("trainyard_fs::", "src/workspace src/mounting src/doctor"),
        ("netlink_", "src/engine/local"),
        ("use notify::", "src/intake src/api src/sys/watch.rs"),
        ("clap::", "src/cli src/main.rs"),
        ("unicode_width::", "src/cli"),
        ("hyper::", "src/api"),
        ("nvml_wrapper::", "src/gpu"),
        ("nvml_wrapper_sys::", "src/sys/mig.rs"),
        ("serde_saphyr::", "src/gpu"),
        ("object::", "src/gpu"),
    ];
    for path in rust_files("src").into_iter().chain(rust_files("fs/src")) {
        let text = fs::read_to_string(&path).unwrap();
        let relative = path.strip_prefix(repository()).unwrap().display().to_string();
        for (library, owner) in owners {
            // `fanotify::` is no `notify::`.
            let is_named = |line: &str| {
                let mut found = line.match_indices(library).map(|(at, _)| &line[..at]);
                found.any(|before| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
            };
            let uses = production(&text).lines().any(|line| {
                line.trim_start().starts_with("use ")
                    && is_named(line)
                    && !line.contains("super::")
                    && !line.contains("crate::")
            });
            assert!(!uses || owner.split(' ').any(|owner| relative.starts_with(owner)), "{relative} uses {library}");
        }
    }
}

#[test]
fn unsafe_code_and_child_processes_live_in_sys() {
    for path in rust_files("src") {
        let text = fs::read_to_string(&path).unwrap();
        let relative = path.strip_prefix(repository()).unwrap().display().to_string();
        let excepted = relative.starts_with("src/sys") || relative.ends_with("tests.rs");
        for word in ["unsafe {", "Command::new"] {
            assert!(excepted || !production(&text).contains(word), "{relative} has {word:?}");
        }
    }
}

#[test]
fn files_and_functions_keep_their_size() {
    for path in rust_files("src").into_iter().chain(rust_files("fs/src")) {
        let text = fs::read_to_string(&path).unwrap();
        let lines = production(&text).lines().count();
        assert!(lines <= 800, "{} has {lines} lines: split it", path.display());
        assert!(!text.contains("todo!(") && !text.contains("unimplemented!("), "{}", path.display());
    }
    for path in rust_files("src").into_iter().chain(rust_files("fs")).chain(rust_files("tests")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(
            name != "mod"
                || path.starts_with(repository().join("tests"))
                || path.starts_with(repository().join("fs/tests")),
            "{}",
            path.display()
        );
        assert!(
            !["utils", "common", "helpers", "manager", "handler", "base"].contains(&name.as_str()),
            "{}",
            path.display()
        );
    }
}
