//! `trainyard.toml` while the daemon runs: what it says acts as soon as the file is saved, but for what is asked once, at the start.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;

use crate::config::{Config, ConfigError, InForce};
use crate::reconcile::{Event, Settings};

/// Told of another configuration that is in force from then on.
pub(super) type Heed = Box<dyn FnMut(&Config) + Send>;

/// Reads the file again.
pub(super) struct Edited {
    in_force: InForce,
    /// As the daemon began with it: what acts after a restart only.
    begun: Arc<Config>,
    /// As the reconciler was told them last.
    settings: Settings,
    events: UnboundedSender<Event>,
    heed: Heed,
}

impl Edited {
    pub(super) fn new(in_force: InForce, settings: Settings, events: UnboundedSender<Event>) -> Self {
        Self { begun: in_force.now(), in_force, settings, events, heed: Box::new(|_| {}) }
    }

    /// Who is told as well from now on.
    pub(super) fn heeded_by(&mut self, heed: Heed) {
        self.heed = heed;
    }

    /// Returns what was in force before; an error leaves it in force.
    pub(super) fn read(&mut self) -> Result<Arc<Config>, ConfigError> {
        let config = self.in_force.now().load_again()?;
        config.tell_warnings();
        let waits = config.edited_until_restart(&self.begun);
        if !waits.is_empty() {
            let keys = waits.join(", ");
            tracing::warn!(
                keys,
                "trainyard.toml was edited: these keys act when the daemon is restarted (`systemctl restart trainyard`), \
                 which no job notices; all others act now"
            );
        }
        self.change_settings(&config);
        (self.heed)(&config);
        Ok(self.in_force.replace(config))
    }

    fn change_settings(&mut self, config: &Config) {
        match super::settings(config) {
            Ok(settings) if settings != self.settings => {
                self.settings = settings.clone();
                // The receiver is gone only when the daemon ends.
                let _ = self.events.send(Event::Settings(Box::new(settings)));
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "cannot look at the machine; its limits stay as they are"),
        }
    }
}
