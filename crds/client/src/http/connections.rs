//! Connections to the HTTP server: few, short, and none keeps another out.
//!
//! *Invariant:* [`AT_ONCE`] connections are open at most. One more takes the place of the oldest, so that
//! whoever holds connections without asking anything cannot keep kubelet's probes waiting. A connection
//! carries one request: its headers have [`HEADERS`] to arrive, and all of it has [`WHOLE`].

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

/// Connections that are open at a time.
const AT_ONCE: usize = 32;
/// How long the headers of a request may take.
const HEADERS: Duration = Duration::from_secs(5);
/// How long a connection may last: a slow reader gets a page of metrics in this time.
const WHOLE: Duration = Duration::from_secs(30);
/// Bytes that the headers of a request may have.
const HEADER_BYTES: usize = 16 << 10;
/// How long to wait when the process cannot accept, for want of descriptors or memory.
const BACKOFF: Duration = Duration::from_secs(1);

/// Answers requests until `shutdown`; then all connections are closed.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
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
        // Whoever was accepted gets its turn before the next: in a flood of idle connections a probe
        // is answered before others push it out.
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
    // A client that is late, sends no HTTP or goes away is no concern of this process.
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

/// Connections that are open. Dropped, they are closed.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    /// In the order in which they came.
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

    /// A server, and how to reach it. It ends with the runtime of the test.
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

    /// All until the server closes the connection, in order or not.
    async fn read(stream: &mut TcpStream) -> String {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn a_probe_is_answered_while_thousands_of_connections_ask_nothing() {
        // Fewer than the descriptors that a process gets anywhere.
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
    async fn one_connection_too_many_takes_the_place_of_the_oldest() {
        let address = start().await;
        let mut idle = Vec::new();
        for _ in 0..=AT_ONCE {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut oldest = idle.remove(0);
        assert_eq!(read(&mut oldest).await, "");
        // The others can still ask.
        for stream in &mut idle {
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                .await
                .unwrap();
            assert!(read(stream).await.starts_with("HTTP/1.1 200"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_headers_do_not_end_is_given_up() {
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
