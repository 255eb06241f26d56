//! The keys of an encrypted volume, from the secrets of a request.

use std::collections::BTreeMap;

use cistern_host::{InvalidKey, Key, Keys};

/// Name of the key in the Secret.
const KEY: &str = "key";
/// Name of the key before it, which a rotation or a restored volume needs.
const PREVIOUS_KEY: &str = "previousKey";

/// Why secrets are refused. It says nothing of their content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value is no key.
    #[error("secrets[\"{name}\"]: {why}: for example, openssl rand -base64 48 prints one")]
    Invalid {
        /// Name of the value.
        name: &'static str,
        /// What is wrong with it.
        why: InvalidKey,
    },
    /// There is a previous key, and no current one.
    #[error("secrets have \"{PREVIOUS_KEY}\" and no \"{KEY}\"")]
    OnlyPrevious,
}

/// Takes the keys out of secrets; None if there is no key among them.
pub(super) fn take(mut secrets: BTreeMap<String, String>) -> Result<Option<Keys>, Error> {
    let mut key = |name: &'static str| {
        let value = secrets.remove(name).map(String::into_bytes);
        let invalid = |why| Error::Invalid { name, why };
        value.map(|it| Key::new(it).map_err(invalid)).transpose()
    };
    match (key(KEY)?, key(PREVIOUS_KEY)?) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Error::OnlyPrevious),
        (Some(current), previous) => Ok(Some(Keys::new(current, previous))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pairs: &[(&str, &str)]) -> Result<Option<Keys>, Error> {
        let pairs = pairs.iter();
        take(
            pairs
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        )
    }

    // Shows: SEC-02: the names consist of letters.
    #[test]
    fn sec_02_keys_are_taken_by_their_names_and_an_error_does_not_show_them() {
        let long = "a".repeat(32);
        assert!(taken(&[("other", "value")]).unwrap().is_none());
        assert!(taken(&[("key", &long)]).unwrap().is_some());
        let both = taken(&[("key", &long), ("previousKey", &long)]);
        assert!(both.unwrap().is_some());
        assert_eq!(
            taken(&[("previousKey", &long)]).unwrap_err(),
            Error::OnlyPrevious
        );
        for name in ["key", "previousKey"] {
            let error = taken(&[("key", &long), (name, "canary")]).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(name) && !text.contains("canary"), "{text}");
        }
    }
}
