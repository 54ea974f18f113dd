//! Cluster variables of frameworks, made from the roles of a job that was written for no other platform. One file each, but
//! for those that are platforms of their own as well: Paddle, and MPI with Horovod.

mod jax;
pub(super) mod mindspore;
mod mxnet;
mod pytorch;
mod tensorflow;
mod xgboost;

use super::topology::Pairs;
use super::{Task, mpi, paddle};
use crate::spec::Framework;

/// The port at which the first of the cluster is met.
const MEETING_PORT: u16 = 29500;

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    match task.spec.framework {
        Some(Framework::PyTorch | Framework::DeepSpeed) => pytorch::variables(task),
        Some(Framework::TensorFlow) => tensorflow::variables(task),
        Some(Framework::MxNet) => mxnet::variables(task),
        Some(Framework::XgBoost) => xgboost::variables(task),
        Some(Framework::Paddle) => paddle::variables(task),
        Some(Framework::MindSpore) => mindspore::variables(task),
        Some(Framework::Jax) => jax::variables(task),
        Some(Framework::Mpi | Framework::Horovod) => mpi::variables(task),
        None => Vec::new(),
    }
}
