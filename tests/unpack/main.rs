//! The archives that a layer may be, and what becomes of them. Needs root and a file system with extended attributes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests and their helpers")]

#[path = "support/archive.rs"]
mod archive;
mod bombs;
mod differential;
mod duplicates;
mod fuzz;
mod hostile;
mod marks;
mod million;
mod ordinary;
mod streams;
#[path = "support/tree.rs"]
mod tree;
