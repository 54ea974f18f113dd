//! The configuration as it is in force, for whoever looks at it each time that it needs something of it.

use std::sync::{Arc, PoisonError, RwLock};

use super::Config;

#[derive(Debug, Clone)]
pub struct InForce(Arc<RwLock<Arc<Config>>>);

impl InForce {
    pub fn new(config: Config) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(config))))
    }

    /// To be asked for again rather than kept.
    pub fn now(&self) -> Arc<Config> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another one in its place, and returns what was in force.
    pub fn replace(&self, config: Config) -> Arc<Config> {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut now, Arc::new(config))
    }
}
