//! Where everything lies.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{ConfigError, JobFiles};
use crate::ids::{AttemptId, HomeName, JobKey, TaskName, WorkspaceName};

/// Where things lie; all below one root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    pub fn new(root: &Path) -> Result<Self, ConfigError> {
        let root = std::path::absolute(root)
            .and_then(|path| canonical(&path))
            .map_err(|source| ConfigError::Root { path: root.to_owned(), source })?;
        Ok(Self { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Eight hexadecimal digits that tell this installation's bridges and cgroups from another's on the machine.
    pub fn instance(&self) -> String {
        use std::os::unix::ffi::OsStrExt;
        let digest = Sha256::digest(self.root.as_os_str().as_bytes());
        digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }

    /// 10.213.0.0/16 for the service; an installation elsewhere gets a range of its own, since two of one range on a
    /// machine would lead to each other's tasks.
    pub(super) fn default_range(&self) -> String {
        let digit = u8::from_str_radix(self.instance().get(..2).unwrap_or("0"), 16).unwrap_or(0);
        let second = if self.root == Path::new("/") { 213 } else { 100 + digit % 100 };
        format!("10.{second}.0.0/16")
    }

    /// The configuration, job files and secrets.
    pub fn config_dir(&self) -> PathBuf {
        self.root.join("etc/trainyard")
    }

    pub fn config_file(&self) -> PathBuf {
        self.root.join("etc/trainyard/trainyard.toml")
    }

    pub fn jobs_d(&self) -> PathBuf {
        self.root.join("etc/trainyard/jobs.d")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/trainyard")
    }

    /// Where the job files of a workspace lie; those of `default` are in `jobs.d` itself.
    pub fn job_files(&self, workspace: &WorkspaceName) -> PathBuf {
        JobFiles::directory(&self.jobs_d(), workspace)
    }

    /// Whether there is such a workspace: one has a directory of job files, or keeps what it has had. Blocks.
    pub fn has_workspace(&self, workspace: &WorkspaceName) -> bool {
        if *workspace == WorkspaceName::default_workspace() {
            return true;
        }
        // What one may not look into is there, but for what the daemon alone may look into.
        let found = |path: PathBuf| path.symlink_metadata().map(|found| found.is_dir());
        let job_files = JobFiles::of(&self.jobs_d(), workspace).map(|found| matches!(found, JobFiles::Open(_)));
        if job_files.unwrap_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return true;
        }
        match found(self.workspace(workspace)) {
            Ok(is_there) => is_there,
            // The daemon itself, which must not wait for the mount, never comes here.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                found(self.mount_point().join(workspace.as_str()))
                    .unwrap_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied)
            }
            Err(_) => false,
        }
    }

    pub fn store_file(&self) -> PathBuf {
        self.state_dir().join("state.redb")
    }

    /// One private directory for each attempt that is not yet cleaned up.
    pub fn attempts(&self) -> PathBuf {
        self.state_dir().join("attempts")
    }

    pub fn attempt(&self, attempt: AttemptId) -> PathBuf {
        self.attempts().join(attempt.to_string())
    }

    /// Which subordinate user ids each owner has.
    pub fn subordinate_ids(&self) -> PathBuf {
        self.state_dir().join("subordinate-ids")
    }

    /// What workspaces log in with; root alone may read there.
    pub fn secrets(&self) -> PathBuf {
        self.root.join("etc/trainyard/secrets")
    }

    /// Who may come over the network; root alone may read there.
    pub fn tokens(&self) -> PathBuf {
        self.root.join("etc/trainyard/tokens")
    }

    /// What is still to be told to others.
    pub fn alerts(&self) -> PathBuf {
        self.state_dir().join("alerts")
    }

    /// Images and their layers.
    pub fn images(&self) -> PathBuf {
        self.state_dir().join("images")
    }

    pub fn host_layer(&self) -> PathBuf {
        self.state_dir().join("images/host")
    }

    /// Python packages that were installed for jobs.
    pub fn requirements(&self) -> PathBuf {
        self.state_dir().join("requirements")
    }

    /// What was copied in from stores of other machines.
    pub fn remote(&self) -> PathBuf {
        self.state_dir().join("remote")
    }

    /// Runs whose output is still to be copied to stores of other machines.
    pub fn outbox(&self) -> PathBuf {
        self.state_dir().join("outbox")
    }

    /// What is to be known of what workspaces keep when the machine is started.
    pub fn storage(&self) -> PathBuf {
        self.state_dir().join("storage")
    }

    /// What the mount shows.
    pub fn workspaces(&self) -> PathBuf {
        self.state_dir().join("workspaces")
    }

    pub fn home(&self, home: &HomeName) -> PathBuf {
        self.workspaces().join(home.as_str())
    }

    pub fn workspace(&self, workspace: &WorkspaceName) -> PathBuf {
        self.workspaces().join(workspace.as_str())
    }

    pub fn job(&self, key: &JobKey) -> PathBuf {
        self.workspace(&key.workspace).join("jobs").join(key.job.as_str())
    }

    pub fn run(&self, key: &JobKey, run: u32) -> PathBuf {
        self.job(key).join("runs").join(run.to_string())
    }

    /// Where a task's logs and status lie.
    pub fn task(&self, key: &JobKey, run: u32, attempt: u32, task: &TaskName) -> PathBuf {
        self.run(key, run).join("attempts").join(attempt.to_string()).join(task.to_string())
    }

    pub fn model(&self, key: &JobKey, run: u32) -> PathBuf {
        self.workspace(&key.workspace).join("models").join(key.job.as_str()).join(run.to_string())
    }

    /// Where state, images and workspaces lie, which may be one disk or three.
    pub fn disks(&self) -> [PathBuf; 3] {
        [self.state_dir(), self.images(), self.workspaces()]
    }

    pub fn run_dir(&self) -> PathBuf {
        self.root.join("run/trainyard")
    }

    pub fn api_socket(&self) -> PathBuf {
        self.run_dir().join("api.sock")
    }

    /// Where shims tell that something changed.
    pub fn news_socket(&self) -> PathBuf {
        self.run_dir().join("news.sock")
    }

    /// The bell of whoever shows directories directly.
    pub fn direct_bell(&self) -> PathBuf {
        self.run_dir().join("direct.sock")
    }

    /// What errors the driver has reported of cards since the machine was started.
    pub fn xids(&self) -> PathBuf {
        self.run_dir().join("xids.json")
    }

    pub fn daemon_lock(&self) -> PathBuf {
        self.run_dir().join("daemon.lock")
    }

    /// Who has drained the machine; it is over when the machine is started anew.
    pub fn drain_file(&self) -> PathBuf {
        self.run_dir().join("drained.json")
    }

    pub fn mount_lock(&self) -> PathBuf {
        self.run_dir().join("mount.lock")
    }

    /// Why the mount process does not go on as the daemon's program; it tells the daemon by that.
    pub fn mount_refusal(&self) -> PathBuf {
        self.run_dir().join("mount.refusal")
    }

    /// Network namespaces and shared memory of attempts; gone after a reboot, as they are.
    pub fn kernel_objects(&self) -> PathBuf {
        self.run_dir().join("attempts")
    }

    /// By which the mount is known in the machine's table of mounts.
    pub fn mount_source(&self) -> String {
        format!("trainyard-{}", self.instance())
    }

    pub fn mount_point(&self) -> PathBuf {
        self.root.join("srv/trainyard")
    }
}

/// Without links, also as far as it is not there yet: an installation has one name from the first start on.
fn canonical(path: &Path) -> io::Result<PathBuf> {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(canonical(parent)?.join(name))
        }
        (result, ..) => result,
    }
}

#[cfg(test)]
mod workspace_tests {
    use super::*;

    #[test]
    fn a_workspace_is_there_with_job_files_or_what_it_has_left() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        let has = |name: &str| paths.has_workspace(&name.parse().unwrap());
        for directory in
            [paths.jobs_d().join("lab"), paths.workspaces().join("left"), paths.mount_point().join("stray")]
        {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(paths.jobs_d().join("file"), "").unwrap();
        let named = ["default", "lab", "left", "file", "none"].map(has);
        assert_eq!(named, [true, true, true, false, false]);
    }
}
