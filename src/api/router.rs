//! From a route to what does it.

use std::time::Duration;

use hyper::{Response, StatusCode};

use super::awaited::Awaited;
use super::error::ApiError;
use super::files::{Place, Wanted};
use super::jobs::{Part, Table};
use super::listed::Listed;
use super::logs::ranges::Asked;
use super::params::WAIT;
use super::query::Values;
use super::routes::Action;
use super::server::{Body, Call, Context, blocking, in_full, json, object, stream, whole};
use super::tokens::TokenRequest;
use super::usage::By;
use super::wire::{Checked, Done, ImageDetail, ImportQuery, JobList, LogQuery, NameQuery};
use super::{
    assets, datasets, drain, exec, files, gpus, happenings, health, jobs, list, measures, openapi, rights, secrets,
    state, storage, templates, usage,
};
use crate::ids::{JobKey, Timestamp, WorkspaceName};
use crate::reconcile::{Caller, Event, Verb};
use crate::spec::Diagnostic;
use crate::status::StopHow;
use crate::sys::process::give_memory_back_at_times;

pub(super) async fn carry_out(call: Call, context: &Context) -> Result<Response<Body>, ApiError> {
    let caller = call.caller.clone();
    let job = || -> Result<JobKey, ApiError> { jobs::key(call.place(0), call.place(1)) };
    match call.route.action {
        Action::Health => ok(&health::health()),
        Action::Ready => {
            let found = health::readiness(context, &caller).await;
            Ok(json(if found.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &found))
        }
        Action::Metrics => text(measures::page(context).await?, "text/plain; version=0.0.4; charset=utf-8"),
        Action::OpenApi => Ok(openapi::answer()),
        Action::Jobs => {
            let list = jobs::list(context, caller, &call.query).await?;
            let answer = ok(&list);
            let_go(list);
            answer
        }
        Action::JobLines => {
            let list = jobs::lines(context, caller, &call.query).await?;
            let answer = ok(&list);
            let_go(list);
            answer
        }
        Action::Job if call.query.text("known").is_some() => {
            ok(&jobs::detail_when_known(context, caller, job()?, Part::read(&call.query)).await?)
        }
        Action::Job => ok(&jobs::detail(context, caller, job()?, Part::read(&call.query)).await?),
        Action::Logs => {
            let asked = Asked::of(&call.request);
            jobs::logs(context, caller, job()?, LogQuery::read(&call.query), &asked).await
        }
        Action::Exec => exec::begin(call, context).await,
        Action::Stop => {
            let how = if call.query.flag("now") { StopHow::AtOnce } else { StopHow::WithGrace };
            jobs::change(context, caller, job()?, Verb::Stop { how }).await
        }
        Action::Rerun => jobs::change(context, caller, job()?, Verb::Rerun).await,
        Action::Restart => jobs::change(context, caller, job()?, Verb::Restart).await,
        Action::Extend => {
            let by = Duration::from_millis(call.query.number("by_ms").unwrap_or(0));
            jobs::change(context, caller, job()?, Verb::Extend { by }).await
        }
        Action::Send => jobs::change(context, caller, job()?, Verb::Send).await,
        Action::KeepUnsent => jobs::change(context, caller, job()?, Verb::KeepUnsent).await,
        Action::Remove if call.query.flag("dry_run") => {
            jobs::would_remove(context, caller, job()?, call.query.flag("file")).await
        }
        Action::Remove if call.query.flag("file") => jobs::remove_with_file(context, caller, job()?).await,
        Action::Remove => jobs::change(context, caller, job()?, Verb::Remove).await,
        Action::Images
        | Action::Image
        | Action::PullImage
        | Action::ImportImage
        | Action::TagImage
        | Action::PruneImages
        | Action::RemoveImage => images(call, context).await,
        Action::RemoveDataset => {
            let (paths, home) = (context.paths.clone(), call.place(0).to_owned());
            let awaited = Awaited::new(&context.events);
            let work =
                move || datasets::remove(&paths, &caller, &awaited, (call.place(0), call.place(1), call.place(2)));
            let message = blocking(work).await?;
            context.storage.removed(&home);
            done(message)
        }
        Action::RemoveModel => {
            let (paths, key, run) = (context.paths.clone(), job()?, call.place(2).to_owned());
            let model = key.clone();
            let awaited = Awaited::new(&context.events);
            let message = blocking(move || assets::remove_model(&paths, &caller, &awaited, &model, &run)).await?;
            context.storage.model_removed(key);
            done(message)
        }
        Action::Gpus => ok(&gpus::list(context, caller).await?),
        Action::Usage => {
            let by = call.query.text("by").map_or(Ok(By::Workspace), str::parse).map_err(ApiError::Bad)?;
            let since = call.query.time("since").unwrap_or(Timestamp(0));
            let asked = usage::Asked { by, since, workspace: call.query.text("workspace") };
            page(usage::list(context, &caller, asked).await?, &call.query).await
        }
        Action::Workspaces => page(storage::list(context, &caller).await?, &call.query).await,
        Action::Workspace => ok(&storage::detail(context, &caller, call.place(0)).await?),
        Action::State => stream(state::copy(context, &caller)?, "application/x-ndjson"),
        Action::Drain => ok(&drain::look(context, call.query.flag(WAIT)).await?),
        Action::BeginDrain => ok(&drain::begin(context, caller).await?),
        Action::UndoDrain => ok(&drain::undo(context).await?),
        Action::Shutdown => shutdown(context, &caller),
        Action::JobFile | Action::PutJobFile | Action::RemoveJobFile | Action::CloneJob | Action::Check => {
            job_files(call, context).await
        }
        Action::TaskMetrics => jobs::table(context, caller, job()?, &call.query, Table::Metrics).await,
        Action::TaskScalars => jobs::table(context, caller, job()?, &call.query, Table::Scalars).await,
        Action::Events => happenings::send(context, caller, &call.query),
        Action::Datasets => {
            let workspace = call.query.text("workspace").unwrap_or("default").to_owned();
            check_reach(&caller, &workspace)?;
            let paths = context.paths.clone();
            page(blocking(move || assets::datasets(&paths, &caller, &workspace)).await?, &call.query).await
        }
        Action::Models => {
            let workspace = call.query.text("workspace").unwrap_or("default").to_owned();
            check_reach(&caller, &workspace)?;
            let paths = context.paths.clone();
            page(blocking(move || assets::models(&paths, &caller, &workspace)).await?, &call.query).await
        }
        Action::Templates => {
            let workspace = call.query.text("workspace").map(str::parse::<WorkspaceName>).transpose();
            let workspace = workspace.map_err(|error| ApiError::Bad(format!("workspace: {error}")))?;
            let paths = context.paths.clone();
            page(blocking(move || templates::list(&paths, &caller, workspace.as_ref())).await?, &call.query).await
        }
        Action::Template => {
            let (paths, key) = (context.paths.clone(), job()?);
            ok(&blocking(move || templates::show(&paths, &caller, &key)).await?)
        }
        Action::PutTemplate | Action::RemoveTemplate => change_template(call, context).await,
        Action::Secrets | Action::PutSecret | Action::RemoveSecret => secrets_of(call, context).await,
        Action::Tokens | Action::NewToken | Action::RemoveToken => tokens(call, context).await,
    }
}

