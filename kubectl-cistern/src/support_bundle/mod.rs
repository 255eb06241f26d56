//! `support-bundle`: what others need to understand a problem, in one file.
//!
//! ```text
//! objects ─▶ selection and redaction (pure) ─┐
//! logs, metrics, fsck, doctor, versions ─────┴─▶ contents (with index.json) ─▶ .tar.gz
//! ```
//!
//! *Invariant:* nothing is changed, and no Secret and no ConfigMap is read. What could not be collected is
//! named in `index.json`, with the reason.

mod agents;
pub mod contents;
mod logs;
pub mod objects;
pub mod redaction;

use std::{
    io,
    path::{Path, PathBuf},
};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use serde_json::{Value, json};

use self::contents::Contents;
use crate::{
    Connection, Printer, Verdict, arguments, doctor, fsck,
    output::{Format, Paint, View, counted, render},
};

/// Error of `support-bundle`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file exists, or cannot be written.
    #[error("the bundle cannot be written to {}: choose another --file", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Underlying error.
        #[source]
        source: io::Error,
    },
}

/// Collects everything, writes it to a file, and prints what is missing. Returns a warning if
/// something could not be collected. Fails if the API server cannot be reached, or if the file exists
/// or cannot be written.
pub async fn run(
    connection: &Connection,
    flags: &arguments::SupportBundle,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let now = Utc::now();
    let path = flags.file.clone().unwrap_or_else(|| default_path(now));
    let contents = collect(connection, now).await?;
    write(&contents, &path, now)?;
    let files = counted(contents.files().len(), "file");
    printer.write(&format!("{}: {files}\n", path.display()))?;
    let missing = contents.missing();
    if missing.is_empty() {
        return Ok(Verdict::Ok);
    }
    let count = missing.len();
    printer.write(&format!(
        "{count} could not be collected: index.json in the bundle has the reasons\n"
    ))?;
    Ok(Verdict::Warnings)
}

fn default_path(now: DateTime<Utc>) -> PathBuf {
    let name = format!(
        "cistern-support-bundle-{}.tar.gz",
        now.format("%Y%m%dT%H%M%SZ")
    );
    PathBuf::from(name)
}

async fn collect(connection: &Connection, now: DateTime<Utc>) -> Result<Contents, crate::Error> {
    let mut contents = Contents::default();
    // This request runs first, so that an unreachable API server causes one error and no bundle.
    let server = connection.client();
    let server = connection
        .ask(
            "cannot read the version of the API server",
            server.apiserver_version(),
        )
        .await?;
    let versions = json!({
        "collectedAt": now.to_rfc3339(),
        "plugin": env!("CARGO_PKG_VERSION"),
        "server": server.git_version,
        "systemNamespace": connection.system_namespace,
    });
    contents.add_json("versions.json", &versions);
    let listed = objects::list(connection, &mut contents).await;
    for (name, items) in objects::selected(listed, &connection.system_namespace) {
        contents.add_json(&format!("objects/{name}.json"), &list(&items));
        if name == "pods" {
            logs::collect(connection, &items, &mut contents).await;
        }
    }
    agents::collect(connection, &mut contents).await;
    let everywhere = arguments::Fsck::default();
    add_view(
        "fsck",
        &mut contents,
        fsck::read(connection, &everywhere).await,
    );
    add_view("doctor", &mut contents, doctor::read(connection).await);
    Ok(contents)
}

/// A list that `kubectl get -f` can show.
fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Adds a view as text and as JSON, or why there is none.
fn add_view<V: View>(name: &str, contents: &mut Contents, view: Result<V, crate::Error>) {
    let view = match view {
        Ok(view) => view,
        Err(error) => return contents.miss(&format!("{name}.txt"), Chain(&error).to_string()),
    };
    for (suffix, format) in [("json", Format::Json), ("txt", Format::Wide)] {
        let path = format!("{name}.{suffix}");
        match render(&view, format, true, Paint::plain()) {
            Ok(text) => contents.add(&path, text.into_bytes()),
            Err(error) => contents.miss(&path, error.to_string()),
        }
    }
}

/// Writes a file that appears when it is complete, and replaces none.
fn write(contents: &Contents, path: &Path, now: DateTime<Utc>) -> Result<(), Error> {
    let failed = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let file = tempfile::NamedTempFile::new_in(folder.unwrap_or_else(|| Path::new(".")))
        .map_err(failed)?;
    contents.write(&file, now).map_err(failed)?;
    let persisted = file.persist_noclobber(path);
    persisted.map(drop).map_err(|error| failed(error.error))
}
