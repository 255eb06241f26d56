//! Results of growing filesystems, from the Node service, until they are written to a status.
//!
//! The agent is the only writer of a PoolVolume's status, and a starting pod does not wait for a write.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Whether a filesystem fills its image; if not, the error.
pub type Seen = Result<(), String>;

/// The latest unwritten results by name of the volume.
#[derive(Debug, Default)]
pub struct Filesystems(Mutex<HashMap<String, Seen>>);

impl Filesystems {
    /// Records a result until it is written.
    pub fn saw(&self, volume: &str, seen: Seen) {
        self.0.lock().insert(volume.to_owned(), seen);
    }

    /// The unwritten result of a volume.
    pub fn get(&self, volume: &str) -> Option<Seen> {
        self.0.lock().get(volume).cloned()
    }

    /// Forgets a written result, unless there is a later one.
    pub fn written(&self, volume: &str, seen: &Seen) {
        let mut all = self.0.lock();
        if all.get(volume) == Some(seen) {
            all.remove(volume);
        }
    }

    /// Forgets a volume that is gone.
    pub fn forget(&self, volume: &str) {
        self.0.lock().remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_arrives_during_a_write_is_kept() {
        let filesystems = Filesystems::default();
        let smaller = Err("mounted".to_owned());
        filesystems.saw("a", smaller.clone());
        assert_eq!(filesystems.get("a"), Some(smaller.clone()));
        filesystems.saw("a", Ok(()));
        filesystems.written("a", &smaller);
        assert_eq!(filesystems.get("a"), Some(Ok(())));
        filesystems.written("a", &Ok(()));
        assert_eq!(filesystems.get("a"), None);
    }
}
