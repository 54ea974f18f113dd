//! Chooses the role and maps the error to an exit code; everything else is in the library.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use trainyard::cli::{self, Cli, Verb};
use trainyard::config::{Config, Direct, Paths};
use trainyard::mounting::MountConfig;
use trainyard::sys::process::take_inherited;

fn main() -> ExitCode {
    // Where a shell asks what could come next it is told, and nothing else is done.
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    let cli = cli::arguments();
    cli::refuse_inner(&cli.verb);
    let done = match cli.verb {
        Verb::Shim { dir, lock_fd, .. } => shim(dir, lock_fd),
        Verb::Enter { dir, control_fd } => enter(dir, control_fd),
        Verb::Hold { dir_fd, lock_fd } => hold(dir_fd, lock_fd),
        Verb::Carry { directory_fd } => carry(directory_fd),
        Verb::Registry => registry(),
        Verb::Cards => cards(),
        Verb::Daemon => daemon(&cli),
        Verb::Mount { state_versions: true, .. } => state_versions(),
        Verb::Mount { answers: true, .. } => answers(&cli),
        Verb::Mount { lock_fd, kept_fd, direct, .. } => mount(&cli, lock_fd, kept_fd, direct),
        Verb::Direct { direct } => show_directly(&cli, direct),
        _ => cli::run(cli).map(|exit| ExitCode::from(exit.code())),
    };
    done.unwrap_or_else(|error| {
        tell(error.as_ref());
        ExitCode::FAILURE
    })
}

fn shim(dir: std::path::PathBuf, lock_fd: i32) -> anyhow::Result<ExitCode> {
    trainyard::shim::run(dir, take_inherited(lock_fd)?)?;
    Ok(ExitCode::SUCCESS)
}

fn enter(dir: std::path::PathBuf, control_fd: i32) -> anyhow::Result<ExitCode> {
    trainyard::shim::enter::run(dir, take_inherited(control_fd)?)?;
    Ok(ExitCode::SUCCESS)
}

fn hold(dir_fd: i32, lock_fd: i32) -> anyhow::Result<ExitCode> {
    trainyard::shim::hold::run(take_inherited(dir_fd)?, take_inherited(lock_fd)?)?;
    Ok(ExitCode::SUCCESS)
}

fn carry(directory_fd: i32) -> anyhow::Result<ExitCode> {
    trainyard::remote::run(take_inherited(directory_fd)?)?;
    Ok(ExitCode::SUCCESS)
}

fn registry() -> anyhow::Result<ExitCode> {
    trainyard::images::registry::run()?;
    Ok(ExitCode::SUCCESS)
}

fn cards() -> anyhow::Result<ExitCode> {
    trainyard::journal::begin();
    trainyard::gpu::run()?;
    Ok(ExitCode::SUCCESS)
}

fn daemon(cli: &Cli) -> anyhow::Result<ExitCode> {
    trainyard::journal::begin();
    // Its configuration may be what a restore was about to put in place.
    trainyard::backup::finish(&Paths::new(&cli.root)?)?;
    let config = Config::load(&cli.root)?;
    let fault = std::env::var("TRAINYARD_TEST_FAULT").ok();
    let fault = fault.map(|text| text.parse()).transpose().map_err(anyhow::Error::msg)?;
    trainyard::daemon::run(&config, fault)?;
    Ok(ExitCode::SUCCESS)
}

fn mount(cli: &Cli, lock_fd: Option<i32>, kept_fd: Option<i32>, direct: Option<Direct>) -> anyhow::Result<ExitCode> {
    trainyard::journal::begin();
    let lock = lock_fd.map(take_inherited).transpose()?;
    let kept = kept_fd.map(take_inherited).transpose()?;
    trainyard::mounting::run(&MountConfig::new(&cli.root, direct)?, lock, kept)?;
    Ok(ExitCode::SUCCESS)
}

fn state_versions() -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(trainyard::mounting::STATES_READ.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn answers(cli: &Cli) -> anyhow::Result<ExitCode> {
    trainyard::sys::answering::tell(&Paths::new(&cli.root)?.mount_point(), &mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

fn show_directly(cli: &Cli, direct: Option<Direct>) -> anyhow::Result<ExitCode> {
    trainyard::journal::begin();
    trainyard::mounting::direct::run(&MountConfig::new(&cli.root, direct)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The error and its causes, one line; no text repeats its source.
fn tell(error: &(dyn Error + 'static)) {
    let text = trainyard::sys::told(error);
    // Nobody is left to tell when standard error is closed.
    let lines: Vec<String> = text.lines().map(trainyard::sys::terminal::escape).collect();
    let _ = writeln!(std::io::stderr(), "trainyard: {}", lines.join("\n"));
}
