//! Whether a card may be trusted with a job: a table of rules over its [`Signs`].
//!
//! The rules and their limits are those of NVIDIA's DCGM (`modules/health/DcgmHealthWatch.cpp`), but what has no meaning
//! on one machine: its rates of PCIe replays and errors of links need a history, and each such error that matters comes
//! as an XID as well. XIDs that a program causes by itself (13, 45) say nothing of the card. The state of the fabric manager, which
//! DCGM watches on machines with NVSwitches, is not among the signs: the wrapper of NVML (nvml-wrapper 0.13) has no call for it. Where
//! it is not ready CUDA refuses every program there with an error that says so (`CUDA_ERROR_SYSTEM_NOT_READY`).

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Recovery, Signs};
use crate::ids::{GpuUuid, Timestamp};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// It is shown; jobs go on and come.
    Warning,
    /// No job is to be started on the card, but those on it go on.
    Unusable,
    /// No job is to be started on the card, and those on it are told.
    Failed,
}

/// That a rule applies, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub rule: String,
    pub level: Level,
    /// What was seen, and what there is to do about it.
    pub says: String,
}

/// What all findings come to; `None` for a card without any.
pub fn worst(findings: &[Finding]) -> Option<Level> {
    findings.iter().map(|finding| finding.level).max()
}

/// Where XIDs of a card are kept.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    pub file: &'a Path,
    pub uuid: &'a GpuUuid,
}

/// The rules that apply, the worst first, else in the order of the tables.
pub fn judge(signs: &Signs, xids: Option<Kept<'_>>) -> Vec<Finding> {
    let rules = RULES.iter().filter_map(|(name, level, says)| {
        let says = says(signs)?;
        Some(Finding { rule: (*name).to_owned(), level: *level, says })
    });
    let mut found: Vec<Finding> = rules.chain(signs.xids.iter().filter_map(|xid| by_xid(xid, xids))).collect();
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    found
}

