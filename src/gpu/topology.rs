//! How cards are connected.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The way between two cards, the worse before the better; in letters as `nvidia-smi topo -m` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Link {
    /// NVML does not say.
    Unknown,
    /// From one socket to another.
    System,
    /// Through several host bridges of one NUMA node.
    Node,
    /// Through one host bridge.
    HostBridge,
    /// Through several PCIe switches.
    Switches,
    /// Through one PCIe switch.
    Switch,
    /// On one board.
    Board,
    /// So many NVLinks, directly or through NVSwitch.
    NvLink(u32),
}

impl Link {
    /// For sums: the better the more, and one NVLink more than all other ways of 8 cards together.
    pub(super) fn weight(self) -> u64 {
        match self {
            Link::Unknown => 0,
            Link::System => 1,
            Link::Node => 2,
            Link::HostBridge => 3,
            Link::Switches => 4,
            Link::Switch => 5,
            Link::Board => 6,
            Link::NvLink(count) => 200 * u64::from(count),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Unknown => f.write_str("?"),
            Link::System => f.write_str("SYS"),
            Link::Node => f.write_str("NODE"),
            Link::HostBridge => f.write_str("PHB"),
            Link::Switches => f.write_str("PXB"),
            Link::Switch => f.write_str("PIX"),
            Link::Board => f.write_str("BRD"),
            Link::NvLink(count) => write!(f, "NV{count}"),
        }
    }
}

/// The ways between cards, by their places. Unknown for places that it does not have, as of cards that are gone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Topology {
    rows: Vec<Vec<Link>>,
}

impl Topology {
    /// Asks `link` for each pair once, the lower place first.
    pub fn of(count: usize, mut link: impl FnMut(usize, usize) -> Link) -> Self {
        let mut rows = vec![vec![Link::Unknown; count]; count];
        for (a, b) in (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))) {
            let found = link(a, b);
            for (from, to) in [(a, b), (b, a)] {
                if let Some(place) = rows.get_mut(from).and_then(|row| row.get_mut(to)) {
                    *place = found;
                }
            }
        }
        Self { rows }
    }

    pub fn link(&self, a: usize, b: usize) -> Link {
        self.rows.get(a).and_then(|row| row.get(b)).copied().unwrap_or(Link::Unknown)
    }
}
