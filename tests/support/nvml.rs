//! A machine with cards: a copy of our own `libnvidia-ml.so.1` and the file that tells what it shows.

use std::fs;
use std::path::{Path, PathBuf};

/// As cargo builds it: beside the tests, since they depend on it.
fn built() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().join("libfake_nvml.so");
    assert!(path.exists(), "{} is built with the tests", path.display());
    path
}

pub(crate) struct FakeNvml {
    directory: PathBuf,
}

impl FakeNvml {
    /// In a directory, without a library: a machine whose driver is still to come.
    pub(crate) fn without_driver(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.directory.join("libnvidia-ml.so.1")
    }

    /// The driver comes.
    pub(crate) fn install(&self) {
        let aside = self.directory.join("aside");
        fs::copy(built(), &aside).unwrap();
        fs::rename(aside, self.library()).unwrap();
    }

    /// What there is from now on; seen whole or not at all.
    pub(crate) fn shows(&self, machine: &str) {
        let aside = self.directory.join("aside.toml");
        fs::write(&aside, machine).unwrap();
        fs::rename(aside, self.directory.join("nvml.toml")).unwrap();
    }
}

/// The UUID of a card.
pub(crate) fn uuid(index: usize) -> String {
    format!("GPU-{index:08x}-0000-0000-0000-000000000000")
}

/// A card as an H100 is; `more` are further keys.
pub(crate) fn card(index: usize, more: &str) -> String {
    format!(
        "[[card]]\nuuid = \"{}\"\nname = \"NVIDIA H100 80GB HBM3\"\nminor = {}\nbus = \"00000000:{:02X}:00.0\"\n\
         memory = 85899345920\nnuma = {}\ncpus = [{}, {}]\ntemperature = 40\npower = 71000\npower_limit = 700000\n{more}\n",
        uuid(index),
        // The order of devices is not that of the bus.
        7 - index,
        0x1b + index,
        index / 4,
        index * 2,
        index * 2 + 1,
    )
}

/// A machine with so many of them.
pub(crate) fn cards(count: usize) -> String {
    let cards: String = (0..count).map(|index| card(index, "")).collect();
    format!("driver = \"580.95.05\"\ncuda = 13000\n{cards}")
}
