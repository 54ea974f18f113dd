//! Documents tell the truth: links resolve, tables are those of the program, examples are accepted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use trainyard::spec::template::Template;
use trainyard::spec::{Layer, Stack};

pub(super) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn documents() -> Vec<PathBuf> {
    let docs = walkdir(&repository().join("docs")).into_iter();
    docs.chain(["README.md", "README.zh.md", "CHANGELOG.md"].map(|name| repository().join(name))).collect()
}

#[test]
fn every_link_between_documents_resolves() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            let target = document.parent().unwrap().join(link);
            assert!(target.exists(), "{}: {link}", document.display());
        }
    }
}

/// The files that a document leads to.
pub(super) fn links(text: &str) -> impl Iterator<Item = &str> {
    let all = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    all.filter(|link| !link.contains("://") && !link.starts_with('#')).filter_map(|link| link.split('#').next())
}

#[test]
fn the_key_reference_is_the_program_s_own() {
    let text = fs::read_to_string(repository().join("docs/JOBS.md")).unwrap();
    let reference = text.split("<!-- keys -->").nth(1).unwrap().trim();
    let output = Command::new(env!("CARGO_BIN_EXE_trainyard")).args(["explain", "--markdown"]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(reference, printed.trim(), "put the output of `trainyard explain --markdown` between the marks");
}

/// What stands between two marks of docs/API.md.
fn marked<'a>(text: &'a str, mark: &str) -> &'a str {
    text.split(&format!("<!-- {mark} -->")).nth(1).unwrap().trim()
}

#[test]
fn the_api_s_tables_are_the_program_s_own() {
    let path = repository().join("docs/API.md");
    let text = fs::read_to_string(&path).unwrap();
    let codes = trainyard::api::error::CODES.iter().map(|(code, status)| format!("| `{code}` | {status} |\n"));
    let codes = format!("| code | status |\n|---|---|\n{}", codes.collect::<String>());
    let tables = [
        ("routes", trainyard::api::routes::markdown()),
        ("codes", codes),
        ("metrics", trainyard::api::measures::markdown()),
    ];
    if std::env::var_os("TRAINYARD_WRITE_TABLES").is_some() {
        let written = tables.iter().fold(text.clone(), |text, (mark, table)| {
            let mark = format!("<!-- {mark} -->");
            let parts: Vec<&str> = text.splitn(3, &mark).collect();
            format!("{}{mark}\n{}\n{mark}{}", parts[0], table.trim(), parts[2])
        });
        fs::write(&path, written).unwrap();
        return;
    }
    for (mark, table) in tables {
        assert_eq!(marked(&text, mark), table.trim(), "TRAINYARD_WRITE_TABLES=1 and this test write them");
    }
}

#[test]
fn every_job_file_in_the_documents_is_accepted() {
    let mut count = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let mut template: Option<Layer> = None;
        for example in text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            if example.starts_with("# trainyard.toml") {
                continue;
            }
            count += 1;
            let layer = Layer::new(&document.display().to_string(), example);
            // A template is that of the jobs that come after it.
            if example.lines().next().is_some_and(|line| line.ends_with(".template.toml")) {
                Template::read(&layer).unwrap();
                template = Some(layer);
                continue;
            }
            let mut stack = Stack::of(layer);
            stack.template = template.clone();
            let sweep = stack.combinations(&"example".parse().unwrap()).unwrap();
            let jobs = sweep.iter().flatten().map(|combination| stack.with(combination));
            let jobs = if sweep.is_some() { jobs.collect() } else { vec![stack.clone()] };
            for expanded in jobs.iter().map(Stack::expand) {
                assert!(expanded.spec.is_some(), "{:?}", expanded.diagnostics);
            }
        }
    }
    assert!(count >= 4);
}

/// What stands in a document as commands.
fn commands(document: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join(document)).unwrap();
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.map(str::to_owned).collect()
}

#[test]
fn the_chinese_tutorial_has_the_same_commands() {
    let english = commands("docs/TUTORIAL.md");
    assert!(english.len() > 8);
    assert_eq!(commands("docs/TUTORIAL.zh.md"), english);
}

