//! What users see beside what is theirs, looked at once for all who ask at the same time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::error::ApiError;
use super::server::blocking;
use crate::reconcile::Beside;

/// Looks at all workspaces, of each user one at a time: of thousands who follow what happens as one user and ask at once, the second
/// that looks does so for all others.
#[derive(Debug, Clone, Default)]
pub struct Looks(Arc<Mutex<BTreeMap<u32, Arc<Turn>>>>);

type Turn = tokio::sync::Mutex<Option<Look>>;

/// What was seen, and since when it is known to be so.
#[derive(Debug, Clone)]
struct Look {
    begun: Instant,
    beside: Arc<Beside>,
}

impl Looks {
    /// As it is now, or was at some time after this was called.
    pub(super) async fn seen(
        &self,
        uid: u32,
        look: impl FnOnce() -> Result<Beside, ApiError> + Send + 'static,
    ) -> Result<Arc<Beside>, ApiError> {
        let asked = Instant::now();
        let turn = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(uid).or_default().clone();
        let mut last = turn.lock().await;
        if let Some(look) = last.as_ref().filter(|look| look.begun > asked) {
            return Ok(look.beside.clone());
        }
        let look = blocking(move || Ok(Look { begun: Instant::now(), beside: look()?.into() })).await?;
        Ok(last.insert(look).beside.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_thousand_who_ask_at_once_as_one_user_are_told_by_a_few_looks_and_who_asks_later_by_another() {
        let looks = Looks::default();
        let [count, asked] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let ask = |uid| {
            let (looks, count, asked) = (looks.clone(), count.clone(), asked.clone());
            async move {
                let all = asked.clone();
                let look = move || {
                    count.fetch_add(1, Ordering::Relaxed);
                    // Until the others have asked as well.
                    while all.load(Ordering::Relaxed) < 1000 {
                        std::thread::yield_now();
                    }
                    Ok(Beside::default())
                };
                asked.fetch_add(1, Ordering::Relaxed);
                looks.seen(uid, look).await.unwrap()
            }
        };
        let all: Vec<_> = (0..1000).map(|number| tokio::spawn(ask(number % 2))).collect();
        for one in all {
            one.await.unwrap();
        }
        let looked = count.load(Ordering::Relaxed);
        // The first of each user, who has asked before the others, and the next; a thread may be late.
        assert!((2..20).contains(&looked), "{looked}");
        ask(0).await;
        assert_eq!(count.load(Ordering::Relaxed), looked + 1, "what was seen before one asks is old");
    }
}
