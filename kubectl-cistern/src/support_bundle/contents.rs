//! The files of a bundle and its index. Pure, but for writing them.

use std::{collections::BTreeMap, io};

use chrono::{DateTime, Utc};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

/// Folder of all files in the archive.
const FOLDER: &str = "cistern-support-bundle";
/// Maximum size of all files together, in bytes, before compression.
const TOTAL: usize = 256 << 20;

/// Files by path, and what is missing.
#[derive(Debug, Default)]
pub struct Contents {
    files: BTreeMap<String, Vec<u8>>,
    missing: BTreeMap<String, String>,
    size: usize,
}

impl Contents {
    /// Adds a file. If the bundle would be too large, the file is missing instead.
    pub fn add(&mut self, path: &str, bytes: Vec<u8>) {
        let size = self.size.saturating_add(bytes.len());
        if size > TOTAL {
            let limit = TOTAL >> 20;
            return self.miss(path, format!("the bundle would exceed {limit} MiB"));
        }
        self.size = size;
        self.files.insert(path.to_owned(), bytes);
    }

    /// Adds a document as JSON with line breaks.
    pub fn add_json(&mut self, path: &str, value: &Value) {
        self.add(path, format!("{value:#}\n").into_bytes());
    }

    /// Records why a file is missing.
    pub fn miss(&mut self, path: &str, why: impl Into<String>) {
        self.missing.insert(path.to_owned(), why.into());
    }

    /// The files by path.
    pub const fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    /// The missing files by path, each with the reason.
    pub const fn missing(&self) -> &BTreeMap<String, String> {
        &self.missing
    }

    /// Names all files, and what is missing and why.
    fn index(&self, now: DateTime<Utc>) -> Value {
        let file = |(path, bytes): (&String, &Vec<u8>)| json!({"path": path, "bytes": bytes.len()});
        let missing = |(path, why): (&String, &String)| json!({"path": path, "reason": why});
        json!({
            "collectedAt": now.to_rfc3339(),
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "missing": self.missing.iter().map(missing).collect::<Vec<_>>(),
        })
    }

    /// Writes the archive: `index.json`, then the files by path. Fails if `output` cannot be written.
    pub fn write(&self, output: impl io::Write, now: DateTime<Utc>) -> io::Result<()> {
        let mut archive = tar::Builder::new(GzEncoder::new(output, Compression::default()));
        let time = u64::try_from(now.timestamp()).unwrap_or_default();
        let index = format!("{:#}\n", self.index(now)).into_bytes();
        let files = self
            .files
            .iter()
            .map(|(path, bytes)| (path.as_str(), bytes));
        for (path, bytes) in std::iter::once(("index.json", &index)).chain(files) {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len().try_into().map_err(io::Error::other)?);
            header.set_mode(0o600);
            header.set_mtime(time);
            archive.append_data(&mut header, format!("{FOLDER}/{path}"), bytes.as_slice())?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn read(archive: &[u8]) -> Vec<(String, String)> {
        let mut archive = tar::Archive::new(GzDecoder::new(archive));
        let entries = archive.entries().unwrap();
        entries
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text)
            })
            .collect()
    }

    #[test]
    fn an_archive_begins_with_an_index_of_its_sorted_files_and_of_what_is_missing() {
        let mut contents = Contents::default();
        contents.add("logs/b.log", b"two".to_vec());
        contents.add("a.json", b"{}".to_vec());
        contents.miss("fsck.txt", "not allowed");
        let mut archive = Vec::new();
        contents.write(&mut archive, DateTime::UNIX_EPOCH).unwrap();
        let files = read(&archive);
        let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
        let wanted = ["index.json", "a.json", "logs/b.log"];
        assert_eq!(paths, wanted.map(|path| format!("{FOLDER}/{path}")));
        assert_eq!(files[2].1, "two");
        let index: Value = serde_json::from_str(&files[0].1).unwrap();
        assert_eq!(
            index,
            json!({
                "collectedAt": "1970-01-01T00:00:00+00:00",
                "files": [{"path": "a.json", "bytes": 2}, {"path": "logs/b.log", "bytes": 3}],
                "missing": [{"path": "fsck.txt", "reason": "not allowed"}],
            })
        );
    }

    #[test]
    fn a_file_beyond_the_limit_is_named_as_missing_and_smaller_ones_still_fit() {
        let mut contents = Contents::default();
        contents.add("a", vec![0; TOTAL - 1]);
        contents.add("b", vec![0; 2]);
        contents.add("c", vec![0; 1]);
        assert_eq!(contents.files().keys().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(contents.missing()["b"], "the bundle would exceed 256 MiB");
    }
}
