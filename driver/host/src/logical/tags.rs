//! Tags of LVM, in which a group and its volumes record what they are.
//!
//! A tag is `cistern.<field>=<value>`. The fields of a volume are those of [`Identity`], as an image records them.
//!
//! *Invariant:* text that a tag cannot hold is an error, and is never changed to fit.

use std::{io, iter};

use serde_json::{Map, Value};

use crate::image::Identity;

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
}

impl State {
    /// Returns its tag.
    pub(super) fn tag(self) -> String {
        let name = match self {
            Self::Making => "making",
            Self::Made => "made",
        };
        format!("{PREFIX}state={name}")
    }
}

/// Makes a tag.
pub(super) fn tag(field: &str, value: &str) -> io::Result<String> {
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

/// The tags of a volume with this identity, which is not whole yet. Fails for an encrypted one, and for text that no tag
/// holds.
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
        [State::Making, State::Made]
            .into_iter()
            .find(|it| it.tag() == tag)
    })
}

/// The identity in the tags of a volume; none if it is not whole.
pub(super) fn identity(tags: &str) -> Option<Identity> {
    let fields: Map<String, Value> = fields(tags)
        .filter(|(field, _)| *field != "state")
        .map(|(field, value)| (field.to_owned(), value.into()))
        .collect();
    serde_json::from_value(fields.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Content, identity::tests::identity as made};

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
        let block = Identity {
            content: Content::Block,
            ..made()
        };
        assert_eq!(identity(&of_volume(&block).unwrap().join(",")), Some(block));
    }

    #[test]
    fn what_is_not_of_cistern_has_neither_state_nor_identity() {
        for tags in [
            "",
            "backup",
            "cistern",
            "cistern.state=half",
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
