//! The JSON documents of the page: the views of `status`, `volumes` and `snapshots`, and the session, which is the
//! state of the connection.
//!
//! *Invariant:* a document is built only on request, at most once per [`AT_MOST`], and only if an
//! object has changed or [`AT_LEAST`] has passed: some problems appear without a change. The tag of
//! a document changes only with its content.

use std::{
    fmt::Write as _,
    io,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use chrono::Utc;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use super::following::Following;
use crate::{
    Error,
    arguments::Selection,
    cluster::Cluster,
    output::compact,
    snapshots::Origins,
    status::Status,
    volumes::{Devices, Volumes},
};

/// Shortest time between two builds of a document.
const AT_MOST: Duration = Duration::from_secs(1);
/// Longest time for which an unchanged cluster has the same document.
const AT_LEAST: Duration = Duration::from_secs(15);

/// Kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The view of `status`.
    Status,
    /// The view of `volumes`.
    Volumes,
    /// The view of `snapshots`.
    Snapshots,
}

/// A document with its tag.
#[derive(Clone, Debug)]
pub struct Document {
    /// Value of the header ETag.
    pub tag: String,
    /// Content of the document, in JSON.
    pub body: Bytes,
}

/// A document, with the time and the number of changes at which it was built.
#[derive(Debug)]
struct Built {
    at: Instant,
    changes: u64,
    document: Document,
}

/// The documents of a cluster.
#[derive(Debug)]
pub struct Documents {
    following: Following,
    built: [Mutex<Option<Built>>; 3],
}

impl Documents {
    /// Creates the documents of a watched cluster. Builds none of them yet.
    pub fn of(following: Following) -> Self {
        Self {
            following,
            built: Default::default(),
        }
    }

    /// Returns the state of the connection. It is small and changes without a change of an object,
    /// so it is built for each request. Fails if it cannot be serialized.
    pub fn session(&self) -> Result<Document, Error> {
        let body = serde_json::to_vec(&self.following.session());
        let body = body.map_err(|error| Error::Rendering(error.into()))?;
        Ok(Document::of(body))
    }

    /// Returns a document. Concurrent requests for the same document share one build. Fails if the
    /// document cannot be serialized.
    pub async fn get(&self, kind: Kind) -> Result<Document, Error> {
        let [status, volumes, snapshots] = &self.built;
        let built = match kind {
            Kind::Status => status,
            Kind::Volumes => volumes,
            Kind::Snapshots => snapshots,
        };
        let mut built = built.lock().await;
        let changes = self.following.changes();
        if let Some(built) = &*built {
            let age = built.at.elapsed();
            let is_current = built.changes == changes && age < AT_LEAST;
            if is_current || age < AT_MOST {
                return Ok(built.document.clone());
            }
        }
        let document = self.build(kind).await?;
        *built = Some(Built {
            at: Instant::now(),
            changes,
            document: document.clone(),
        });
        Ok(document)
    }

    /// Builds a document on another thread, because a large one would delay watches and requests.
    async fn build(&self, kind: Kind) -> Result<Document, Error> {
        let cluster = self.following.cluster();
        let document =
            tokio::task::spawn_blocking(move || render(kind, &cluster).map(Document::of));
        let document = document.await.map_err(io::Error::other);
        document.flatten().map_err(Error::Rendering)
    }
}

impl Document {
    fn of(body: Vec<u8>) -> Self {
        let mut tag = String::from("\"");
        for byte in Sha256::digest(&body) {
            // Writing to a String cannot fail.
            let _ = write!(tag, "{byte:02x}");
        }
        tag.push('"');
        Self {
            tag,
            body: body.into(),
        }
    }
}

/// Renders the view of a document.
fn render(kind: Kind, cluster: &Cluster) -> io::Result<Vec<u8>> {
    let (all, now) = (Selection::default(), Utc::now());
    match kind {
        Kind::Status => compact(&Status::of(cluster, now)),
        Kind::Volumes => compact(&Volumes::of(cluster, &all, None, &Devices::new(), now)),
        Kind::Snapshots => compact(&Origins::of(cluster, &all, None, false, now)),
    }
}
