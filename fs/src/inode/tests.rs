//! Random sequences against a model that keeps the same facts in the plainest form, and named cases.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Directories, and above [`FILES`] files.
fn identity(number: u64) -> Identity {
    let kind = if number < FILES { Kind::Directory } else { Kind::File };
    Identity::stored(1, number, kind, Some(7))
}

const FILES: u64 = 2;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Indices choose among the live nodes, in order of their numbers.
    Lookup {
        parent: usize,
        name: usize,
        identity: u64,
    },
    Forget {
        node: usize,
        count: u64,
    },
    Unlink {
        parent: usize,
        name: usize,
    },
    Rename {
        from: (usize, usize),
        to: (usize, usize),
    },
    Exchange {
        a: (usize, usize),
        b: (usize, usize),
    },
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..8usize, 0..NAMES.len());
    prop_oneof![
        5 => (place(), 0..FILES + 2).prop_map(|((parent, name), identity)| Step::Lookup { parent, name, identity }),
        3 => (0..8usize, 1..3u64).prop_map(|(node, count)| Step::Forget { node, count }),
        1 => place().prop_map(|(parent, name)| Step::Unlink { parent, name }),
        2 => (place(), place()).prop_map(|(from, to)| Step::Rename { from, to }),
        1 => (place(), place()).prop_map(|(a, b)| Step::Exchange { a, b }),
    ]
}

#[derive(Debug, Clone, PartialEq)]
struct ModelNode {
    /// The one that was looked up last at the end.
    places: Vec<(u64, &'static str)>,
    identity: Identity,
    lookups: u64,
}

#[derive(Debug)]
struct Model {
    nodes: BTreeMap<u64, ModelNode>,
}

impl Model {
    fn new() -> Self {
        let root = ModelNode { places: Vec::new(), identity: identity(0), lookups: 0 };
        Self { nodes: BTreeMap::from([(ROOT, root)]) }
    }

    fn live(&self, index: usize) -> u64 {
        *self.nodes.keys().nth(index % self.nodes.len()).unwrap()
    }

    /// Only these hold others.
    fn directory(&self, index: usize) -> u64 {
        let is_directory = |(_, node): &(&u64, &ModelNode)| !node.identity.has_links();
        let all: Vec<u64> = self.nodes.iter().filter(is_directory).map(|(ino, _)| *ino).collect();
        all[index % all.len()]
    }

    fn at(&self, place: (u64, &str)) -> Option<u64> {
        let found = |(_, node): &(&u64, &ModelNode)| node.places.contains(&(place.0, place.1));
        self.nodes.iter().find(found).map(|(ino, _)| *ino)
    }

    fn above(&self, ino: u64) -> Vec<u64> {
        let mut chain = vec![ino];
        while let Some((parent, _)) = self.nodes[chain.last().unwrap()].places.last() {
            chain.push(*parent);
        }
        chain
    }

    /// The file that has this identity, under whatever names.
    fn linked(&self, number: u64) -> Option<u64> {
        let found = |(_, node): &(&u64, &ModelNode)| number >= FILES && node.identity == identity(number);
        self.nodes.iter().find(found).map(|(ino, _)| *ino)
    }

    fn path(&self, ino: u64) -> Option<RelPath> {
        let chain = self.above(ino);
        if chain.last() != Some(&ROOT) {
            return None;
        }
        let names = chain.iter().rev().filter_map(|ino| self.nodes[ino].places.last());
        let text: Vec<_> = names.map(|(_, name)| *name).collect();
        Some(RelPath::new(text.join("/")).unwrap())
    }

