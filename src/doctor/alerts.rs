//! What alerts need of the machine, before the first of them is to be told.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Machine, Verdict, needs_root, ok, warning};
use crate::alerts::{count_set_aside, set_aside, wrong_with_secrets};
use crate::config::{AlertConfig, AlertTo};
use crate::ids::AssetName;

pub(super) fn alerts(machine: &Machine) -> Verdict {
    if let Some(error) = &machine.wrong {
        return warning(format!("not looked at: {error}"), "correct that file");
    }
    let alerts = &machine.config.alerts;
    if alerts.is_empty() {
        return ok("nobody is to be told of what happens: there is no [alerts.NAME]");
    }
    if !machine.is_root {
        return needs_root();
    }
    let found = alerts.iter().find_map(|(name, alert)| {
        let secrets = wrong_with_secrets(alert, &machine.paths).into_iter().next();
        secrets.or_else(|| wrong_with_program(alert)).map(|(found, advice)| (format!("alerts.{name}: {found}"), advice))
    });
    let refused: Vec<String> = alerts.keys().filter_map(|name| refused(name, machine)).collect();
    match found {
        Some((found, advice)) => warning(found, format!("{advice}; until then what happens waits to be told")),
        None if !refused.is_empty() => warning(refused.join("; "), REFUSED),
        None => {
            ok(format!("all is there for {}", alerts.keys().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")))
        }
    }
}

const REFUSED: &str = "they were refused for ever, and are told no more: each is in that file with the reason; set right what receives \
                       them, then remove the file";

/// How many of an alert were set aside, and where they lie.
fn refused(name: &AssetName, machine: &Machine) -> Option<String> {
    let path = set_aside(&machine.paths, name);
    match count_set_aside(&path) {
        Ok(0) => None,
        Ok(count) => Some(format!("alerts.{name}: {count} set aside in {}", path.display())),
        Err(error) => Some(format!("alerts.{name}: what was set aside cannot be read: {}: {error}", path.display())),
    }
}

/// What is found, and what to do.
fn wrong_with_program(alert: &AlertConfig) -> Option<(String, &'static str)> {
    let program = match &alert.to {
        AlertTo::Command(command) => command.first(),
        AlertTo::Mail { sendmail, .. } => Some(sendmail),
        AlertTo::Webhook { .. } => None,
    };
    let cannot_run = |path: &String| {
        let can = Path::new(path).metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        (!can).then(|| (format!("{path} is no program that can be run"), "install it, or name another one"))
    };
    program.and_then(cannot_run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Paths};
    use crate::doctor::Level;

    const SET_ASIDE: &str = r#"[{ "notice": { "serial": 1, "workspace": "w", "job": "j", "run": 1, "state": "failed", "message": "m", "at": "t" },
        "reason": "status 422" }]"#;

    #[test]
    fn what_an_alert_lacks_is_told_with_what_to_do_and_without_what_is_secret() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path()).unwrap();
        std::fs::create_dir_all(paths.secrets()).unwrap();
        let look = |text: &str| {
            std::fs::write(paths.config_file(), text).unwrap();
            let config = Config::load(dir.path()).unwrap();
            alerts(&Machine { paths: paths.clone(), config, wrong: None, is_root: true, cards: Default::default() })
        };
        assert_eq!(look("").level, Level::Ok);
        let webhook = "[alerts.ops]\nurl = \"secret:hook\"\n";
        let file = paths.secrets().join("hook");
        assert!(look(webhook).found.contains("alerts.ops: the secret"));
        std::fs::write(&file, "").unwrap();
        assert!(look(webhook).found.ends_with("secrets/hook is empty"));
        std::fs::write(&file, "https://chat.example/tok3n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let told = look(webhook);
        assert!(told.found.contains("others than root may read") && !told.found.contains("tok3n"), "{}", told.found);
        assert!(told.advice.unwrap().contains("chmod 600"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(look(webhook).level, Level::Ok);
        std::fs::write(&file, "https://chat.example:tok3n/").unwrap();
        let told = look(webhook).found;
        assert!(told.contains("the address in the secret") && !told.contains("tok3n"), "{told}");
        std::fs::rename(&file, paths.secrets().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &file).unwrap();
        assert!(look(webhook).found.ends_with("secrets/hook is no file"));
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let program = |path: &Path| format!("[alerts.ops]\ncommand = [\"{}\"]\n", path.display());
        assert!(look(&program(&file)).found.contains("no program that can be run"));
        assert_eq!(look(&program(Path::new("/bin/sh"))).level, Level::Ok);
        let aside = set_aside(&paths, &"ops".parse().unwrap());
        std::fs::create_dir_all(aside.parent().unwrap()).unwrap();
        std::fs::write(&aside, SET_ASIDE).unwrap();
        let told = look(&program(Path::new("/bin/sh")));
        assert_eq!(told.found, format!("alerts.ops: 1 set aside in {}", aside.display()));
        assert!(told.level == Level::Warning && told.advice.unwrap().contains("then remove the file"));
        std::fs::write(&aside, "no json").unwrap();
        assert!(look(&program(Path::new("/bin/sh"))).found.contains("cannot be read"));
        std::fs::remove_file(&aside).unwrap();
        assert_eq!(look(&program(Path::new("/bin/sh"))).level, Level::Ok);
        std::fs::write(paths.config_file(), "[alerts.ops]\non = [\"broken\"]\nurl = \"https://x\"\n").unwrap();
        let found = crate::doctor::examine(dir.path(), &["alerts".to_owned()], crate::doctor::BOUND).unwrap();
        assert!(found[0].level == Level::Warning && found[0].found.contains("broken"), "{}", found[0].found);
    }
}
