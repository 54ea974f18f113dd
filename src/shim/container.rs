//! The only user of libcontainer.
//!
//! It changes its caller (working directory, oom score, dumpable, clone without care for threads), so it runs in the
//! shim alone, which has one thread and nothing else to do.

use std::cell::RefCell;
use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::error::LibcontainerError;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::syscall::syscall::SyscallType;

use super::StreamEnds;
use super::init::{Init, read_report};
use super::rootfs::{self, MountError};
use super::step::InitReport;
use crate::rundir::{LaunchRecord, TaskDir};
use crate::sys::devices;
use crate::sys::file::remove_tree;
use crate::sys::idmap::outside;
use crate::sys::process::{PidFd, with_oom_score};

/// Why there is no container.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreateError {
    #[error("cannot open the task's logs: {0}")]
    Logs(#[source] io::Error),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("cannot enter the task's network: {0}")]
    Network(#[source] io::Error),
    #[error("cannot say which devices the task may open: {0}")]
    Devices(#[source] io::Error),
    #[error("cannot prepare the container: {0}")]
    Prepare(#[source] io::Error),
    #[error("{0}")]
    Container(String),
}

/// Where memory is short the kernel looks among tasks as among everything else.
const TASK_OOM_SCORE: i32 = 0;

pub(super) struct Container {
    inner: RefCell<libcontainer::container::Container>,
    init: PidFd,
    report: OwnedFd,
    /// A handle of `/dev/shm`.
    shm: OwnedFd,
}

impl Container {
    /// Makes the container; its first process waits for [`Self::start`].
    pub(super) fn create(dir: &TaskDir, launch: &LaunchRecord, ends: StreamEnds) -> Result<Self, CreateError> {
        if let Some(network) = &launch.network {
            crate::sys::netns::join(network).map_err(CreateError::Network)?;
        }
        let shm = rootfs::make(dir, launch)?;
        give_streams(dir, launch, &ends).map_err(CreateError::Prepare)?;
        let (report, init_report) = io::pipe().map_err(CreateError::Prepare)?;
        let (report, init_report) = (OwnedFd::from(report), OwnedFd::from(init_report));
        nix::fcntl::fcntl(&report, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .map_err(|errno| CreateError::Prepare(errno.into()))?;
        let stdin = File::open("/dev/null").map_err(CreateError::Prepare)?;
        // A shim that was killed has left its own, which would be in the way.
        remove_tree(&dir.container_state()).map_err(CreateError::Prepare)?;
        std::fs::create_dir_all(dir.container_state()).map_err(CreateError::Prepare)?;
        let build = || {
            ContainerBuilder::new(launch.task.to_string(), SyscallType::default())
                .with_root_path(dir.container_state())
                .and_then(|builder| {
                    builder.with_stdin(stdin).with_stdout(ends.stdout).with_stderr(ends.stderr).validate_id()
                })
                .and_then(|builder| {
                    builder
                        .with_executor(Init::new(&init_report, launch))
                        .as_init(dir.path())
                        .with_systemd(false)
                        .with_detach(true)
                        .build()
                })
        };
        let built = with_oom_score(TASK_OOM_SCORE, build).map_err(CreateError::Prepare)?;
        let inner = built.map_err(|error| CreateError::Container(explain(&error)))?;
        // Its first process waits: nothing has been opened yet.
        let own = launch.root.devices.iter().map(|node| devices::Device::of(node)).collect::<io::Result<Vec<_>>>();
        let all = own.map(|own| [devices::STANDARD.as_slice(), &own].concat()).map_err(CreateError::Devices)?;
        devices::allow_only(&launch.cgroup, &all).map_err(CreateError::Devices)?;
        let pid = inner.pid().map(|pid| pid.as_raw()).unwrap_or_default();
        let init = PidFd::open(pid).map_err(CreateError::Prepare)?;
        dir.write_init(pid).map_err(|error| CreateError::Prepare(io::Error::other(error)))?;
        Ok(Self { inner: RefCell::new(inner), init, report, shm })
    }

    pub(super) fn start(&self) -> Result<(), CreateError> {
        self.inner.borrow_mut().start().map_err(|error| CreateError::Container(explain(&error)))
    }

    /// Whether there is no room left in `/dev/shm`.
    pub(super) fn shm_is_full(&self) -> io::Result<bool> {
        let status = nix::sys::statvfs::fstatvfs(&self.shm)?;
        Ok(status.blocks() > 0 && status.blocks_available() == 0)
    }

    /// The container's first process.
    pub(super) fn init(&self) -> &PidFd {
        &self.init
    }

    /// What the first process has told of the command, if it has; to be asked until it is there.
    pub(super) fn report(&self) -> Option<InitReport> {
        read_report(&self.report)
    }

    /// Readable when [`Self::report`] has something to say.
    pub(super) fn report_pipe(&self) -> &OwnedFd {
        &self.report
    }

    /// Removes the container and its control groups, killing what is left in them.
    pub(super) fn delete(&self) {
        if let Err(error) = self.inner.borrow_mut().delete(true) {
            tracing::error!(error = %explain(&error), "cannot delete the container; the daemon will clean up");
        }
    }
}

/// Pipes belong to whoever makes them: without this, only the machine's root could open `/dev/stdout` and `/dev/stderr`.
fn give_streams(dir: &TaskDir, launch: &LaunchRecord, ends: &StreamEnds) -> io::Result<()> {
    let spec = Spec::load(dir.oci_config()).map_err(io::Error::other)?;
    let Some(user) = spec.process().as_ref().map(|process| process.user()) else { return Ok(()) };
    let (uid, gid) = (outside(&launch.ids.users, user.uid()), outside(&launch.ids.groups, user.gid()));
    [&ends.stdout, &ends.stderr].into_iter().try_for_each(|end| fchown(end, uid, gid))
}

/// The whole chain: libcontainer's outermost words alone say little.
fn explain(error: &LibcontainerError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}
