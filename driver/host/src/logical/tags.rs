//! Tags of LVM, in which a group and its volumes record what they are.
//!
//! A tag is `cistern.<field>=<value>`. The fields of a volume are those of [`Identity`], as an image records them.
//!
//! *Invariant:* text that a tag cannot hold is an error, and is never changed to fit.

use std::{io, iter};

use serde_json::{Map, Value};

use crate::{
    encryption::EncryptionState,
    image::Identity,
    pool::{Owner, PoolRecord},
};

/// How each tag of Cistern begins.
const PREFIX: &str = "cistern.";
/// Longest tag in bytes.
const LONGEST: usize = 1024;

/// How far a volume is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is not whole yet, and no volume.
    Making,
    /// It is whole.
    Made,
    /// It is whole, and gets the header of its encryption.
    Formatting,
}

impl State {
    /// Returns its tag.
    pub(super) fn tag(self) -> String {
        let name = match self {
            Self::Making => "making",
            Self::Made => "made",
            Self::Formatting => "formatting",
        };
        format!("{PREFIX}progress={name}")
    }
}

/// The tags of a group that is this pool. Fails for text that no tag holds.
pub(super) fn of_record(record: &PoolRecord) -> io::Result<Vec<String>> {
    let mut tags = vec![
        tag("pool", record.pool_uid.as_str())?,
        tag("pool-name", &record.pool_name)?,
        tag("pool-uuid", &record.filesystem_uuid.to_string())?,
    ];
    if let Some(owner) = &record.owner {
        tags.push(tag("node", &owner.node)?);
        if let Some(machine) = &owner.machine {
            tags.push(tag("machine", machine)?);
        }
    }
    if record.takeovers > 0 {
        tags.push(tag("takeovers", &record.takeovers.to_string())?);
    }
    Ok(tags)
}

/// Which pool the group with these tags is; none if it is none. Fails with the name of a tag that cannot be read.
pub(super) fn record(tags: &str) -> Result<Option<PoolRecord>, String> {
    let Some(pool) = value(tags, "pool") else {
        return Ok(None);
    };
    let unreadable = |field: &str| format!("{PREFIX}{field}");
    let uuid = value(tags, "pool-uuid").and_then(|uuid| uuid.parse().ok());
    let takeovers = value(tags, "takeovers").map_or(Ok(0), str::parse);
    Ok(Some(PoolRecord {
        pool_uid: pool.parse().map_err(|_| unreadable("pool"))?,
        pool_name: value(tags, "pool-name")
            .ok_or_else(|| unreadable("pool-name"))?
            .to_owned(),
        filesystem_uuid: uuid.ok_or_else(|| unreadable("pool-uuid"))?,
        owner: value(tags, "node").map(|node| Owner {
            node: node.to_owned(),
            machine: value(tags, "machine").map(str::to_owned),
        }),
        takeovers: takeovers.map_err(|_| unreadable("takeovers"))?,
    }))
}

/// Makes a tag.
fn tag(field: &str, value: &str) -> io::Result<String> {
    let tag = format!("{PREFIX}{field}={value}");
    let is_allowed = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '_' | '+' | '.' | '-' | '/' | '=' | '!' | ':' | '#' | '&')
    };
    if tag.len() > LONGEST || !tag.chars().all(is_allowed) {
        return Err(io::Error::other(format!("LVM has no tag {tag:?}")));
    }
    Ok(tag)
}

/// Returns the value of a field among the tags of a report.
pub(super) fn value<'a>(tags: &'a str, field: &str) -> Option<&'a str> {
    fields(tags).find_map(|(found, value)| (found == field).then_some(value))
}

/// Returns the tags of Cistern among those of a report.
pub(super) fn own(tags: &str) -> impl Iterator<Item = &str> {
    tags.split(',').filter(|tag| tag.starts_with(PREFIX))
}

fn fields(tags: &str) -> impl Iterator<Item = (&str, &str)> {
    tags.split(',')
        .filter_map(|tag| tag.strip_prefix(PREFIX)?.split_once('='))
}

