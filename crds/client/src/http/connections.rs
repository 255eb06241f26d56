//! Limits the connections to the HTTP server in number and time.
//!
//! *Invariant:* at most [`AT_ONCE`] connections are open. Another one replaces the oldest, so that a
//! client with idle connections cannot block kubelet's probes. A connection carries one request: its
//! headers must arrive within [`HEADERS`], and it ends after [`WHOLE`].

use std::{collections::VecDeque, future::Future, io, pin::pin, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// Maximum number of open connections.
const AT_ONCE: usize = 32;
/// Deadline for the headers of a request.
const HEADERS: Duration = Duration::from_secs(5);
/// Deadline for a connection, enough for a slow reader of the metrics.
const WHOLE: Duration = Duration::from_secs(30);
/// Maximum size of the headers of a request in bytes.
const HEADER_BYTES: usize = 16 << 10;
/// How long to wait after the process cannot accept for lack of descriptors or memory.
const BACKOFF: Duration = Duration::from_secs(1);

/// Answers requests until `shutdown`, and then closes all connections. Errors of connections are logged or ignored.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let mut shutdown = pin!(shutdown);
    let mut open = Open::default();
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => open.add(answer(stream, router.clone())),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "the HTTP server cannot accept a connection");
                tokio::time::sleep(BACKOFF).await;
            }
        }
        // Runs the accepted connection before the next one is accepted, so that a probe in a flood
        // of idle connections is answered before other connections replace it.
        tokio::task::yield_now().await;
    }
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // Ignores clients that are late, send no HTTP or disconnect.
    let _ = tokio::time::timeout(WHOLE, connection).await;
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// The open connections. Dropping this closes them.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    /// The handle of each connection, oldest first.
    order: VecDeque<AbortHandle>,
}

impl Open {
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.order.retain(|task| !task.is_finished());
        while self.order.len() >= AT_ONCE {
            if let Some(oldest) = self.order.pop_front() {
                oldest.abort();
            }
        }
        self.order.push_back(self.tasks.spawn(connection));
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Starts a server, which ends with the runtime of the test, and returns its address.
    async fn start() -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", get(async || "ok\n"));
        tokio::spawn(serve(listener, router, std::future::pending()));
        address
    }

    async fn probe(address: std::net::SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        read(&mut stream).await
    }

    /// Reads until the connection is closed or reset.
    async fn read(stream: &mut TcpStream) -> String {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn a_probe_is_answered_while_thousands_of_connections_are_idle() {
        // Fewer than the descriptor limit of a process on any machine.
        const HELD: usize = 400;
        let address = start().await;
        let mut idle = VecDeque::new();
        for count in 1..=5_000 {
            idle.push_back(TcpStream::connect(address).await.unwrap());
            if idle.len() > HELD {
                idle.pop_front();
            }
            if count % 250 == 0 {
                let answer = probe(address).await;
                assert!(answer.starts_with("HTTP/1.1 200"), "{count}: {answer:?}");
            }
        }
        // All but the newest have been closed by the server.
        for _ in 0..HELD - AT_ONCE {
            let mut oldest = idle.pop_front().unwrap();
            assert_eq!(read(&mut oldest).await, "");
        }
    }

    #[tokio::test]
    async fn a_connection_beyond_the_limit_replaces_the_oldest() {
        let address = start().await;
        let mut idle = Vec::new();
        for _ in 0..=AT_ONCE {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut oldest = idle.remove(0);
        assert_eq!(read(&mut oldest).await, "");
        // The others can still send requests.
        for stream in &mut idle {
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                .await
                .unwrap();
            assert!(read(stream).await.starts_with("HTTP/1.1 200"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_with_unfinished_headers_is_closed() {
        let address = start().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\n")
            .await
            .unwrap();
        assert!(!read(&mut stream).await.contains("200 OK"));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let long = format!("GET /healthz HTTP/1.1\r\nx: {}", "x".repeat(HEADER_BYTES));
        let _ = stream.write_all(long.as_bytes()).await;
        assert!(!read(&mut stream).await.contains("200 OK"));
    }

    #[tokio::test]
    async fn a_connection_carries_one_request() {
        let address = start().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
        stream
            .write_all(request.repeat(2).as_bytes())
            .await
            .unwrap();
        let answer = read(&mut stream).await;
        assert_eq!(answer.matches("200 OK").count(), 1, "{answer}");
    }
}
