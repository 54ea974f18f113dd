//! What a workspace shows: the files that the daemon publishes of its jobs, and the rules of the mount.

pub mod control;
pub mod pace;
pub mod publish;
pub mod quota;
pub mod view;