type Rule = (&'static str, Level, fn(&Signs) -> Option<String>);

/// Retired pages, of either kind, from which a card is replaced.
const RETIRED_MAX: u32 = 63;
/// Pages retired for double-bit errors, beyond which it matters how many come in a week.
const RETIRED_DOUBLE_MAX: u32 = 15;
/// Rows remapped for uncorrectable errors from which on the spare ones run low.
const REMAPPED_MAX: u64 = 512;

const RULES: [Rule; 14] = [
    ("lost", Level::Failed, |signs| {
        let how = signs.lost.as_ref()?;
        Some(format!("does not answer ({how}); `dmesg | grep -i xid` tells more, a reboot may bring it back"))
    }),
    ("needs-reset", Level::Failed, |signs| {
        signs.recovery.filter(|action| *action == Recovery::Reset)?;
        Some("the driver asks for a reset: `nvidia-smi --gpu-reset` when nothing uses it".to_owned())
    }),
    ("needs-reboot", Level::Failed, |signs| {
        signs.recovery.filter(|action| *action == Recovery::Reboot)?;
        Some("the driver asks for a reboot of the machine".to_owned())
    }),
    ("needs-drain-and-reset", Level::Failed, |signs| {
        signs.recovery.filter(|action| *action == Recovery::DrainAndReset)?;
        Some("the driver asks for a reset when its jobs have ended: `nvidia-smi --gpu-reset`".to_owned())
    }),
    ("no-device", Level::Unusable, |signs| Some(signs.no_device.as_ref()?.says.clone())),
    ("drain-peers", Level::Warning, |signs| {
        signs.recovery.filter(|action| *action == Recovery::DrainPeers)?;
        Some("the driver asks that nothing new uses its links to other cards".to_owned())
    }),
    ("recovery-unknown", Level::Warning, |signs| match signs.recovery? {
        Recovery::Other(number) => Some(format!("the driver asks for recovery action {number}, unknown to Trainyard")),
        _ => None,
    }),
    ("ecc-uncorrected", Level::Failed, |signs| {
        let count = signs.ecc?.uncorrected;
        (count > 0).then(|| format!("{count} uncorrected errors of memory since the driver was loaded; reset the card"))
    }),
    ("row-remap-failed", Level::Failed, |signs| {
        signs.remapped.filter(|rows| rows.failed)?;
        Some("a bad row of memory could not be replaced; the card is to be exchanged".to_owned())
    }),
    ("rows-remapped", Level::Warning, |signs| {
        let count = signs.remapped?.uncorrectable;
        (count >= REMAPPED_MAX).then(|| format!("{count} rows of memory have been replaced; few spare ones are left"))
    }),
    ("pages-retired", Level::Failed, |signs| {
        let retired = signs.retired?;
        let count = retired.single_bit.saturating_add(retired.double_bit);
        (count >= RETIRED_MAX).then(|| {
            format!("{count} pages of memory are retired, {RETIRED_MAX} are too many; the card is to be exchanged")
        })
    }),
    ("pages-retire-fast", Level::Failed, |signs| {
        let retired = signs.retired?;
        let fast = retired.double_bit > RETIRED_DOUBLE_MAX && retired.double_bit_lately > 1;
        fast.then(|| {
            let (all, lately) = (retired.double_bit, retired.double_bit_lately);
            format!("{all} pages of memory are retired for double-bit errors, {lately} of them in the last week; the card is to be exchanged")
        })
    }),
    ("memory-repair-pending", Level::Warning, |signs| {
        let pending =
            signs.retired.is_some_and(|pages| pages.pending) || signs.remapped.is_some_and(|rows| rows.pending);
        pending.then(|| "bad memory will be replaced when the card is next reset".to_owned())
    }),
    ("slowed", Level::Warning, |signs| match (signs.slowed.by_heat, signs.slowed.by_power_brake) {
        (false, false) => None,
        (true, _) => {
            let degrees = signs.temperature.map_or(String::new(), |degrees| format!(" ({degrees} °C)"));
            Some(format!("its clocks are lowered for heat{degrees}"))
        }
        (false, true) => Some("its clocks are lowered, since the power supply asks for it".to_owned()),
    }),
];

/// Errors of the driver by number.
const XIDS: [(u64, Level, &str); 27] = [
    (31, Level::Warning, "MMU error, mostly an illegal address in a program"),
    (32, Level::Warning, "PBDMA error"),
    (38, Level::Warning, "PCIe bus error"),
    (39, Level::Warning, "PCIe fabric error"),
    (42, Level::Warning, "PCIe replay error"),
    (43, Level::Warning, "a program was stopped after an error"),
    (48, Level::Failed, "double-bit error of memory"),
    (54, Level::Warning, "power connector or power state"),
    (56, Level::Warning, "clock change"),
    (57, Level::Warning, "clock change for power"),
    (58, Level::Warning, "clock change for heat"),
    (60, Level::Warning, "heat"),
    (61, Level::Warning, "power brake"),
    (62, Level::Warning, "heat"),
    (63, Level::Warning, "memory will be repaired at the next reset"),
    (64, Level::Failed, "memory could not be repaired"),
    (67, Level::Warning, "NVLink error"),
    (73, Level::Warning, "NVLink flow control error"),
    (74, Level::Failed, "critical NVLink error"),
    (78, Level::Warning, "forced power state"),
    (79, Level::Failed, "fell off the bus"),
    (93, Level::Warning, "the card's InfoROM is corrupt or cannot be written"),
    (94, Level::Warning, "contained error of memory; the program on it was stopped"),
    (95, Level::Failed, "uncontained error of memory"),
    (119, Level::Failed, "the card's own processor does not answer"),
    (120, Level::Failed, "the card's own processor has failed"),
    (140, Level::Failed, "unrecovered error of memory"),
];

/// Those of NVLink that came with newer cards.
const NEWER_XIDS: [(u64, Level, &str); 2] =
    [(121, Level::Warning, "corrected error of the link to the CPU"), (137, Level::Warning, "NVLink privilege error")];

/// Those that tell of a program on the card rather than of the card, as each crash of one does: they are warned of for a while.
const PASSING: [u64; 2] = [31, 43];
/// For so long, ms: a day.
const PASSES_MS: u64 = 24 * 3600 * 1000;

/// It came so long ago that it no longer says anything of the card.
pub fn has_passed(xid: &super::Xid, now: Timestamp) -> bool {
    PASSING.contains(&xid.number) && now.0.saturating_sub(xid.at.0) >= PASSES_MS
}

/// Of XIDs for which no job is started on a card. A reset that is done while nobody looks leaves no trace, hence the file.
fn cure(kept: Option<Kept<'_>>) -> String {
    let (which, take_out) = kept.map_or_else(Default::default, |Kept { file, uuid }| {
        let file = file.display();
        (
            format!(" -i {uuid}"),
            format!(
                ", put {{}} in the place of what stands behind \"{uuid}\" in {file} (all else there is of other cards)"
            ),
        )
    });
    format!(
        "; reboot the machine, or stop the daemon, reset the card with `nvidia-smi --gpu-reset{which}`{take_out} and start the daemon"
    )
}

fn by_xid(xid: &super::Xid, kept: Option<Kept<'_>>) -> Option<Finding> {
    let (number, level, what) = XIDS.iter().chain(&NEWER_XIDS).find(|(number, ..)| *number == xid.number)?;
    let cure = match level {
        Level::Failed => cure(kept),
        _ if PASSING.contains(number) => "; nothing is to be done: this is told for a day".to_owned(),
        Level::Warning | Level::Unusable => String::new(),
    };
    let says = format!("{what} (XID {number}, {}){cure}", xid.at);
    Some(Finding { rule: format!("xid-{number}"), level: *level, says })
}

#[cfg(test)]
mod tests {
    use super::super::{Ecc, Remapped, Retired, Slowed, Xid};
    use super::*;

    fn rules(signs: &Signs) -> Vec<(String, Level)> {
        judge(signs, None).into_iter().map(|finding| (finding.rule, finding.level)).collect()
    }

    #[test]
    fn each_rule_applies_from_its_limit_on_and_no_other_with_it() {
        let signs = Signs::default;
        let retired = |single_bit, double_bit, double_bit_lately, pending| Signs {
            retired: Some(Retired { single_bit, double_bit, double_bit_lately, pending }),
            ..signs()
        };
        let remapped = |uncorrectable, pending, failed| Signs {
            remapped: Some(Remapped { correctable: 9, uncorrectable, pending, failed }),
            ..signs()
        };
        let ecc = |uncorrected| Signs { ecc: Some(Ecc { corrected: 1000, uncorrected }), ..signs() };
        let recovery = |action| Signs { recovery: Some(action), ..signs() };
        let slowed = |by_heat, by_power_brake| Signs { slowed: Slowed { by_heat, by_power_brake }, ..signs() };
        let cases: Vec<(Signs, Option<(&str, Level)>)> = vec![
            (signs(), None),
            (Signs { temperature: Some(95), ..signs() }, None),
            (Signs { lost: Some("x".to_owned()), ..signs() }, Some(("lost", Level::Failed))),
            (
                Signs {
                    no_device: Some(super::super::nodes::Missing { says: "x".to_owned(), maker: None }),
                    ..signs()
                },
                Some(("no-device", Level::Unusable)),
            ),
            (recovery(Recovery::Nothing), None),
            (recovery(Recovery::Reset), Some(("needs-reset", Level::Failed))),
            (recovery(Recovery::Reboot), Some(("needs-reboot", Level::Failed))),
            (recovery(Recovery::DrainAndReset), Some(("needs-drain-and-reset", Level::Failed))),
            (recovery(Recovery::DrainPeers), Some(("drain-peers", Level::Warning))),
            (recovery(Recovery::Other(9)), Some(("recovery-unknown", Level::Warning))),
            (ecc(0), None),
            (ecc(1), Some(("ecc-uncorrected", Level::Failed))),
            (remapped(511, false, false), None),
            (remapped(512, false, false), Some(("rows-remapped", Level::Warning))),
            (remapped(0, true, false), Some(("memory-repair-pending", Level::Warning))),
            (remapped(0, false, true), Some(("row-remap-failed", Level::Failed))),
            (retired(62, 0, 0, false), None),
            (retired(62, 1, 1, false), Some(("pages-retired", Level::Failed))),
            (retired(0, 15, 15, false), None),
            (retired(0, 16, 1, false), None),
            (retired(0, 16, 2, false), Some(("pages-retire-fast", Level::Failed))),
            (retired(0, 0, 0, true), Some(("memory-repair-pending", Level::Warning))),
            (slowed(true, false), Some(("slowed", Level::Warning))),
            (slowed(false, true), Some(("slowed", Level::Warning))),
        ];
        for (signs, wanted) in cases {
            let wanted: Vec<_> = wanted.into_iter().map(|(rule, level)| (rule.to_owned(), level)).collect();
            assert_eq!(rules(&signs), wanted, "{signs:?}");
        }
    }

    #[test]
    fn xids_are_judged_as_dcgm_does() {
        let failed = [48, 64, 74, 79, 95, 119, 120, 140];
        let warned = [31, 32, 38, 39, 42, 43, 54, 56, 57, 58, 60, 61, 62, 63, 67, 73, 78, 93, 94, 121, 137];
        for number in 0..200 {
            let signs = Signs { xids: vec![Xid { number, at: Timestamp(0) }], ..Signs::default() };
            let wanted = match () {
                () if failed.contains(&number) => Some(Level::Failed),
                () if warned.contains(&number) => Some(Level::Warning),
                () => None,
            };
            let found = judge(&signs, None);
            assert_eq!(worst(&found), wanted, "XID {number}");
            assert!(found.iter().all(|finding| finding.rule == format!("xid-{number}")));
        }
    }

    #[test]
    fn what_a_crash_of_a_program_leaves_is_told_for_a_day_and_what_tells_of_the_card_for_ever() {
        let (day, at) = (24 * 3600 * 1000, Timestamp(1_700_000_000_000));
        for (number, after, passed) in
            [(31, day, true), (43, day, true), (31, day - 1, false), (32, day, false), (79, day, false)]
        {
            assert_eq!(
                has_passed(&Xid { number, at }, Timestamp(at.0 + after)),
                passed,
                "XID {number} after {after} ms"
            );
        }
    }

    #[test]
    fn the_worst_is_told_first_and_says_what_was_seen() {
        let at = Timestamp(1_700_000_000_000);
        let signs = Signs {
            xids: vec![Xid { number: 31, at }, Xid { number: 79, at }],
            slowed: Slowed { by_heat: true, by_power_brake: true },
            temperature: Some(91),
            ..Signs::default()
        };
        let uuid = "GPU-7".parse().unwrap();
        let kept = Kept { file: Path::new("/srv/x/run/trainyard/xids.json"), uuid: &uuid };
        let said: Vec<String> = judge(&signs, Some(kept)).into_iter().map(|finding| finding.says).collect();
        let wanted = [
            "fell off the bus (XID 79, 2023-11-14T22:13:20.000Z); reboot the machine, or stop the daemon, reset the card \
             with `nvidia-smi --gpu-reset -i GPU-7`, put {} in the place of what stands behind \"GPU-7\" in /srv/x/run/trainyard/xids.json (all else \
             there is of other cards) and start the daemon",
            "its clocks are lowered for heat (91 °C)",
            "MMU error, mostly an illegal address in a program (XID 31, 2023-11-14T22:13:20.000Z); nothing is to be done: this is \
             told for a day",
        ];
        assert_eq!(said, wanted);
    }
}