/// The tag of an encrypted volume that says what it has. Fails for a clone.
pub(super) fn of_encryption(state: EncryptionState) -> io::Result<String> {
    match serde_json::to_value(state)? {
        Value::String(text) => tag("state", &text),
        value => Err(io::Error::other(format!("no tag holds {value}"))),
    }
}

/// The tags of a volume with this identity, which is not whole yet. Fails for text that no tag holds.
pub(super) fn of_volume(identity: &Identity) -> io::Result<Vec<String>> {
    let Value::Object(fields) = serde_json::to_value(identity)? else {
        return Err(io::Error::other("an identity has fields"));
    };
    let tags = fields.iter().map(|(field, value)| match value {
        Value::String(text) => tag(field, text),
        value => Err(io::Error::other(format!("no tag holds {field} {value}"))),
    });
    tags.chain(iter::once(Ok(State::Making.tag()))).collect()
}

/// How far the volume with these tags is made; none if it is not Cistern's.
pub(super) fn state(tags: &str) -> Option<State> {
    let mut tags = tags.split(',');
    tags.find_map(|tag| {
        [State::Making, State::Made, State::Formatting]
            .into_iter()
            .find(|it| it.tag() == tag)
    })
}

/// The identity in the tags of a volume; none if it is not whole.
pub(super) fn identity(tags: &str) -> Option<Identity> {
    let fields: Map<String, Value> = fields(tags)
        .filter(|(field, _)| *field != "progress")
        .map(|(field, value)| (field.to_owned(), value.into()))
        .collect();
    serde_json::from_value(fields.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::Uuid,
        image::{Content, identity::tests::identity as made},
    };

    #[test]
    fn an_identity_is_read_back_from_its_tags_beside_those_of_others() {
        let tags = of_volume(&made()).unwrap();
        assert!(
            tags.contains(&"cistern.volume=pvc-1".to_owned()),
            "{tags:?}"
        );
        let printed = format!("backup,{},keep=1", tags.join(","));
        assert_eq!(identity(&printed), Some(made()));
        assert_eq!(state(&printed), Some(State::Making));
        assert_eq!(value(&printed, "uid"), Some("u-1"));
        let encrypted = Identity {
            encryption: Some(EncryptionState::Unformatted),
            ..made()
        };
        let tags = of_volume(&encrypted).unwrap();
        assert_eq!(identity(&tags.join(",")), Some(encrypted));
        let unformatted = of_encryption(EncryptionState::Unformatted).unwrap();
        assert!(tags.contains(&unformatted), "{tags:?}");
        let block = Identity {
            content: Content::Block,
            ..made()
        };
        assert_eq!(identity(&of_volume(&block).unwrap().join(",")), Some(block));
    }

    #[test]
    fn the_pool_of_a_group_is_read_back_from_its_tags() {
        let owner = |machine: Option<&str>| Owner {
            node: "node-1".to_owned(),
            machine: machine.map(str::to_owned),
        };
        for (owner, takeovers) in [
            (None, 0),
            (Some(owner(None)), 0),
            (Some(owner(Some("m-1"))), 3),
        ] {
            let made = PoolRecord {
                pool_uid: "u-1".parse().unwrap(),
                pool_name: "fast".to_owned(),
                filesystem_uuid: Uuid::from_bytes([7; 16]),
                owner,
                takeovers,
            };
            let printed = format!("backup,{}", of_record(&made).unwrap().join(","));
            assert_eq!(record(&printed), Ok(Some(made)));
        }
        assert_eq!(record("backup"), Ok(None));
        let unreadable = record("cistern.pool=u-1,cistern.pool-name=fast");
        assert_eq!(unreadable, Err("cistern.pool-uuid".to_owned()));
    }

    #[test]
    fn what_is_not_of_cistern_has_neither_state_nor_identity() {
        for tags in [
            "",
            "backup",
            "cistern",
            "cistern.progress=half",
            "cistern.volume=pvc-1",
        ] {
            assert_eq!((state(tags), identity(tags)), (None, None), "{tags}");
        }
    }

    #[test]
    fn text_that_no_tag_holds_is_an_error() {
        for text in ["a,b", "a b", "ä", "a\"b", &"a".repeat(1024)] {
            assert!(tag("volume", text).is_err(), "{text}");
        }
    }
}
