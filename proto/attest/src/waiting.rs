//! How many connections wait for evidence. The hardware states one thing at a time and takes about a second for it.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// Connections on their way to evidence, by peer.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<HashMap<IpAddr, usize>>);

/// Where a new connection stands; gives its place up on drop.
pub(crate) enum Place {
    /// In the queue.
    Queued(#[expect(dead_code, reason = "held for its drop")] Held),
    /// The queue is full; there is time to say so.
    Busy(#[expect(dead_code, reason = "held for its drop")] Held),
    /// Beyond that.
    Flood,
}

pub(crate) struct Held {
    waiting: Arc<Waiting>,
    peer: IpAddr,
}

impl Waiting {
    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr) -> Place {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (sum, own) = (all.values().sum::<usize>(), all.get(&peer).copied().unwrap_or(0));
        if sum >= FLOOD {
            return Place::Flood;
        }
        all.insert(peer, own + 1);
        let held = Held { waiting: self.clone(), peer };
        if sum >= MOST || own >= MOST_OF_ONE { Place::Busy(held) } else { Place::Queued(held) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.peer);
            }
        }
    }
}

/// Of all peers together.
const MOST: usize = 64;
/// Of one peer.
const MOST_OF_ONE: usize = 8;
/// More than this are not even answered.
const FLOOD: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_cannot_take_all_places() {
        let waiting = Arc::new(Waiting::default());
        let ip = |n: u8| IpAddr::from([127, 0, 0, n]);
        let held: Vec<_> = (0..MOST_OF_ONE).map(|_| waiting.enter(ip(1))).collect();
        assert!(held.iter().all(|p| matches!(p, Place::Queued(_))));
        assert!(matches!(waiting.enter(ip(1)), Place::Busy(_)));
        assert!(matches!(waiting.enter(ip(2)), Place::Queued(_)));
        drop(held);
        assert!(matches!(waiting.enter(ip(1)), Place::Queued(_)));
        assert!(waiting.0.lock().unwrap().is_empty());
        let flood: Vec<_> = (0..FLOOD).map(|n| waiting.enter(ip(u8::try_from(n % 250).unwrap()))).collect();
        assert_eq!(flood.iter().filter(|p| matches!(p, Place::Queued(_))).count(), MOST);
        assert!(matches!(waiting.enter(ip(9)), Place::Flood));
    }
}
