//! What tasks read: datasets, what other jobs have left, and code.

use toml::Spanned;

use super::{Reader, git, mounts};
use crate::ids::{AssetName, Whose};
use crate::spec::job::{Code, DataSource, Dataset};
use crate::spec::stores::ForeignStore;
use crate::spec::wire::WireCode;

impl Reader<'_> {
    pub(super) fn code(&mut self, code: &Spanned<WireCode>, key: &str) -> Option<Code> {
        match code.get_ref() {
            WireCode::Name(text) if Whose::of(text).0 == Whose::Nearest && mounts::store_of(text).is_some() => {
                match mounts::code(text) {
                    Ok(place) => Some(Code::Stored(place)),
                    Err(message) => {
                        self.error(code.span(), key, format!("`{key}`: {message}"));
                        None
                    }
                }
            }
            WireCode::Name(text) => {
                let (whose, text) = Whose::of(text);
                let (name, version) = match text.split_once('@') {
                    Some((name, version)) => (name, Some(version)),
                    None => (text, None),
                };
                let mut asset = |text: &str| self.asset(&Spanned::new(code.span(), text.to_owned()), key);
                let (name, version) = (asset(name), version.map(asset));
                let version = version.map_or(Some(None), |version| version.map(Some));
                Some(Code::Named { whose, name: name?, version: version? })
            }
            WireCode::Git(git) => match git::code(git) {
                Ok(git) => Some(Code::Git(git)),
                Err((part, message)) => {
                    let key = format!("{}{part}", key.trim_end_matches("code"));
                    self.error(code.span(), &key, format!("`{key}`: {message}"));
                    None
                }
            },
        }
    }

    pub(super) fn asset(&mut self, name: &Spanned<String>, key: &str) -> Option<AssetName> {
        match name.get_ref().parse() {
            Ok(name) => Some(name),
            Err(error) => {
                self.error(name.span(), key, format!("`{key}`: {:?} is not a name: {error}", name.get_ref()));
                None
            }
        }
    }

    pub(super) fn datasets(&mut self, names: &[Spanned<String>]) -> Vec<Dataset> {
        let mut datasets: Vec<Dataset> = Vec::new();
        for written in names {
            let (channel, rest) = match written.get_ref().split_once('=') {
                // There may be one in an address.
                Some((channel, rest)) if !channel.contains("://") => (Some(channel), rest),
                _ => (None, written.get_ref().as_str()),
            };
            if rest.contains("://") {
                self.error(written.span(), "datasets", format!("`datasets`: {}", is_address(rest)));
                continue;
            }
            let (source, rest) = DataSource::PREFIXED
                .into_iter()
                .find_map(|source| Some((source, rest.strip_prefix(source.prefix())?)))
                .unwrap_or((DataSource::Dataset, rest));
            let (whose, rest) = if source == DataSource::Dataset { Whose::of(rest) } else { (Whose::Nearest, rest) };
            let (name, version) = match rest.split_once('@') {
                Some((name, version)) => (name, Some(version)),
                None => (rest, None),
            };
            let part = |text: &str| Spanned::new(written.span(), text.to_owned());
            let name = self.asset(&part(name), "datasets");
            let channel = channel.map(|channel| self.asset(&part(channel), "datasets"));
            let (Some(name), channel) = (name, channel.flatten()) else { continue };
            let seen_as = channel.as_ref().unwrap_or(&name);
            if datasets.iter().any(|other| other.seen_as() == seen_as) {
                let message = format!("`datasets` has two that tasks would see as {:?}", seen_as.as_str());
                self.error(written.span(), "datasets", message);
                continue;
            }
            let is_run = |version: &str| version == "latest" || version.parse::<u32>().is_ok();
            if source != DataSource::Dataset && version.is_some_and(|version| !is_run(version)) {
                let written_as = source.prefix();
                let message = format!(
                    "`datasets`: the versions of {written_as}{name} are the numbers of its job's runs, or latest"
                );
                self.error(written.span(), "datasets", message);
                continue;
            }
            let version = version.map(|version| self.asset(&part(version), "datasets"));
            match version {
                None => datasets.push(Dataset { source, whose, channel, name, version: None }),
                Some(Some(version)) => datasets.push(Dataset { source, whose, channel, name, version: Some(version) }),
                Some(None) => {}
            }
        }
        datasets
    }
}

/// What to write in the place of an address: a dataset is a name.
fn is_address(text: &str) -> String {
    let store = ForeignStore::of(text);
    let of_store = store.map(|store| format!(" in {}", store.name)).unwrap_or_default();
    let begin = format!("{text:?} is an address{of_store}, not the name of a dataset: put the data into datasets/");
    let kind = if text.starts_with("http") {
        Some("http:POOL/PREFIX".to_owned())
    } else {
        store.and_then(ForeignStore::place)
    };
    match kind {
        Some(place) => format!(
            "{begin}, or have it copied in from a pool of trainyard.toml: mounts = [{{ source = \"{place}\", target = \"/input\" }}]"
        ),
        None => begin,
    }
}
