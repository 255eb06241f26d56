//! The keys of an encrypted volume.

use std::{
    fmt,
    io::{self, PipeReader, Write as _},
};

use zeroize::Zeroizing;

/// Fewest bytes of a key. LUKS2 spends little time on each attempt to open a volume, because the key is random.
const MIN_LENGTH: usize = 32;
/// Most bytes of a key: a pipe takes two of them without a reader.
const MAX_LENGTH: usize = 4096;

/// A key that opens an encrypted volume. It is erased from memory when it is dropped.
pub struct Key(Zeroizing<Vec<u8>>);

/// The keys of a request: the current one, and another one before it.
#[derive(Debug)]
pub struct Keys {
    current: Key,
    previous: Option<Key>,
}

impl Keys {
    /// Takes the key that opens the volume from now on, and the one that opens a volume that was restored from a snapshot,
    /// or whose key was replaced. One that is equal to the current key counts as none: it is removed from the volume, and
    /// nothing would open that without its last key.
    pub fn new(current: Key, previous: Option<Key>) -> Self {
        let previous = previous.filter(|previous| *previous.0 != *current.0);
        Self { current, previous }
    }

    /// Returns the current key.
    pub(crate) fn current(&self) -> &Key {
        &self.current
    }

    /// Returns the key before it; none if there is none.
    pub(super) fn previous(&self) -> Option<&Key> {
        self.previous.as_ref()
    }
}

/// Why a text is no key. It says nothing of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has {MIN_LENGTH} to {MAX_LENGTH} random bytes, and this one has {length}")]
pub struct InvalidKey {
    length: usize,
}

impl Key {
    /// Takes the bytes of a key. Fails if there are too few or too many.
    pub fn new(bytes: Vec<u8>) -> Result<Self, InvalidKey> {
        let bytes = Zeroizing::new(bytes);
        let length = bytes.len();
        if (MIN_LENGTH..=MAX_LENGTH).contains(&length) {
            Ok(Self(bytes))
        } else {
            Err(InvalidKey { length })
        }
    }

    /// Returns the number of bytes.
    pub(super) fn length(&self) -> usize {
        self.0.len()
    }

    /// Returns a pipe from which a tool reads keys, one after the other. Unlike a file in memory, it is never swapped
    /// out.
    pub(super) fn pipe_of(keys: &[&Self]) -> io::Result<PipeReader> {
        let (reader, mut writer) = io::pipe()?;
        for key in keys {
            writer.write_all(&key.0)?;
        }
        Ok(reader)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_key_is_read_from_its_pipe_and_printed_nowhere() {
        let key = Key::new(b"canary-of-32-bytes-and-some-more".to_vec()).unwrap();
        let keys = Keys::new(key, Some(Key::new(vec![b'c'; MAX_LENGTH]).unwrap()));
        let text = format!("{keys:?}");
        assert!(!text.contains("canary") && !text.contains("99"), "{text}");
        let mut read = Vec::new();
        let mut pipe = Key::pipe_of(&[&keys.current]).unwrap();
        pipe.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"canary-of-32-bytes-and-some-more");
        let mut read = Vec::new();
        let longest = keys.previous.unwrap();
        let mut pipe = Key::pipe_of(&[&longest, &longest]).unwrap();
        pipe.read_to_end(&mut read).unwrap();
        assert_eq!(read.len(), 2 * longest.length());
    }

    #[test]
    fn a_previous_key_that_is_the_current_one_is_never_removed_from_a_volume() {
        let key = || Key::new(vec![b'k'; MIN_LENGTH]).unwrap();
        let other = Key::new(vec![b'o'; MIN_LENGTH]).unwrap();
        assert!(Keys::new(key(), Some(key())).previous().is_none());
        assert!(Keys::new(key(), Some(other)).previous().is_some());
    }

    #[test]
    fn too_short_and_too_long_keys_are_refused_without_being_named() {
        for length in [0, MIN_LENGTH - 1, MAX_LENGTH + 1] {
            let error = Key::new(vec![b'k'; length]).unwrap_err();
            assert_eq!(error, InvalidKey { length });
            assert!(!error.to_string().contains("kk"));
        }
    }
}