async fn images(call: Call, context: &Context) -> Result<Response<Body>, ApiError> {
    let (service, caller, query) = (&context.images, call.caller, NameQuery::read(&call.query));
    match call.route.action {
        Action::Images => page(service.list(caller, query).await?, &call.query).await,
        Action::RemoveImage => done(service.remove(caller, query).await?),
        Action::TagImage => done(service.tag(caller, query, call.query.needed("new")?.to_owned()).await?),
        Action::PullImage => stream(service.pull(&caller, query)?, "application/x-ndjson"),
        Action::ImportImage => {
            let query = ImportQuery { name: query, tag: call.query.owned("tag"), format: call.query.owned("format") };
            stream(service.import(caller, query, call.request).await?, "application/x-ndjson")
        }
        Action::PruneImages => {
            ok(&service.prune(caller, call.query.number("unused_s").map(Duration::from_secs)).await?)
        }
        _ => {
            let (image, record) = service.show(caller, query).await?;
            ok(&ImageDetail { image, record })
        }
    }
}

async fn job_files(call: Call, context: &Context) -> Result<Response<Body>, ApiError> {
    let (caller, most) = (call.caller.clone(), call.body_max());
    let (action, query) = (call.route.action, call.query.clone());
    if action == Action::Check {
        let workspace = query.text("workspace").unwrap_or("default");
        check_reach(&caller, workspace)?;
        let key = jobs::key(workspace, query.text("job").unwrap_or("job"))?;
        let text = whole(call.request.into_body(), most).await?;
        let part = if query.flag("whole") { files::Part::Whole } else { files::Part::File };
        let diagnostics = files::check(context, caller, key, (text, part)).await?;
        return ok(&Checked { valid: !diagnostics.iter().any(Diagnostic::is_error), diagnostics });
    }
    let key = jobs::key(call.place(0), call.place(1))?;
    let wanted = match action {
        Action::JobFile => {
            let paths = context.paths.clone();
            let text = blocking(move || files::read(&paths, &caller, &key)).await?;
            return stream(in_full(text), "application/toml");
        }
        Action::RemoveJobFile => {
            let told = match files::take_away(context, caller, key.clone()).await? {
                true => "its file is removed",
                false => "its file is removed; the daemon has not noticed yet",
            };
            return done(format!("{key}: {told}"));
        }
        Action::CloneJob => {
            let text = text_of(context, &caller, &key).await?;
            let to = query.text("to").unwrap_or(key.workspace.as_str());
            check_reach(&caller, to)?;
            let new = jobs::key(to, query.needed("as")?)?;
            Wanted { key: new, text, place: Place::New }
        }
        _ => {
            let place = if query.flag("new") { Place::New } else { Place::Any };
            Wanted { key, text: whole(call.request.into_body(), most).await?.to_vec(), place }
        }
    };
    let key = wanted.key.clone();
    let written = files::submit(context, &caller, wanted).await?;
    let status = if written.is_new { StatusCode::CREATED } else { StatusCode::OK };
    let message = match written.is_known {
        true => format!("{key}: its file is written"),
        false => format!("{key}: its file is written; the daemon has not taken it in yet"),
    };
    Ok(json(status, &Done { message }))
}

