//! `/healthz`, `/readyz` and `/metrics` of a process.
//!
//! `/healthz` reports that the process responds. `/readyz` reports that it is ready, or why it is
//! not. All use only the state of the process, so they are cheap and never hang. A process may serve
//! more paths. The number and duration of connections are limited: see `connections.rs`.

mod connections;

use std::{collections::BTreeMap, sync::Arc};

pub use connections::serve;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};

/// The parts that the process still waits for, by name. It is ready when there are none.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    waiting: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Readiness {
    /// Marks `part` as not ready until [`Self::done`]. `why` is the reason in the report; a later
    /// call replaces it.
    pub fn wait_for(&self, part: &'static str, why: impl Into<String>) {
        self.waiting.lock().insert(part, why.into());
    }

    /// Records that `part` is ready.
    pub fn done(&self, part: &'static str) {
        self.waiting.lock().remove(part);
    }

    /// Whether all parts are ready.
    pub fn is_ready(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// The missing parts and their reasons, one per line; empty when ready.
    pub fn report(&self) -> String {
        let waiting = self.waiting.lock();
        let lines: Vec<String> = waiting
            .iter()
            .map(|(part, why)| format!("{part}: {why}"))
            .collect();
        lines.join("\n")
    }
}

/// The paths that every process serves: health and metrics.
pub fn routes(readiness: Readiness, metrics: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(exposition).with_state(metrics))
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    if readiness.is_ready() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, readiness.report()).into_response()
    }
}

async fn exposition(State(metrics): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &metrics) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    async fn ask(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn readiness_reports_missing_parts_and_health_does_not_depend_on_them() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Readiness::default();
        readiness.wait_for("watch", "the first list has not come");
        let server = serve(
            listener,
            routes(readiness.clone(), Arc::default()),
            std::future::pending(),
        );
        let server = tokio::spawn(server);
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let answer = ask(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("watch: the first list"));
        readiness.done("watch");
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("# EOF"));
        server.abort();
    }
}