/// Each `trainyard VERB` and `--flag` in code that documents show is one that the program has.
#[test]
fn every_command_in_the_documents_is_one_of_the_program() {
    use clap::CommandFactory;
    let program = trainyard::cli::Cli::command();
    let mut count = 0;
    for document in documents().iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let text = fs::read_to_string(document).unwrap();
        for call in text.split("trainyard ").skip(1).filter_map(|rest| rest.lines().next()) {
            let end = call.find(['`', '|', '#', ';', ')', ',', '"']).unwrap_or(call.len());
            let words: Vec<&str> = call[..end].split_whitespace().take_while(|word| *word != "--").collect();
            let Some(verb) = words.iter().find_map(|word| program.find_subcommand(word)).filter(|verb| {
                // What stands before it are options: else `trainyard` is part of a sentence.
                words
                    .iter()
                    .take_while(|word| **word != verb.get_name())
                    .all(|word| word.starts_with("--") || word.contains('/') || *word == "DIR")
            }) else {
                continue;
            };
            count += 1;
            for flag in
                words.iter().filter_map(|word| word.strip_prefix("--")).map(|flag| flag.split('=').next().unwrap())
            {
                let below = verb.get_subcommands().chain([verb, &program]);
                let known =
                    below.flat_map(clap::Command::get_arguments).any(|argument| argument.get_long() == Some(flag));
                assert!(
                    known || flag == "help" || flag == "version",
                    "{}: trainyard {call}: --{flag}",
                    document.display()
                );
            }
        }
    }
    assert!(count > 100, "{count}");
}

/// Tests that stand in brackets in what people read are there.
#[test]
fn every_test_that_is_named_in_the_documents_exists() {
    let mut sources = String::new();
    for directory in ["tests", "src", "fs"] {
        let files = walkdir(&repository().join(directory)).into_iter();
        files.filter(|file| file.extension().is_some_and(|kind| kind == "rs")).for_each(|file| {
            sources.push_str(&fs::read_to_string(file).unwrap());
        });
    }
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        // Measures and the client's own tests have names like these.
        let is_other = |name: &str| name.starts_with("trainyard_") || name.starts_with("test_");
        let names = text.split('`').filter(|name| {
            name.matches('_').count() > 3
                && !name
                    .contains(|letter: char| !letter.is_ascii_lowercase() && !letter.is_ascii_digit() && letter != '_')
                && !is_other(name)
        });
        for name in names {
            assert!(sources.contains(&format!("fn {name}(")), "{}: {name}", document.display());
        }
    }
}

/// Every source file below a directory.
fn walkdir(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}

/// Rows of a table whose last column names tests.
fn assert_tests_exist(rows: &[&str], sources: &str) {
    for row in rows {
        let proof = row.rsplit('|').nth(1).unwrap().trim().trim_matches('`');
        assert!(sources.contains(&format!("fn {proof}(")), "{proof} is not there: {row}");
    }
}

#[test]
fn every_system_has_a_row_whose_examples_and_tests_exist() {
    let text = fs::read_to_string(repository().join("docs/CONTRACTS.md")).unwrap();
    let table = text.split("| system | contract |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<&str> = table.lines().skip(2).collect();
    assert_eq!(rows.len(), 25);
    let sources: String =
        walkdir(&repository().join("src")).iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    assert_tests_exist(&rows, &sources);
    for row in rows {
        for example in row.split('|').nth(3).unwrap().split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let file = repository().join(format!("jobs.d/examples/{}.toml", example.trim_matches('`')));
            assert!(file.exists(), "{}", file.display());
        }
    }
}

/// What tests and benchmarks are written in.
pub(super) fn sources() -> String {
    ["tests/host", "tests/plain", "benches", "fs/tests", "fs/src", "src"]
        .iter()
        .flat_map(|directory| walkdir(&repository().join(directory)))
        .filter(|file| file.extension().is_some_and(|end| end == "rs"))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect()
}

/// Each sentence about the mount is held by a test that is named with it.
#[test]
fn every_sentence_about_the_mount_names_a_test_that_exists() {
    let text = fs::read_to_string(repository().join("docs/FILESYSTEM.md")).unwrap();
    let sources = sources();
    let sentences: Vec<&str> = text.lines().filter(|line| line.starts_with("- ")).collect();
    assert!(sentences.len() > 60);
    for sentence in sentences {
        // The tests are the last thing in brackets.
        let end = sentence.rfind(" (`").map(|at| &sentence[at + 2..]);
        let end = end.unwrap_or_else(|| panic!("no test is named: {sentence}"));
        let names: Vec<&str> = end.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 1).collect();
        assert!(!names.is_empty(), "no test is named: {sentence}");
        for name in names {
            assert!(sources.contains(&format!("fn {name}(")), "{name} is not there: {sentence}");
        }
    }
}

#[test]
fn every_promise_names_a_test_or_a_benchmark_that_exists() {
    let text = fs::read_to_string(repository().join("docs/PROMISES.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise"));
    let sources = sources();
    for row in rows {
        for proof in row.split('|').nth(3).unwrap().split(',').map(|proof| proof.trim().trim_matches('`')) {
            let exists = sources.contains(&format!("fn {proof}(")) || repository().join(proof).exists();
            assert!(exists, "{proof} is not there: {row}");
        }
    }
}