/// What a job is made of; of another one's what of it the caller may read.
async fn text_of(context: &Context, caller: &Caller, key: &JobKey) -> Result<Vec<u8>, ApiError> {
    let detail = jobs::show(context, caller.clone(), key.clone(), None).await?;
    match detail.text {
        Some(text) => Ok(text.into_bytes()),
        None if caller.uid == 0 || caller.uid == detail.report.owner => {
            Err(ApiError::Conflict(format!("job {key} has no valid file")))
        }
        None => {
            let (paths, caller, key) = (context.paths.clone(), caller.clone(), key.clone());
            blocking(move || files::read(&paths, &caller, &key)).await
        }
    }
}

async fn change_template(call: Call, context: &Context) -> Result<Response<Body>, ApiError> {
    let (paths, caller, most) = (context.paths.clone(), call.caller.clone(), call.body_max());
    let key = jobs::key(call.place(0), call.place(1))?;
    if call.route.action == Action::RemoveTemplate {
        let message = format!("template {key} is removed");
        blocking(move || templates::remove(&paths, &caller, &key)).await?;
        return done(message);
    }
    let place = if call.query.flag("new") { Place::New } else { Place::Any };
    let (text, message) = (whole(call.request.into_body(), most).await?.to_vec(), format!("template {key} is written"));
    let specs = context.config.now().specs.clone();
    let is_new = blocking(move || templates::write((&paths, &specs), &caller, &key, text, place)).await?;
    Ok(json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &Done { message }))
}

