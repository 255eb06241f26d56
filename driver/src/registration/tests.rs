//! Replays the bytes of kubelet's client to the real server.
//!
//! The fixtures are the bytes of one connection of grpc-go 1.79.3 as kubelet 1.36 dials: three
//! calls on streams 1, 3 and 5. They differ only in the name of the socket.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tonic::transport::Server;

use super::*;

/// The connection to a socket with the name of [`socket_path`].
const WITH_AT: &[u8] = include_bytes!("../../tests/fixtures/registration-at.bin");
/// The connection to a socket with the customary name.
const WITH_DASH: &[u8] = include_bytes!("../../tests/fixtures/registration-dash.bin");
/// Length of the client's last frame, GOAWAY. A server that reads it may close before it answers.
const GOAWAY: usize = 42;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;

/// Writes the bytes in pieces and returns type and stream of every frame of the server after all three
/// streams have ended.
async fn replay(bytes: &'static [u8], piece: usize) -> Vec<(u8, u32)> {
    let (client, server) = UnixStream::pair().unwrap();
    let registrar = Registrar::new(Path::new("/csi.sock"));
    let incoming = tokio_stream::once(Ok::<_, std::io::Error>(server));
    let server = tokio::spawn(
        Server::builder()
            .add_routes(registrar.into_routes())
            .serve_with_incoming(incoming),
    );
    let (mut reader, mut writer) = client.into_split();
    let writing = tokio::spawn(async move {
        for part in bytes[..bytes.len() - GOAWAY].chunks(piece) {
            writer.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
        writer
    });
    let mut frames = Vec::new();
    while [1, 3, 5].iter().any(|stream| !has_ended(&frames, *stream)) {
        let frame = tokio::time::timeout(Duration::from_mins(1), read_frame(&mut reader));
        frames.push(frame.await.unwrap_or_else(|_| panic!("only {frames:?}")));
    }
    writing.await.unwrap();
    server.abort();
    frames
}

fn count(frames: &[(u8, u32)], kind: u8, stream: u32) -> usize {
    frames
        .iter()
        .filter(|frame| **frame == (kind, stream))
        .count()
}

/// Whether a stream has ended. A response is HEADERS, DATA, HEADERS.
fn has_ended(frames: &[(u8, u32)], stream: u32) -> bool {
    count(frames, HEADERS, stream) == 2 || count(frames, RST_STREAM, stream) > 0
}

async fn read_frame(reader: &mut (impl tokio::io::AsyncRead + Unpin)) -> (u8, u32) {
    let mut head = [0; 9];
    reader.read_exact(&mut head).await.unwrap();
    let [a, b, c, kind, _, s0, s1, s2, s3] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    reader.read_exact(&mut payload).await.unwrap();
    (kind, u32::from_be_bytes([s0, s1, s2, s3]))
}

#[tokio::test]
async fn kubelets_bytes_are_answered_under_the_sockets_name_however_they_are_split() {
    for piece in [1, 7, 4096] {
        let frames = replay(WITH_AT, piece).await;
        for stream in [1, 3, 5] {
            assert_eq!(count(&frames, HEADERS, stream), 2, "{piece}: {frames:?}");
            assert_eq!(count(&frames, RST_STREAM, stream), 0, "{piece}: {frames:?}");
        }
    }
}

#[tokio::test]
async fn the_customary_name_would_be_refused_so_the_odd_one_is_still_needed() {
    let frames = replay(WITH_DASH, 4096).await;
    for stream in [1, 3, 5] {
        assert_eq!(count(&frames, RST_STREAM, stream), 1, "{frames:?}");
    }
}

#[test]
fn the_longest_legal_driver_name_still_fits_a_socket_address() {
    let path = socket_path(Path::new("/var/lib/kubelet/plugins_registry"));
    assert!(
        path.to_str()
            .unwrap()
            .ends_with("csi.cistern.storage@reg.sock")
    );
    let spare = 63 - names::DRIVER.len();
    assert!(path.as_os_str().len() + spare <= 107);
}
