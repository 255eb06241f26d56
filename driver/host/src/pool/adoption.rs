//! Decides which of several candidates is a pool.
//!
//! *Invariants:* a pool is adopted only if exactly one candidate has its name. Two candidates, or one
//! that cannot be read, are refused, and the error names each. A device that cannot be read is a
//! candidate.

use std::{io, path::PathBuf};

use super::{Candidate, Error, PoolDeclaration, marker::Marker};

/// Candidates for a pool whose StoragePool was recreated.
#[derive(Debug)]
pub(super) struct Candidates<T> {
    /// The candidate whose marker has the UID of the StoragePool: it was adopted before.
    own: Option<T>,
    returning: Vec<(PathBuf, Marker, T)>,
    doubts: Vec<(PathBuf, Candidate)>,
}

impl<T> Candidates<T> {
    pub(super) const fn none() -> Self {
        Self {
            own: None,
            returning: Vec::new(),
            doubts: Vec::new(),
        }
    }

    /// Records the marker at a path, or why it cannot be read. Returns whether it is a candidate.
    pub(super) fn consider(
        &mut self,
        declaration: &PoolDeclaration,
        at: PathBuf,
        what: T,
        marker: Result<Option<Marker>, Error>,
    ) -> bool {
        match marker {
            Ok(Some(marker)) if marker.record.pool_uid == declaration.uid => self.own = Some(what),
            Ok(Some(marker)) if marker.record.is_returning(&declaration.claim()) => {
                self.returning.push((at, marker, what));
            }
            Ok(_) => return false,
            Err(error) => self.doubt(at, Candidate::Unread(Box::new(error))),
        }
        true
    }

    /// Records why a path may or may not be the pool.
    pub(super) fn doubt(&mut self, at: PathBuf, why: Candidate) {
        self.doubts.push((at, why));
    }

    /// The one candidate that is the pool; None if there is none.
    pub(super) fn decide(mut self, declaration: &PoolDeclaration) -> Result<Option<T>, Error> {
        if self.own.is_some() {
            return Ok(self.own);
        }
        if self.doubts.is_empty() && self.returning.len() <= 1 {
            return Ok(self.returning.pop().map(|(_, _, what)| what));
        }
        let returning = self.returning.into_iter().map(|(at, marker, _)| {
            let (name, uid) = (marker.record.pool_name, marker.record.pool_uid);
            (at, Candidate::Marker { name, uid })
        });
        Err(Error::Ambiguous {
            name: declaration.name.clone(),
            found: returning.chain(self.doubts).collect(),
        })
    }
}

/// Devices or files that hold the pool, and those that may, because they cannot be read.
#[derive(Debug)]
pub(super) struct Matches<T> {
    pub(super) found: Vec<(PathBuf, T)>,
    pub(super) unread: Vec<(PathBuf, io::Error)>,
}

impl<T> Matches<T> {
    pub(super) const fn none() -> Self {
        Self {
            found: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// The one that holds the pool; None if there is none. Several are an error that states `why` for
    /// each. So is one beside another that cannot be read, whose copy it may be, unless `is_known`
    /// recognizes it.
    pub(super) fn only(
        &mut self,
        declaration: &PoolDeclaration,
        why: impl Fn() -> Candidate,
        is_known: impl FnOnce(&T) -> Result<bool, Error>,
    ) -> Result<Option<T>, Error> {
        let is_certain = match &self.found[..] {
            [] => true,
            [(_, only)] => self.unread.is_empty() || is_known(only)?,
            _ => false,
        };
        if is_certain {
            return Ok(self.found.pop().map(|(_, only)| only));
        }
        let found = self.found.drain(..).map(|(path, _)| (path, why()));
        let unread = self.unread.drain(..);
        let unread = unread.map(|(path, error)| (path, Candidate::unread(error)));
        Err(Error::Ambiguous {
            name: declaration.name.clone(),
            found: found.chain(unread).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use cistern_types::Bytes;

    use super::*;
    use crate::pool::PoolRecord;
    use crate::{
        id::Uuid,
        pool::{Owner, Source, failed},
    };

    fn declared() -> PoolDeclaration {
        PoolDeclaration {
            uid: "new".parse().unwrap(),
            name: "fast".to_owned(),
            others: vec!["other".parse().unwrap()],
            node: Owner {
                node: "w1".to_owned(),
                machine: None,
            },
            take_over: None,
            replaced: Vec::new(),
            source: Source::Image {
                size: Bytes::gib(1),
                directory: None,
            },
        }
    }

    fn marker(uid: &str, name: &str) -> Marker {
        Marker {
            record: PoolRecord {
                pool_uid: uid.parse().unwrap(),
                pool_name: name.to_owned(),
                filesystem_uuid: Uuid::from_bytes([0; 16]),
                owner: None,
                takeovers: 0,
            },
            size: Bytes::gib(1),
            empty: Bytes::gib(1),
        }
    }

    /// The decision about some markers, by their position.
    fn decide(markers: Vec<Result<Option<Marker>, Error>>) -> Result<Option<usize>, Error> {
        let (declared, mut candidates) = (declared(), Candidates::none());
        for (position, marker) in markers.into_iter().enumerate() {
            candidates.consider(&declared, format!("/{position}").into(), position, marker);
        }
        candidates.decide(&declared)
    }

    fn unreadable() -> Error {
        failed("read it")(io::Error::from(io::ErrorKind::TimedOut))
    }

    #[test]
    fn one_pool_of_the_name_is_taken_unless_the_host_is_to_carry_it_as_another() {
        let (old, slow) = (marker("old", "fast"), marker("slow", "slow"));
        let other = marker("other", "fast");
        let found = decide(vec![
            Ok(Some(slow)),
            Ok(Some(other)),
            Ok(None),
            Ok(Some(old)),
        ]);
        assert_eq!(found.unwrap(), Some(3));
        assert_eq!(decide(vec![Ok(None)]).unwrap(), None);
    }

    #[test]
    fn what_was_adopted_before_is_the_pool_whatever_else_is_there() {
        let (old, new) = (marker("old", "fast"), marker("new", "fast"));
        let found = decide(vec![Ok(Some(old)), Ok(Some(new)), Err(unreadable())]);
        assert_eq!(found.unwrap(), Some(1));
    }

    #[test]
    fn two_of_the_name_or_a_doubt_are_refused_and_each_is_named() {
        let (old, older) = (marker("old", "fast"), marker("older", "fast"));
        let error = decide(vec![Ok(Some(old.clone())), Ok(Some(older))]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/0: it is pool fast (old)"), "{text}");
        assert!(text.contains("/1: it is pool fast (older)"), "{text}");
        let error = decide(vec![Ok(Some(old)), Err(unreadable())]).unwrap_err();
        assert!(
            error.to_string().contains("/1: could not read it"),
            "{error}"
        );
        assert!(matches!(
            decide(vec![Err(unreadable())]),
            Err(Error::Ambiguous { .. })
        ));
    }
}
