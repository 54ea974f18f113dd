//! When what is shown of jobs is looked at anew: as the daemon tells that something has happened to one, and not again and again.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::api::client::Client;

/// What happens within it is shown together: at most four times a second.
const TOGETHER: Duration = Duration::from_millis(250);
/// So often without a word: of time that passes, of places that change behind jobs of others, and of an image that comes no event tells.
const WITHOUT_A_WORD: Duration = Duration::from_secs(10);
/// Until a daemon that does not answer, as while it is restarted, is asked again.
const AWAY: Duration = Duration::from_secs(1);

/// Comes when jobs may be otherwise than they were when all events up to `serial` had come.
pub(super) async fn next(client: &Client, serial: u64) {
    let seen = Instant::now();
    let pause = match timeout(WITHOUT_A_WORD, client.happened_behind(serial)).await {
        Ok(Err(_)) => AWAY,
        Ok(Ok(())) | Err(_) => TOGETHER,
    };
    sleep_until(seen + pause).await;
}