async fn secrets_of(call: Call, context: &Context) -> Result<Response<Body>, ApiError> {
    let (paths, caller, most) = (context.paths.clone(), call.caller.clone(), call.body_max());
    let (workspace, secret) = (call.place(0).to_owned(), call.place(1).to_owned());
    match call.route.action {
        Action::Secrets => page(blocking(move || secrets::list(&paths, &workspace)).await?, &call.query).await,
        Action::RemoveSecret => done(blocking(move || secrets::remove(&paths, &caller, &workspace, &secret)).await?),
        _ => {
            let content = whole(call.request.into_body(), most).await?;
            done(blocking(move || secrets::put(&paths, &caller, &workspace, &secret, &content)).await?)
        }
    }
}

async fn tokens(call: Call, context: &Context) -> Result<Response<Body>, ApiError> {
    let (tokens, caller, most) = (context.tokens.clone(), call.caller.clone(), call.body_max());
    match call.route.action {
        Action::Tokens => {
            let listed = blocking(move || {
                tokens.list(&caller).map_err(|error| ApiError::Failed(format!("cannot list the tokens: {error}")))
            });
            page(listed.await?, &call.query).await
        }
        Action::RemoveToken => {
            let (name, uid) = (call.place(0).to_owned(), user_of(call.query.owned("user"), &caller).await?);
            done(blocking(move || tokens.remove(&name, uid, &caller)).await?)
        }
        _ => {
            let wanted: TokenRequest = object(call.request.into_body(), most).await?;
            let uid = user_of(wanted.user.clone(), &caller).await?;
            let paths = context.paths.clone();
            let made = blocking(move || {
                // What is no name is told when the token is made.
                let named = wanted.workspaces.iter().flatten().filter_map(|name| name.parse().ok());
                named.into_iter().try_for_each(|name| rights::enter(&paths, &caller, &name))?;
                tokens.create(&wanted, uid, &caller)
            });
            Ok(json(StatusCode::CREATED, &made.await?))
        }
    }
}

/// Whoever is named; the one who asks where nobody is.
async fn user_of(named: Option<String>, caller: &Caller) -> Result<u32, ApiError> {
    match named {
        Some(user) => jobs::uid_of(user).await,
        None => Ok(caller.uid),
    }
}

/// Where a workspace is not named, it is the default one, which a token need not reach.
fn check_reach(caller: &Caller, workspace: &str) -> Result<(), ApiError> {
    match caller.reaches(workspace) {
        true => Ok(()),
        false => Err(ApiError::Forbidden(format!("this token does not reach workspace {workspace}"))),
    }
}

fn shutdown(context: &Context, caller: &Caller) -> Result<Response<Body>, ApiError> {
    tracing::info!(caller = %caller.name, "shutting down on request");
    context.events.send(Event::Shutdown).map_err(|_| ApiError::Ending)?;
    Ok(json(StatusCode::ACCEPTED, &Done { message: "stopping all jobs".to_owned() }))
}

/// That of `all` which is asked for.
async fn page<T: Listed + serde::Serialize>(all: Vec<T>, query: &Values) -> Result<Response<Body>, ApiError> {
    ok(&list::page(all, query, &jobs::filter(query).await?, crate::sys::now()).map_err(ApiError::Bad)?)
}

/// From so many jobs on what a list took is worth to be handed back.
const LONG: usize = 100;

/// Nobody waits until thousands of jobs are let go of. What they took is handed back soon where lists are asked for all the time.
fn let_go<J: Send + 'static>(list: JobList<J>) {
    let is_long = list.jobs.len() >= LONG;
    tokio::task::spawn_blocking(move || {
        drop(list);
        if is_long {
            give_memory_back_at_times();
        }
    });
}

fn ok(value: &impl serde::Serialize) -> Result<Response<Body>, ApiError> {
    Ok(json(StatusCode::OK, value))
}

fn done(message: String) -> Result<Response<Body>, ApiError> {
    ok(&Done { message })
}

fn text(text: String, kind: &'static str) -> Result<Response<Body>, ApiError> {
    stream(in_full(text), kind)
}
