//! What people look at while a job runs: roles of their own that are no part of its cluster.

use std::ops::Range;

use toml::Spanned;

use super::bounds::computing_tasks;
use super::roles::RoleDefaults;
use super::{Reader, in_file_order};
use crate::ids::RoleName;
use crate::scalars::lines::pattern;
use crate::spec::job::{MinSucceeded, OutsidePort, Port, Role, Scalars};
use crate::spec::wire::{
    WireCommand, WireMain, WireMap, WireResources, WireRole, WireScalars, WireService, WireTensorboard,
};

const TENSORBOARD: &str = "tensorboard";
/// Where TensorBoard looks unless the file says so.
const BOARD_LOG_DIR: &str = "/output";
/// Where TensorBoard listens by itself.
const TENSORBOARD_PORT: u16 = 6006;
/// Most of them in a job: each takes a core.
const BOARDS_MAX: usize = 32;

impl Reader<'_> {
    /// What people look at while the job runs.
    pub(super) fn services(
        &mut self,
        services: &WireMap<WireService>,
        boards: Vec<(String, Spanned<WireService>)>,
        job: &RoleDefaults,
    ) -> Vec<(Role, Range<usize>)> {
        let mut out = Vec::new();
        for (name, wire) in in_file_order(services) {
            let key = format!("services.{}", name.get_ref());
            let wire = wire.get_ref();
            for (given, what) in [(wire.command.is_some(), "command"), (wire.port.is_some(), "port")] {
                if !given {
                    self.error(name.span(), &key, format!("`{key}` needs a `{what}`"));
                }
            }
            match name.get_ref().parse::<RoleName>() {
                Ok(role) => out.push((self.service(role, wire, &key, name.span(), job), name.span())),
                Err(error) => {
                    self.error(name.span(), &key, format!("{:?} is not a role name: {error}", name.get_ref()));
                }
            }
        }
        for (name, board) in boards {
            let Ok(name) = name.parse::<RoleName>() else { continue };
            out.push((self.service(name, board.get_ref(), TENSORBOARD, board.span(), job), board.span()));
        }
        out
    }

    /// The TensorBoards of a job whose tasks are those of `roles`, by their names.
    pub(super) fn boards(
        &mut self,
        wire: Option<&Spanned<WireTensorboard>>,
        roles: &[(Role, Range<usize>)],
    ) -> Vec<(String, Spanned<WireService>)> {
        let Some(board) = wire else { return Vec::new() };
        let log_dir = self.board_log_dir(board.get_ref());
        let one = |log_dir: &str, port| Spanned::new(board.span(), tensorboard(board.get_ref(), log_dir, port));
        if !board.get_ref().each_task {
            return vec![(TENSORBOARD.to_owned(), one(&log_dir, TENSORBOARD_PORT))];
        }
        let tasks = computing_tasks(roles);
        if tasks.len() > BOARDS_MAX {
            let message =
                format!("`tensorboard.each_task` is for {BOARDS_MAX} tasks at most, and {} compute", tasks.len());
            self.error(board.span(), "tensorboard.each_task", message);
        }
        let log_dir = log_dir.trim_end_matches('/');
        // They may have one network.
        let each = (TENSORBOARD_PORT..).zip(0..).zip(tasks.iter().take(BOARDS_MAX));
        let board_of = |((port, number), task): ((u16, usize), &String)| {
            (format!("{TENSORBOARD}{number}"), one(&format!("{log_dir}/{task}"), port))
        };
        each.map(board_of).collect()
    }

    /// What TensorBoard is to show is collected as well.
    pub(super) fn scalars(
        &mut self,
        wire: Option<&WireScalars>,
        tensorboard: Option<&Spanned<WireTensorboard>>,
    ) -> Option<Scalars> {
        let own = wire.and_then(|wire| wire.log_dir.as_ref());
        if let Some(path) = own.filter(|path| !path.get_ref().starts_with('/')) {
            let message = "`scalars.log_dir` is a place in the tasks, such as \"/output/logs\"";
            self.error(path.span(), "scalars.log_dir", message);
        }
        let lines = wire.and_then(|wire| wire.lines.as_ref());
        if let Some((lines, why)) = lines.and_then(|lines| Some((lines, pattern(lines.get_ref()).err()?))) {
            self.error(lines.span(), "scalars.lines", format!("`scalars.lines`: {why}"));
        }
        let of_board = |board: &Spanned<WireTensorboard>| {
            board.get_ref().log_dir.as_ref().map_or(BOARD_LOG_DIR, |path| path.get_ref().as_str()).to_owned()
        };
        let log_dir = own.map(|path| path.get_ref().clone()).or_else(|| tensorboard.map(of_board));
        let lines = lines.map(|lines| lines.get_ref().clone());
        (log_dir.is_some() || lines.is_some()).then_some(Scalars { log_dir, lines })
    }

    fn board_log_dir(&mut self, board: &WireTensorboard) -> String {
        let log_dir = board.log_dir.as_ref().map_or(BOARD_LOG_DIR, |path| path.get_ref().as_str());
        if let Some(path) = board.log_dir.as_ref().filter(|path| !path.get_ref().starts_with('/')) {
            let message = "`tensorboard.log_dir` is a place in the tasks, such as \"/output/logs\"";
            self.error(path.span(), "tensorboard.log_dir", message);
        }
        log_dir.to_owned()
    }

    fn service(
        &mut self,
        name: RoleName,
        wire: &WireService,
        key: &str,
        span: Range<usize>,
        job: &RoleDefaults,
    ) -> Role {
        let role = WireRole {
            command: wire.command.clone(),
            image: wire.image.clone(),
            user: wire.user.clone(),
            env: wire.env.clone(),
            serves: Some(true),
            main: Some(WireMain::Flag(false)),
            ..WireRole::default()
        };
        // Its size has nothing to do with that of the tasks.
        let resources = self.resources(&WireResources::default(), &wire.resources, key);
        let http = Port { label: "http".to_owned(), count: 1, begin: wire.port, outside: OutsidePort::Any };
        Role {
            is_service: true,
            min_failed: None,
            min_succeeded: MinSucceeded::Never,
            params: Vec::new(),
            ports: vec![http],
            resources,
            ..self.role(name, &role, key, span, job)
        }
    }
}

fn tensorboard(board: &WireTensorboard, log_dir: &str, port: u16) -> WireService {
    let number = port.to_string();
    let words = [TENSORBOARD, "--logdir", log_dir, "--host", "0.0.0.0", "--port", &number];
    WireService {
        command: Some(WireCommand::Exec(words.map(str::to_owned).to_vec())),
        port: Some(port),
        image: board.image.clone(),
        resources: board.resources.clone(),
        ..WireService::default()
    }
}
