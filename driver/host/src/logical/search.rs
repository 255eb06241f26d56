//! Finding the volume group of a pool by its tags, whatever it is called.
//!
//! *Invariant:* a group is found only if it is the only one: a copy has the same tags. Several are an error that names
//! each, and so is one whose tags cannot be read, unless another is the pool already.

use super::{
    Unfit,
    claim::{path_of, unfit},
    command::Lvm,
    disks::is_made,
    report::GroupTags,
    tags,
};
use crate::{
    id::Uid,
    pool::{self, Candidate, Expectation, PoolClaim, PoolRecord},
};

/// Whose group is searched.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    /// That of a pool, of which this is known. Also the group that was the pool before its StoragePool was recreated with
    /// another UID.
    Claim(&'a PoolClaim, Expectation),
    /// That of the StoragePool with this UID.
    Uid(&'a Uid),
}

impl Wanted<'_> {
    /// How a message names the pool.
    fn name(self) -> String {
        match self {
            Self::Claim(claim, _) => claim.name.clone(),
            Self::Uid(uid) => uid.to_string(),
        }
    }

    fn is_own(self, record: &PoolRecord) -> bool {
        match self {
            Self::Claim(_, Expectation::Known { filesystem_uuid }) => {
                record.filesystem_uuid == filesystem_uuid
            }
            Self::Claim(claim, Expectation::Made | Expectation::New) => {
                record.pool_uid == claim.uid
            }
            Self::Uid(uid) => record.pool_uid == *uid,
        }
    }

    fn is_returning(self, record: &PoolRecord) -> bool {
        match self {
            Self::Claim(claim, Expectation::Made | Expectation::New) => record.is_returning(claim),
            Self::Claim(_, Expectation::Known { .. }) | Self::Uid(_) => false,
        }
    }
}

/// Returns the name of the group of a pool; none if there is none. Fails if several may be it, or if LVM could not read all
/// groups and none of the others is it.
pub(super) fn find(lvm: &Lvm, wanted: Wanted<'_>) -> Result<Option<String>, pool::Error> {
    let failed = || pool::failed("list the volume groups");
    let (rows, failure) = lvm.report_all::<GroupTags>().map_err(failed())?;
    match (only(&rows, wanted)?, failure) {
        // A group that could not be read may be the pool.
        (None, Some(cause)) => Err(failed()(cause)),
        (found, _) => Ok(found),
    }
}

/// The only one of these groups that is the pool.
fn only(rows: &[GroupTags], wanted: Wanted<'_>) -> Result<Option<String>, pool::Error> {
    let (mut own, mut returning, mut doubts) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let name = &row.name;
        let record = match tags::record(&row.tags) {
            Ok(None) => continue,
            Ok(Some(record)) => record,
            Err(tag) => {
                let error = pool::Error::Group(unfit(name, Unfit::Tag(tag)));
                doubts.push((path_of(name), Candidate::Unread(Box::new(error))));
                continue;
            }
        };
        if wanted.is_own(&record) {
            own.push((name, record));
        } else if wanted.is_returning(&record) {
            if is_made(name) {
                returning.push((name, record));
            } else {
                let in_file = false;
                doubts.push((path_of(name), Candidate::OtherSource { in_file }));
            }
        }
    }
    let found = if own.is_empty() {
        returning
    } else {
        doubts.clear();
        own
    };
    match &found[..] {
        [] if doubts.is_empty() => return Ok(None),
        [(name, _)] if doubts.is_empty() => return Ok(Some((*name).clone())),
        _ => {}
    }
    let found = found.into_iter().map(|(name, record)| {
        let (pool, uid) = (record.pool_name, record.pool_uid);
        (path_of(name), Candidate::Marker { name: pool, uid })
    });
    Err(pool::Error::Ambiguous {
        name: wanted.name(),
        found: found.chain(doubts).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::Uuid, pool::Owner};

    const MADE: &str = "cistern-0123456789ab";
    const UUID: Uuid = Uuid::from_bytes([7; 16]);

    fn node() -> Owner {
        Owner {
            node: "w1".to_owned(),
            machine: None,
        }
    }

    fn claim(uid: &str) -> PoolClaim {
        PoolClaim {
            uid: uid.parse().unwrap(),
            name: "fast".to_owned(),
            others: Vec::new(),
            node: node(),
            take_over: None,
        }
    }

    fn tagged(name: &str, tags: &str) -> GroupTags {
        GroupTags {
            name: name.to_owned(),
            tags: tags.to_owned(),
        }
    }

    /// A group that is a pool.
    fn group(name: &str, uid: &str) -> GroupTags {
        let record = PoolRecord::new(&claim(uid), UUID);
        tagged(name, &tags::of_record(&record).unwrap().join(","))
    }

    /// The pool of this UID, searched in each way.
    fn all_ways(claim: &PoolClaim) -> [Wanted<'_>; 4] {
        let known = Expectation::Known {
            filesystem_uuid: UUID,
        };
        [
            Wanted::Uid(&claim.uid),
            Wanted::Claim(claim, Expectation::New),
            Wanted::Claim(claim, Expectation::Made),
            Wanted::Claim(claim, known),
        ]
    }

    #[test]
    fn the_group_of_a_pool_is_found_among_those_of_others_whatever_its_name() {
        let claim = claim("u-1");
        let mut other = group("other", "u-2");
        other.tags = other
            .tags
            .replace(&UUID.to_string(), &Uuid::max().to_string());
        other.tags = other.tags.replace("fast", "slow");
        let unreadable = tagged("odd", "cistern.pool=u-3");
        let rows = [tagged("vg", ""), other, unreadable, group("own", "u-1")];
        for wanted in all_ways(&claim) {
            assert_eq!(only(&rows, wanted).unwrap().as_deref(), Some("own"));
            assert_eq!(only(&rows[..2], wanted).unwrap(), None);
            // It may be the pool.
            let error = only(&rows[..3], wanted).unwrap_err().to_string();
            assert!(error.contains("/dev/odd: "), "{error}");
        }
    }

    #[test]
    fn a_pool_with_the_tags_of_two_groups_is_refused_and_both_are_named() {
        let claim = claim("u-1");
        let rows = [group(MADE, "u-1"), group("copy", "u-1")];
        for wanted in all_ways(&claim) {
            let error = only(&rows, wanted).unwrap_err();
            assert!(matches!(error, pool::Error::Ambiguous { .. }), "{error}");
            let error = error.to_string();
            for part in [MADE, "/dev/copy: it is pool fast (u-1)"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn a_group_returns_to_a_recreated_storage_pool_only_where_the_pool_may_be_made() {
        let claim = claim("u-new");
        let [by_uid, new, made, _] = all_ways(&claim);
        let other = Expectation::Known {
            filesystem_uuid: Uuid::max(),
        };
        let rows = [group(MADE, "u-old")];
        for wanted in [new, made] {
            assert_eq!(only(&rows, wanted).unwrap().as_deref(), Some(MADE));
        }
        for wanted in [by_uid, Wanted::Claim(&claim, other)] {
            assert_eq!(only(&rows, wanted).unwrap(), None);
        }
        // One that Cistern has not made is that of a pool with another source.
        let rows = [group("vg", "u-old")];
        only(&rows, new).unwrap_err();
    }
}
