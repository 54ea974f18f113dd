//! When what is shown of jobs is looked at anew: as the daemon tells that something has happened to one, and not again and again.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::api::client::Client;

/// What happens within it is shown together: at most four times a second.
const TOGETHER: Duration = Duration::from_millis(250);
/// Of the time a look takes: most of it is the daemon's own, in which it tells all jobs and does nothing else.
const PAUSES: u32 = 4;
/// No pause is longer, whatever a look took: whoever looks may have been stopped meanwhile.
const LONGEST: Duration = Duration::from_secs(10);
/// So often without a word: that a job was removed no event tells, nor time that passes, places that change behind jobs of others, and
/// an image that comes.
const WITHOUT_A_WORD: Duration = Duration::from_secs(2);
/// Until a daemon that does not answer, as while it is restarted, is asked again.
pub(super) const AWAY: Duration = Duration::from_secs(1);

/// Comes when jobs may be otherwise than they were when all events up to `serial` had come. The last look, which has just ended, took so long.
pub(super) async fn next(client: &Client, serial: u64, took: Duration) {
    let seen = Instant::now();
    if let Ok(Err(_)) = timeout(WITHOUT_A_WORD, client.happened_behind(serial)).await {
        sleep(AWAY).await;
    }
    sleep_until(seen + pause(took)).await;
}

fn pause(took: Duration) -> Duration {
    took.saturating_mul(PAUSES).clamp(TOGETHER, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_takes_long_is_not_taken_again_and_again() {
        let paused = [0, 90, 1000, 3_600_000].map(|ms| pause(Duration::from_millis(ms)).as_millis());
        assert_eq!(paused, [250, 360, 4000, 10_000]);
    }

    #[tokio::test]
    async fn a_daemon_that_goes_away_while_it_is_listened_to_is_given_time() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("api.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let listened = Instant::now();
        // It breaks off after a while, as a restart does, and not at once.
        let leaves = async {
            let connection = listener.accept().await.unwrap();
            sleep(AWAY).await;
            drop(connection);
        };
        let client = Client::new(&socket);
        tokio::join!(next(&client, 7, Duration::ZERO), leaves);
        assert!(listened.elapsed() >= 2 * AWAY, "{:?}", listened.elapsed());
    }
}
