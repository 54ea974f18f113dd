pub mod ids;
pub mod spec;
pub mod sys;
