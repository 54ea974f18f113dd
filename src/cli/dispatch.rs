//! From arguments to the verb that does it.

use std::path::Path;

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::listing::Form;
use super::times::duration;
use super::verbs::{Cli, ContractVerb, Verb};
use super::{
    Exit, WrongArgument, backup, change, check, client, confirm, contract, cp, dataset, doctor, drain, events, exec,
    explain, generate, gpu, image, import, logs, model, new, output, ps, queue, secret, shelf, show, shutdown, spec,
    status, template, token, top, usage, wait, whose, workspace,
};
use crate::api::client::Follow;
use crate::backup::{Replace, Tokens, Wanted};
use crate::config::Paths;
use crate::status::StopHow;

pub(super) async fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    let format = output::Format::of(cli.json);
    if cli.no_color {
        output::paint_nothing();
    }
    let client = || client(&cli.root);
    match cli.verb {
        Verb::Ps { filter, long, listed, watch, all: _ } => {
            whose::known_if_named(&cli.root, filter.workspace())?;
            let (client, form) = (client()?, listed.or_wide(long, format));
            watch.jobs(&client, async || ps::run(&client, &filter, form).await).await
        }
        Verb::Top { every, workspace } => {
            let every = duration(&every)?;
            top::run(&client()?, &Paths::new(&cli.root)?, every, workspace.as_deref(), format).await
        }
        Verb::Queue { workspace, listed, watch } => {
            whose::known_if_named(&cli.root, workspace.as_deref())?;
            let (client, form) = (client()?, listed.form(format));
            watch.jobs(&client, async || queue::run(&client, workspace.as_deref(), form).await).await
        }
        Verb::Status { job, run } => status::run(&client()?, &job, run, format).await,
        Verb::Logs { job, task, follow, lines, since, until, run, attempt, exit_code } => {
            let request =
                logs::Request { first: job, second: task, follow, lines, since, until, run, attempt, exit_code };
            logs::run(&client()?, &Paths::new(&cli.root)?, request, format).await
        }
        Verb::Exec { interactive, tty, job, task, command } => {
            exec::run(&client()?, exec::Request { interactive, tty, job, task, command }).await
        }
        Verb::Cp { from, to } => cp::run(&client()?, &from, &to, format).await,
        Verb::Events { job, workspace, follow, after, lines, since, until, listed } => {
            whose::known_if_named(&cli.root, workspace.as_deref())?;
            let follow = if follow { Follow::Yes } else { Follow::No };
            let of = job.map_or(events::Of::Workspace(workspace), events::Of::Job);
            let wanted = events::Wanted::new(of, follow, after, lines, [since, until])?;
            events::run(&client()?, wanted, listed.form(format)).await
        }
        Verb::Stop { jobs, all, now, yes, dry_run } => {
            let how = if now { StopHow::AtOnce } else { StopHow::WithGrace };
            match all {
                true => change::stop_all(&client()?, how, confirm::Bulk::of(yes, dry_run), format).await,
                false => change::run(&client()?, change::Change::Stop { how }, &jobs, format).await,
            }
        }
        Verb::Restart { jobs } => change::run(&client()?, change::Change::Restart, &jobs, format).await,
        Verb::Rerun { jobs } => change::run(&client()?, change::Change::Rerun, &jobs, format).await,
        Verb::Extend { job, by } => {
            let by = duration(&by)?;
            if by.is_zero() {
                let why = format!("a job is extended by more than nothing, as in `trainyard extend {job} 2h`");
                return Err(WrongArgument(why).into());
            }
            change::run(&client()?, change::Change::Extend { by }, &[job], format).await
        }
        Verb::Send { drop, jobs } => change::run(&client()?, change::Change::Send { drop }, &jobs, format).await,
        Verb::Rm { file, yes, dry_run, jobs } => {
            change::remove(&client()?, file, confirm::Bulk::of(yes, dry_run), &jobs, format).await
        }
        Verb::Wait { jobs, any, all: _, timeout, exit_code } => {
            let code = if exit_code { wait::Code::Command } else { wait::Code::Verdict };
            let most = timeout.as_deref().map(duration).transpose()?;
            let until = if any { wait::Until::Any } else { wait::Until::All };
            let wanted = wait::Wanted { jobs, code, until, most };
            wait::run(&client()?, &Paths::new(&cli.root)?, &wanted, format).await
        }
        Verb::Show { job, effective, file } => {
            if file {
                return show::run_file(Path::new(&job), &shelf::Shelf::open(&cli.root)?, effective, format);
            }
            show::run(&job, &show::ask(&client()?, &job).await?, effective, format)
        }
        Verb::Image(verb) => {
            whose::known_if_named(&cli.root, verb.workspace())?;
            image::run(&client()?, verb, format).await
        }
        Verb::Dataset(verb) => dataset::run(&cli.root, client, verb, format).await,
        Verb::Model(verb) => model::run(&cli.root, client, &verb, format).await,
        Verb::Secret(verb) => {
            whose::known_if_named(&cli.root, verb.workspace())?;
            secret::run(&cli.root, verb, format)
        }
        Verb::Gpu { listed, watch } => {
            let (client, form) = (client()?, listed.form(format));
            watch.cards(async || gpu::run(&client, form).await).await
        }
        Verb::Token(verb) => {
            verb.workspaces().iter().try_for_each(|name| whose::known(&cli.root, name))?;
            token::run(&client()?, verb, format).await
        }
        Verb::Workspace { name, listed } => workspace::run(&client()?, name.as_ref(), listed.form(format)).await,
        Verb::Usage { by, workspace, since, csv, listed } => {
            whose::known_if_named(&cli.root, workspace.as_deref())?;
            let form = match listed.form(format) {
                Form::Table if csv => Form::Csv,
                form => form,
            };
            usage::run(&client()?, by, workspace.as_deref(), since.as_deref(), form).await
        }
        Verb::New { job, template, from, replace, dry_run, param, advanced } => {
            let from = new::From { template: template.as_deref(), file: from.as_deref(), values: &param };
            let depth = if advanced { new::Depth::Advanced } else { new::Depth::Basic };
            match new::can_ask(&from, format) && !dry_run {
                true => new::ask(&client()?, &cli.root, &job, from.template, depth, replace).await,
                false if advanced => Err(WrongArgument("--advanced asks, which takes a terminal".to_owned()).into()),
                false if from.template.is_none() && from.file.is_none() => nothing_to_make_it_of(),
                false => new::new(&client()?, &cli.root, &job, &from, new::Writes::of(replace, dry_run), format).await,
            }
        }
        Verb::Clone { job, new, held } => new::clone(&client()?, &cli.root, &job, &new, held, format).await,
        Verb::Spec(verb) => {
            whose::known(&cli.root, verb.workspace())?;
            spec::run(&cli.root, &verb, format)
        }
        Verb::Template(verb) => {
            whose::known_if_named(&cli.root, verb.workspace())?;
            template::run(&cli.root, verb, format)
        }
        Verb::Check { files, effective } => {
            check::run(&client()?, &files, &shelf::Shelf::open(&cli.root)?, effective, format).await
        }
        Verb::Contract { verb: ContractVerb::Ls { listed } } => contract::list(listed.form(format)),
        Verb::Contract { verb: ContractVerb::Show { name } } => contract::show(&name, format),
        Verb::Import { files, output, dry_run } => {
            let writes = if dry_run { import::Writes::Nothing } else { import::Writes::Files };
            import::run(&files, output.as_deref(), writes, format)
        }
        Verb::Export { job, openpai: _, file } => {
            if file {
                return import::run_export_file(Path::new(&job), &shelf::Shelf::open(&cli.root)?, format);
            }
            import::run_export(&job, &show::ask(&client()?, &job).await?, format)
        }
        Verb::Explain { key, markdown } => explain::run(key.as_deref(), markdown, format),
        Verb::Drain { wait, undo, dry_run } => {
            let drain = match (wait, undo) {
                _ if dry_run => drain::Drain::Look,
                (_, true) => drain::Drain::Undo,
                (true, false) => drain::Drain::Wait,
                (false, false) => drain::Drain::Begin,
            };
            drain::run(&client()?, drain, format).await
        }
        Verb::Doctor { checks } => doctor::run(&cli.root, &checks, format),
        Verb::Generate { what, directory } => generate::run(what, &directory),
        Verb::Backup { target } => backup::backup(&client()?, &Paths::new(&cli.root)?, &target, format).await,
        Verb::Restore { file, replace, with_tokens } => {
            let replace = if replace { Replace::Everything } else { Replace::Nothing };
            let tokens = if with_tokens { Tokens::Backup } else { Tokens::Here };
            backup::restore(&Paths::new(&cli.root)?, &file, Wanted { replace, tokens }, format)
        }
        Verb::Shutdown { yes, dry_run } => {
            shutdown::run(&client()?, &Paths::new(&cli.root)?, confirm::Bulk::of(yes, dry_run), format).await
        }
        Verb::Daemon
        | Verb::Carry { .. }
        | Verb::Registry
        | Verb::Cards
        | Verb::Mount { .. }
        | Verb::Direct { .. }
        | Verb::Enter { .. }
        | Verb::Hold { .. }
        | Verb::Shim { .. } => {
            unreachable!("roles are chosen in main")
        }
    }
}

/// As clap refuses what is missing; at a terminal it is asked for.
fn nothing_to_make_it_of() -> ! {
    let message = "--template <TEMPLATE> or --from <FILE> must be given; at a terminal `trainyard new JOB` asks";
    let mut whole = Cli::command();
    whole.build();
    let verb = whole.find_subcommand_mut("new").expect("it is a verb");
    verb.error(ErrorKind::MissingRequiredArgument, message).exit()
}
