//! What needs no root and no kernel: the simulated daemon, the command line's files, the rules of the house.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests drive processes and may panic")]

#[path = "../support/invariants.rs"]
mod invariants;

#[path = "../support/nvml.rs"]
mod nvml;

mod documents;
mod features;
mod files;
mod gpus;
mod packages;
mod queue;
mod screens;
mod simulation;
mod supply;
mod tidy;