    fn put(&mut self, ino: u64, place: (u64, &'static str)) {
        if !self.above(place.0).contains(&ino) {
            self.nodes.get_mut(&ino).unwrap().places.push(place);
        }
    }

    fn take(&mut self, place: (u64, &'static str)) -> Option<u64> {
        let ino = self.at(place)?;
        self.nodes.get_mut(&ino).unwrap().places.retain(|other| *other != place);
        Some(ino)
    }

    fn prune(&mut self) {
        loop {
            let held: BTreeSet<_> =
                self.nodes.values().flat_map(|node| &node.places).map(|(parent, _)| *parent).collect();
            let before = self.nodes.len();
            self.nodes.retain(|ino, node| *ino == ROOT || node.lookups > 0 || held.contains(ino));
            if self.nodes.len() == before {
                return;
            }
        }
    }
}

fn run(table: &mut InodeTable, model: &mut Model, used: &mut BTreeSet<u64>, step: Step) {
    let place = |model: &Model, (parent, name): (usize, usize)| (model.directory(parent), NAMES[name]);
    let os = |place: (u64, &'static str)| (place.0, name(place.1));
    match step {
        Step::Lookup { parent, name, identity: id } => {
            let at = place(model, (parent, name));
            let ino = table.lookup(at.0, os(at).1, identity(id), true).unwrap();
            let known = model.at(at).filter(|ino| model.nodes[ino].identity == identity(id)).or(model.linked(id));
            assert_eq!(known.is_none(), used.insert(ino), "a new node has a new number");
            known.into_iter().for_each(|known| assert_eq!(known, ino));
            model.take(at);
            let node = ModelNode { places: Vec::new(), identity: identity(id), lookups: 0 };
            let node = model.nodes.entry(ino).or_insert(node);
            node.lookups += 1;
            node.places.push(at);
        }
        Step::Forget { node, count } => {
            let ino = model.live(node);
            table.forget(ino, count);
            let node = model.nodes.get_mut(&ino).unwrap();
            node.lookups = node.lookups.saturating_sub(count);
        }
        Step::Unlink { parent, name } => {
            let at = place(model, (parent, name));
            table.unlink(at.0, os(at).1);
            model.take(at);
        }
        Step::Rename { from, to } => {
            let (from, to) = (place(model, from), place(model, to));
            table.rename(os(from), os(to));
            if from != to && (model.at(from).is_none() || model.at(from) != model.at(to)) {
                model.take(to);
                let moved = model.take(from);
                moved.into_iter().for_each(|ino| model.put(ino, to));
            }
        }
        Step::Exchange { a, b } => {
            let (a, b) = (place(model, a), place(model, b));
            table.exchange(os(a), os(b));
            if a != b {
                let (was_a, was_b) = (model.take(a), model.take(b));
                was_a.into_iter().for_each(|ino| model.put(ino, b));
                was_b.into_iter().for_each(|ino| model.put(ino, a));
            }
        }
    }
    model.prune();
}

fn check(table: &InodeTable, model: &Model) {
    let live: BTreeSet<_> = table.nodes.keys().copied().collect();
    assert_eq!(live, model.nodes.keys().copied().collect(), "what is forgotten goes, nothing else");
    for (ino, node) in &model.nodes {
        assert_eq!(table.path(*ino), named_first(model, *ino));
        assert_eq!(table.is_nameless(*ino), *ino != ROOT && node.places.is_empty());
        let named = node.places.iter().rev().filter_map(|(parent, name)| model.path(*parent)?.join(name).ok());
        let named = if *ino == ROOT { vec![RelPath::root()] } else { named.collect::<Vec<_>>() };
        assert_eq!(table.paths(*ino), named);
        assert_eq!(table.identity(*ino), Some(node.identity));
        for text in NAMES {
            assert_eq!(table.child(*ino, name(text)), model.at((*ino, text)));
        }
    }
}

/// By the newest of its names that has a path.
fn named_first(model: &Model, ino: u64) -> Option<RelPath> {
    if ino == ROOT {
        return Some(RelPath::root());
    }
    model.nodes[&ino].places.iter().rev().find_map(|(parent, name)| model.path(*parent)?.join(name).ok())
}

proptest! {
    #[test]
    fn agrees_with_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut table = InodeTable::new(identity(0));
        let mut model = Model::new();
        let mut used = BTreeSet::from([ROOT]);
        for step in steps {
            run(&mut table, &mut model, &mut used, step);
            check(&table, &model);
        }
    }
}

#[test]
fn an_unlinked_node_lives_without_a_path_until_forgotten() {
    let mut table = InodeTable::new(identity(0));
    let file = table.lookup(ROOT, name("f"), identity(1), true).unwrap();
    table.unlink(ROOT, name("f"));
    assert_eq!(table.path(file), None);
    assert_eq!(table.identity(file), Some(identity(1)));
    table.forget(file, 1);
    assert_eq!(table.identity(file), None);
    let again = table.lookup(ROOT, name("f"), identity(1), true).unwrap();
    assert_ne!(again, file);
}

#[test]
fn a_renamed_directory_takes_its_subtree_along() {
    let mut table = InodeTable::new(identity(0));
    let dir = table.lookup(ROOT, name("d"), identity(1), true).unwrap();
    let file = table.lookup(dir, name("f"), identity(2), true).unwrap();
    table.rename((ROOT, name("d")), (ROOT, name("e")));
    assert_eq!(table.path(file), Some(RelPath::new("e/f").unwrap()));
}

#[test]
fn the_root_is_never_forgotten() {
    let mut table = InodeTable::new(identity(0));
    table.forget(ROOT, u64::MAX);
    assert_eq!(table.path(ROOT), Some(RelPath::root()));
}

#[test]
fn a_device_is_the_same_after_it_was_packed() {
    for (major, minor) in [(0, 53), (8, 1), (259, 0xf_ffff), (0xfff, 0x12345)] {
        let full = nix::sys::stat::makedev(major, minor);
        assert_eq!(Device::from(full).full(), full);
    }
}

/// What is known costs memory as long as it is known: a walk over a million files makes the kernel know all of them.
#[test]
fn a_node_is_small_and_its_name_is_kept_once() {
    assert!(size_of::<Node>() <= 72, "{} bytes", size_of::<Node>());
    assert_eq!(size_of::<Child>(), 16);
}

#[test]
fn what_goes_on_in_another_process_is_the_same_table() {
    let mut table = InodeTable::new(identity(0));
    let directory = table.lookup(ROOT, name("a"), identity(1), false).unwrap();
    let file = table.lookup(directory, name("b"), identity(FILES), true).unwrap();
    assert_eq!(table.lookup(directory, name("c"), identity(FILES), true), Some(file));
    let gone = table.lookup(ROOT, name("b"), identity(FILES + 1), false).unwrap();
    table.unlink(ROOT, name("b"));
    let mut again = InodeTable::go_on(table.keep()).unwrap();
    assert_eq!(again.paths(file), table.paths(file));
    assert!(again.is_nameless(gone) && again.identity(gone) == table.identity(gone));
    // No number is given again, a further name leads to the same file, and each forget counts.
    assert_eq!(again.lookup(ROOT, name("c"), identity(FILES), true), Some(file));
    assert!(again.lookup(ROOT, name("a2"), identity(7), false).unwrap() > gone);
    assert_eq!(again.forget(file, 2), []);
    assert_eq!(again.forget(file, 1), [file]);
    assert_eq!(again.forget(gone, 1), [gone]);
    let kept = table.keep();
    let rootless = KeptInodes { nodes: kept.nodes.into_iter().filter(|node| node.ino != ROOT).collect(), ..kept };
    assert!(InodeTable::go_on(rootless).is_none());
}

fn resident_mib() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() / 1024
}

/// As `find` over a thousand directories of a thousand files, and the kernel's forgetting of them.
#[test]
fn a_million_known_files_take_less_than_250_mib_and_give_them_back() {
    let before = resident_mib();
    let mut table = InodeTable::new(identity(0));
    let mut known = Vec::new();
    for directory in 0..1000 {
        let parent = table.lookup(ROOT, name(&format!("{directory:04}")), identity(0), false).unwrap();
        known.push(parent);
        for file in 0..1000 {
            known.push(table.lookup(parent, name(&format!("{file:04}")), identity(FILES + file), false).unwrap());
        }
    }
    let most = resident_mib() - before;
    for ino in known {
        table.forget(ino, 1);
        if table.has_shrunk() {
            crate::sys::give_memory_back();
        }
    }
    let left = resident_mib().saturating_sub(before);
    println!("{most} MiB for 1,001,000 nodes, {left} MiB when they are forgotten");
    assert!(most < 250, "{most} MiB");
    assert!(left < 40, "{left} MiB");
}
