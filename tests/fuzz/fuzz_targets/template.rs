//! Any text as a template, and any other as the job file on top of it; what follows are overrides. NUL is between them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trainyard::spec::layers::OVERRIDES_MAX;
use trainyard::spec::template::Template;
use trainyard::spec::{Diagnostic, JOB_FILE_MAX_BYTES, Layer, Stack};
use trainyard_fuzz::{TOO_LARGE, assert_placed, assert_rereads, assert_usable};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.split('\0');
    if text.split('\0').any(|part| part.len() as u64 > JOB_FILE_MAX_BYTES) {
        return;
    }
    let template = Layer::new("t.template.toml", parts.next().unwrap_or_default());
    let job = Layer::new("job.toml", parts.next().unwrap_or_default());
    let number = |(number, text): (usize, &str)| Layer::new(&format!("job.toml.d/{number}.toml"), text);
    let mut stack = Stack::of(job);
    stack.overrides = parts.take(OVERRIDES_MAX).enumerate().map(number).collect();
    expand(template.clone(), stack);
    start(template);
});

fn expand(template: Layer, mut stack: Stack) {
    if stack.wanted().is_some() {
        stack.template = Some(template);
    }
    let layers: Vec<&Layer> = [&stack.job].into_iter().chain(&stack.overrides).chain(&stack.template).collect();
    let expanded = stack.expand();
    assert_placed(expanded.spec.as_ref(), &expanded.diagnostics, &layers);
    let is_plain = expanded.text == stack.job.text;
    assert!(is_plain || expanded.text.len() as u64 <= JOB_FILE_MAX_BYTES, "{} bytes", expanded.text.len());
    let Some(spec) = expanded.spec else { return };
    assert_rereads(&stack, &spec);
    assert_usable(&Layer::new("job.toml", &expanded.text), &spec);
    let saved = stack.as_template("saved").unwrap_or_else(|found| panic!("{found:?}"));
    if saved.len() as u64 <= JOB_FILE_MAX_BYTES {
        let read = Template::read(&Layer::new("saved.template.toml", &saved));
        assert!(read.is_ok(), "{read:?}\n{saved}");
    }
}

/// As `new` does, with values from a command line: the template's own words stand for what people type.
fn start(template: Layer) {
    let read = match Template::read(&template) {
        Ok(read) => read,
        Err(found) => return assert_placed(None, &found, &[&template]),
    };
    let words: Vec<&str> = template.text.split_whitespace().collect();
    let mut text = "template = \"t\"\n\n[with]\n".to_owned();
    for (param, word) in read.params.iter().zip(words.iter().cycle()) {
        let _ = (param.default(), param.bounds(), param.help.as_str(), param.kind.name());
        text.push_str(&format!("{} = {}\n", param.name, param.kind.literal(word)));
    }
    let mut stack = Stack::of(Layer::new("job.toml", &text));
    assert_eq!(stack.wanted().as_deref(), Some("t"), "a value became something else: {text}");
    stack.template = Some(template);
    let expanded = stack.expand();
    let layers: Vec<&Layer> = [&stack.job].into_iter().chain(&stack.template).collect();
    assert_placed(expanded.spec.as_ref(), &expanded.diagnostics, &layers);
    let is_bounded = |told: &Diagnostic| told.message.starts_with(TOO_LARGE);
    assert!(expanded.text.len() as u64 <= JOB_FILE_MAX_BYTES || expanded.diagnostics.iter().any(is_bounded));
}
