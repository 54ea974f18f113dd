//! Open MPI on the tasks of a job, without ssh: where the machine has it.

use std::fs;
use std::process::Command;

use super::support::{Instance, has_tools, text};

/// Adds up pi over all ranks, and says where they run.
const PI: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank, size;
    char host[256];
    double part = 0, whole = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    gethostname(host, sizeof host);
    for (long i = rank; i < 1000000; i += size) {
        double x = (i + 0.5) / 1e6;
        part += 4 / (1 + x * x);
    }
    MPI_Reduce(&part, &whole, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    printf("rank %d of %d on %s\n", rank, size, host);
    if (rank == 0) printf("pi is %.6f\n", whole / 1e6);
    MPI_Finalize();
    return 0;
}
"#;

fn program(instance: &Instance) {
    let code = instance.root().join("var/lib/trainyard/workspaces/default/code/pi");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("pi.c"), PI).unwrap();
    let made = Command::new("mpicc").arg("-o").arg(code.join("pi")).arg(code.join("pi.c")).status().unwrap();
    assert!(made.success());
}

#[test]
fn open_mpi_starts_its_ranks_on_the_tasks_of_the_job() {
    const TEST: &str = "open_mpi_starts_its_ranks_on_the_tasks_of_the_job";
    if !has_tools(TEST, &["mpirun", "mpicc", "ip"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    program(&instance);
    let job = "framework = \"mpi\"\ncode = \"pi\"\ncommand = \"mpirun /code/pi\"\nmax_duration = \"50s\"\n\
        resources = { cpu = 0.5, memory = \"256MiB\" }\n[roles.worker]\ncount = 2\nresources.cpu = 2\n";
    let report = instance.run_job("pi", job);
    let log = instance.log("pi", "launcher-0");
    assert_eq!(report["state"], "succeeded", "{report:#}\n{log}");
    let mut ranks: Vec<&str> = log.lines().filter(|line| line.starts_with("rank ")).collect();
    ranks.sort_unstable();
    assert_eq!(
        ranks,
        ["rank 0 of 4 on worker-0", "rank 1 of 4 on worker-0", "rank 2 of 4 on worker-1", "rank 3 of 4 on worker-1"]
    );
    assert!(log.contains("pi is 3.141593"), "{log}");
    // The end of the launcher is the job's, and a rank that fails is told.
    let failing = job.replace("mpirun /code/pi", "mpirun sh -c 'exit 7'");
    let report = instance.run_job("failing", &failing);
    assert_eq!(report["state"], "failed", "{report:#}");
    assert!(text(&report["reason"]).contains("launcher-0 exited with code 7"), "{report:#}");
    instance.shutdown();
}

#[test]
fn what_knows_no_other_name_than_ssh_reaches_the_tasks() {
    const TEST: &str = "what_knows_no_other_name_than_ssh_reaches_the_tasks";
    if !has_tools(TEST, &["ip"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let job = r#"
framework = "mpi"
code = "own"
env.PATH = "/code:/usr/bin:/bin"
command = """
ssh -o StrictHostKeyChecking=no -p 22 worker-1 -o ConnectTimeout=3 'echo I am $(hostname); exit 3'; echo ended $?
ssh nowhere.invalid true; echo ended $?
PATH=/run/trainyard/bin:/usr/bin:/bin ssh nowhere.invalid true
"""
max_duration = "50s"
resources = { cpu = 0.5, memory = "128MiB" }
[roles.worker]
count = 2
"#;
    let code = instance.root().join("var/lib/trainyard/workspaces/default/code/own");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("ssh"), "#!/bin/sh\necho the image\\'s own was asked for $1\n").unwrap();
    fs::set_permissions(code.join("ssh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let report = instance.run_job("ssh", job);
    let log = instance.log("ssh", "launcher-0");
    assert!(
        log.starts_with("I am worker-1\nended 3\nthe image's own was asked for nowhere.invalid\nended 0\n"),
        "{report:#}\n{log}"
    );
    // Unless this machine, whose programs it sees, has one there.
    if !["/usr/bin/ssh", "/bin/ssh"].iter().any(|ssh| std::path::Path::new(ssh).exists()) {
        assert!(log.contains("no task of this job is called nowhere.invalid"), "{log}");
    }
    instance.shutdown();
}
