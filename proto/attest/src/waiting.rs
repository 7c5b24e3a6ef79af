//! How many connections there are of a kind that anybody can make: those that wait for evidence (the hardware states one
//! thing at a time and takes about a second for it), and those that belong to no tenant yet.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// Connections by peer.
pub(crate) struct Waiting {
    limits: Limits,
    all: Mutex<HashMap<IpAddr, usize>>,
}

/// How many are taken.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Of all peers together.
    pub(crate) most: usize,
    /// Of one peer.
    pub(crate) of_one: usize,
    /// More than this are not even answered.
    pub(crate) flood: usize,
}

/// Where a new connection stands; gives its place up on drop.
pub(crate) enum Place {
    /// Within the limits.
    Queued(Held),
    /// Beyond them; there is time to say so.
    Busy(#[expect(dead_code, reason = "held for its drop")] Held),
    /// Far beyond.
    Flood,
}

pub(crate) struct Held {
    waiting: Arc<Waiting>,
    peer: IpAddr,
}

impl Waiting {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, all: Mutex::default() })
    }

    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr) -> Place {
        let Limits { most, of_one, flood } = self.limits;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (sum, own) = (all.values().sum::<usize>(), all.get(&peer).copied().unwrap_or(0));
        if sum >= flood {
            return Place::Flood;
        }
        all.insert(peer, own + 1);
        let held = Held { waiting: self.clone(), peer };
        if sum >= most || own >= of_one { Place::Busy(held) } else { Place::Queued(held) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = self.waiting.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_cannot_take_all_places() {
        let waiting = Waiting::new(Limits { most: 64, of_one: 8, flood: 256 });
        let ip = |n: u8| IpAddr::from([127, 0, 0, n]);
        let held: Vec<_> = (0..8).map(|_| waiting.enter(ip(1))).collect();
        assert!(held.iter().all(|p| matches!(p, Place::Queued(_))));
        assert!(matches!(waiting.enter(ip(1)), Place::Busy(_)));
        assert!(matches!(waiting.enter(ip(2)), Place::Queued(_)));
        drop(held);
        assert!(matches!(waiting.enter(ip(1)), Place::Queued(_)));
        assert!(waiting.all.lock().unwrap().is_empty());
        let flood: Vec<_> = (0..256).map(|n| waiting.enter(ip(u8::try_from(n % 250).unwrap()))).collect();
        assert_eq!(flood.iter().filter(|p| matches!(p, Place::Queued(_))).count(), 64);
        assert!(matches!(waiting.enter(ip(9)), Place::Flood));
    }
}
