//! The connections that are open, by the keys of their peers.
//!
//! *Invariant:* a key has at most [`SHARE`] of the [`CONNECTIONS`]. So one node that is faulty or broken into does not keep the
//! others out.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::PublicKey;

/// Connections at a time: as many as nodes can receive from this one.
const CONNECTIONS: usize = 32;
/// Connections of one key at a time. A node has one for each of the 4 copies that it receives, and again as many when the network
/// breaks: its earlier connections are closed once they do not answer for [`KEEP_ALIVE`](crate::KEEP_ALIVE). A controller has one for
/// each group snapshot and for each listing of changed blocks.
const SHARE: usize = 16;
/// Connections at a time whose calls are refused. Further ones are closed without an answer.
const REFUSED: usize = 8;

/// Why a connection gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Crowded {
    /// Its key has its share.
    #[error("this key has {SHARE} connections already, as many as one key may have")]
    Key,
    /// Other keys have all connections.
    #[error("there are {CONNECTIONS} connections already, as many as there may be")]
    Node,
}

/// The key of a peer, or why its calls are refused.
pub(crate) type Peer = Result<PublicKey, Crowded>;

/// The connections that are open.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// Number of connections by key. None of the numbers is zero.
    by_key: HashMap<PublicKey, usize>,
    /// Number of connections whose calls are refused.
    refused: usize,
}

impl Taken {
    /// Why a connection with this key gets no place; None if it gets one.
    fn crowded(&self, key: &PublicKey) -> Option<Crowded> {
        if self.by_key.get(key).is_some_and(|own| *own >= SHARE) {
            return Some(Crowded::Key);
        }
        let all: usize = self.by_key.values().sum();
        (all >= CONNECTIONS).then_some(Crowded::Node)
    }
}

impl Places {
    /// Gives a connection a place, or one at which its calls are refused. None if there is neither.
    pub(crate) fn take(self: &Arc<Self>, key: PublicKey) -> Option<Place> {
        let mut taken = self.0.lock();
        let peer = taken.crowded(&key).map_or(Ok(key), Err);
        match peer {
            Ok(key) => *taken.by_key.entry(key).or_default() += 1,
            Err(_) if taken.refused < REFUSED => taken.refused += 1,
            Err(_) => return None,
        }
        let places = Arc::clone(self);
        Some(Place { places, peer })
    }
}

/// The place of a connection. It is free again once this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    peer: Peer,
}

impl Place {
    /// The key of the peer, or why its calls are refused.
    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
        match self.peer {
            Ok(key) => {
                if let Some(own) = taken.by_key.get_mut(&key) {
                    *own -= 1;
                    if *own == 0 {
                        taken.by_key.remove(&key);
                    }
                }
            }
            Err(_) => taken.refused -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyPair;

    fn key() -> PublicKey {
        KeyPair::generate().unwrap().public()
    }

    /// As many places as a key gets.
    fn share(places: &Arc<Places>, key: PublicKey) -> Vec<Place> {
        (0..SHARE).map(|_| places.take(key).unwrap()).collect()
    }

    #[test]
    fn a_key_gets_its_share_and_no_more_until_it_gives_one_back() {
        let (places, own, other) = (Arc::new(Places::default()), key(), key());
        let mut held = share(&places, own);
        assert!(held.iter().all(|place| place.peer() == Ok(own)));
        let refused = places.take(own).unwrap();
        assert_eq!(refused.peer(), Err(Crowded::Key));
        assert_eq!(places.take(other).unwrap().peer(), Ok(other));
        // A refused connection that ends makes no room.
        drop(refused);
        assert_eq!(places.take(own).unwrap().peer(), Err(Crowded::Key));
        held.pop();
        assert_eq!(places.take(own).unwrap().peer(), Ok(own));
    }

    #[test]
    fn all_keys_together_get_as_many_places_as_there_are() {
        let (places, other) = (Arc::new(Places::default()), key());
        let held: Vec<Place> = (0..CONNECTIONS / SHARE)
            .flat_map(|_| share(&places, key()))
            .collect();
        assert_eq!(held.len(), CONNECTIONS);
        assert_eq!(places.take(other).unwrap().peer(), Err(Crowded::Node));
        drop(held);
        assert_eq!(places.take(other).unwrap().peer(), Ok(other));
        assert!(places.0.lock().by_key.is_empty());
    }

    #[test]
    fn few_connections_are_refused_at_a_time() {
        let (places, own, other) = (Arc::new(Places::default()), key(), key());
        let held = share(&places, own);
        let mut refused: Vec<Place> = (0..REFUSED).map(|_| places.take(own).unwrap()).collect();
        assert!(places.take(own).is_none());
        // They do not keep others out.
        assert_eq!(places.take(other).unwrap().peer(), Ok(other));
        refused.pop();
        assert_eq!(places.take(own).unwrap().peer(), Err(Crowded::Key));
        drop((held, refused));
        assert_eq!(places.0.lock().refused, 0);
    }
}
