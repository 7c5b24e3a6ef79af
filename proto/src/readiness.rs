//! What a daemon tells systemd (sd_notify(3)): that it is ready, that it lives, that it is about to end.
//!
//! Without systemd, which is without `NOTIFY_SOCKET`, nothing happens.

use sd_notify::{NotifyState, notify, watchdog_enabled};

/// Ready; and from now on alive, for as long as the async runtime that this is called on gets to run its tasks.
pub fn ready() {
    // Whoever set NOTIFY_SOCKET to something that cannot be written to will kill us for our silence.
    let _ = notify(&[NotifyState::Ready]);
    let Some(limit) = watchdog_enabled() else { return };
    tokio::spawn(async move {
        let mut every = tokio::time::interval(limit / 3);
        loop {
            every.tick().await;
            let _ = notify(&[NotifyState::Watchdog]);
        }
    });
}

/// Ends with what still runs; not to be restarted for it.
pub fn stopping() {
    let _ = notify(&[NotifyState::Stopping]);
}
