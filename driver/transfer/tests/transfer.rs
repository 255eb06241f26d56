//! Transfers over real connections on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    collections::HashSet,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cistern_host::{
    Content, Identity, Owner, SnapshotRecord, Uid,
    copy::{Chunk, Original},
};
use cistern_transfer::{
    Error, Fetch, KeyPair, Opened, PublicKey, Rate, Refused, Source, fetch, serve, service,
};
use cistern_types::{Bytes, Provisioning};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, pending},
    stream,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};
use tonic::{Code, service::Routes};

const TRANSFER: &str = "of-volume-a";
const SIZE: u64 = 64 << 20;
const SOON: Duration = Duration::from_mins(2);

/// Grants transfers to keys, and sends a chunk at each MiB.
#[derive(Debug, Default)]
struct Granting {
    granted: Mutex<HashSet<(PublicKey, String)>>,
    /// Bytes of a chunk.
    length: usize,
    /// Shared by the data that is being sent.
    held: Arc<()>,
    opened: AtomicUsize,
    /// Number of the chunk before which the grant ends.
    revoked_at: Option<u64>,
    /// The image that the source can compare with.
    base: Mutex<Option<String>>,
    /// The image of the transfer, if it is another one by now.
    image: Mutex<Option<Uid>>,
}

impl Granting {
    fn to(key: PublicKey) -> Self {
        let granted = Mutex::new(HashSet::from([(key, TRANSFER.to_owned())]));
        Self {
            granted,
            length: 4096,
            ..Self::default()
        }
    }

    /// Grants the transfer to another key, too.
    fn grant(&self, key: PublicKey) {
        let mut granted = self.granted.lock().unwrap();
        granted.insert((key, TRANSFER.to_owned()));
    }

    fn is_sending(&self) -> bool {
        Arc::strong_count(&self.held) > 1
    }
}

/// Waits until something holds.
async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, waiting).await.unwrap();
}

fn original() -> Original {
    let record = SnapshotRecord {
        name: "snapshot-s".to_owned(),
        volume: "pvc-a".to_owned(),
        source: "uid-a".parse().unwrap(),
        time: chrono::DateTime::UNIX_EPOCH,
    };
    let identity = Identity {
        encryption: None,
        owner: Owner::Snapshot(record),
        uid: "uid-s".parse().unwrap(),
        pool_uuid: cistern_host::Uuid::from_bytes([7; 16]),
        size: Bytes(SIZE),
        content: Content::Block,
        provisioning: Provisioning::Thin,
        source: None,
    };
    Original {
        identity,
        size: Bytes(SIZE),
        closed_for: None,
    }
}

fn chunk(number: u64) -> Chunk {
    Chunk {
        offset: number << 20,
        data: vec![u8::try_from(number).unwrap(); 4096],
        zeros: 0,
    }
}

impl Source for Granting {
    fn admits(&self, key: &PublicKey) -> bool {
        let granted = self.granted.lock().unwrap();
        granted.iter().any(|(granted, _)| granted == key)
    }

    fn grants(&self, key: &PublicKey, transfer: &str, _image: Option<&str>) -> bool {
        let granted = self.granted.lock().unwrap();
        granted.contains(&(*key, transfer.to_owned()))
    }

    fn open<'a>(
        &'a self,
        _transfer: &'a str,
        base: Option<&'a str>,
        from: u64,
    ) -> BoxFuture<'a, Result<Opened, Refused>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let base = self
            .base
            .lock()
            .unwrap()
            .clone()
            .filter(|it| base == Some(it));
        let numbers: Vec<u64> = (from.div_ceil(1 << 20)..SIZE >> 20).collect();
        let zeros = if base.is_some() { 4096 } else { 0 };
        let length = self.length;
        let chunks = numbers.into_iter().map(move |number| {
            let mut chunk = chunk(number);
            chunk.data.resize(length, 0);
            Chunk { zeros, ..chunk }
        });
        // They are read one by one.
        let chunks = stream::iter(chunks).then(async |chunk| {
            yield_now().await;
            Ok(chunk)
        });
        let held = stream::repeat(Arc::clone(&self.held));
        let data = chunks.zip(held).map(|(chunk, _)| chunk);
        let mut original = original();
        if let Some(image) = self.image.lock().unwrap().clone() {
            original.identity.uid = image;
        }
        async move {
            Ok(Opened {
                original,
                base,
                data: data.boxed(),
                lost: pending().boxed(),
            })
        }
        .boxed()
    }
}

/// Ends the grant when a chunk is read.
#[derive(Debug)]
struct Revoking(Arc<Granting>);

impl Source for Revoking {
    fn admits(&self, key: &PublicKey) -> bool {
        self.0.admits(key)
    }

    fn grants(&self, key: &PublicKey, transfer: &str, image: Option<&str>) -> bool {
        self.0.grants(key, transfer, image)
    }

    fn open<'a>(
        &'a self,
        transfer: &'a str,
        base: Option<&'a str>,
        from: u64,
    ) -> BoxFuture<'a, Result<Opened, Refused>> {
        async move {
            let opened = self.0.open(transfer, base, from).await?;
            let granting = Arc::clone(&self.0);
            let data = opened.data.inspect(move |chunk| {
                let number = chunk.as_ref().unwrap().offset >> 20;
                if granting.revoked_at == Some(number) {
                    granting.granted.lock().unwrap().clear();
                }
            });
            Ok(Opened {
                data: data.boxed(),
                ..opened
            })
        }
        .boxed()
    }
}

/// A node that sends.
struct Sender {
    address: SocketAddr,
    key: PublicKey,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), Error>>,
}

impl Sender {
    async fn start(source: Arc<dyn Source>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, own) = (listener.local_addr().unwrap(), KeyPair::generate().unwrap());
        let (stop, stopped) = oneshot::channel();
        let key = own.public();
        let serving = tokio::spawn(async move {
            let rate = Arc::new(Rate::new(None));
            let admitting = Arc::clone(&source);
            let admits = Arc::new(move |key: &PublicKey| admitting.admits(key));
            let services = Routes::new(service(source, rate));
            serve(listener, &own, admits, services, stopped.map(drop)).await
        });
        Self {
            address,
            key,
            stop,
            serving,
        }
    }

    fn peer(&self) -> (SocketAddr, PublicKey) {
        (self.address, self.key)
    }

    async fn finish(self) {
        self.stop.send(()).unwrap();
        timeout(SOON, self.serving).await.unwrap().unwrap().unwrap();
    }
}

async fn received(own: &KeyPair, sender: &Sender, from: u64) -> Result<Vec<Chunk>, Error> {
    let fetch = fetch(own, sender.peer(), TRANSFER, None).await?;
    assert_eq!(fetch.original(), &original());
    let mut chunks = fetch.read(from).await?;
    let mut all = Vec::new();
    while let Some(chunk) = chunks.next().await {
        all.push(chunk?);
    }
    Ok(all)
}

/// The code with which the source refused.
fn code(error: &Error) -> Code {
    match error {
        Error::Answer(status) => status.code(),
        other => panic!("{other}"),
    }
}

/// Whether the connection was refused before anything was asked.
fn is_refused(error: &Error) -> bool {
    // The handshake ends for the receiver before the sender has looked at its key. The answer to the first
    // call is then that the connection is closed.
    matches!(error, Error::Connect { .. } | Error::Protocol(_))
        || matches!(error, Error::Answer(status) if status.code() != Code::PermissionDenied)
}

#[tokio::test]
async fn data_arrives_in_order_and_from_the_requested_offset_on() {
    let own = KeyPair::generate().unwrap();
    let sender = Sender::start(Arc::new(Granting::to(own.public()))).await;
    let all: Vec<Chunk> = (0..SIZE >> 20).map(chunk).collect();
    assert_eq!(received(&own, &sender, 0).await.unwrap(), all);
    assert_eq!(received(&own, &sender, 5 << 20).await.unwrap(), all[5..]);
    assert_eq!(received(&own, &sender, SIZE).await.unwrap(), []);
    let error = received(&own, &sender, SIZE + 4096).await.unwrap_err();
    assert_eq!(code(&error), Code::OutOfRange, "{error}");
    sender.finish().await;
}

#[tokio::test]
async fn changes_are_relative_to_a_base_that_both_have_and_all_data_is_sent_otherwise() {
    let own = KeyPair::generate().unwrap();
    let granting = Arc::new(Granting::to(own.public()));
    *granting.base.lock().unwrap() = Some("uid-base".to_owned());
    let sender = Sender::start(granting).await;
    for (asked, base, zeros) in [
        (Some("uid-base"), Some("uid-base"), 4096),
        (Some("uid-other"), None, 0),
        (None, None, 0),
    ] {
        let fetch = fetch(&own, sender.peer(), TRANSFER, asked).await.unwrap();
        assert_eq!(fetch.base(), base, "{asked:?}");
        let mut chunks = fetch.read(0).await.unwrap();
        let first = chunks.next().await.unwrap().unwrap();
        assert_eq!(first.zeros, zeros, "{asked:?}");
    }
    sender.finish().await;
}

#[tokio::test]
async fn nothing_is_sent_of_another_image_or_over_another_base_than_described() {
    let own = KeyPair::generate().unwrap();
    let granting = Arc::new(Granting::to(own.public()));
    let sender = Sender::start(Arc::clone(&granting) as Arc<dyn Source>).await;
    let describe = || {
        *granting.base.lock().unwrap() = Some("uid-base".to_owned());
        *granting.image.lock().unwrap() = None;
        fetch(&own, sender.peer(), TRANSFER, Some("uid-base"))
    };

    let described = describe().await.unwrap();
    *granting.base.lock().unwrap() = None;
    let error = described.read(0).await.err().unwrap();
    assert_eq!(code(&error), Code::Unavailable);

    let described = describe().await.unwrap();
    *granting.image.lock().unwrap() = Some("uid-t".parse().unwrap());
    let error = described.read(0).await.err().unwrap();
    assert_eq!(code(&error), Code::PermissionDenied);
    sender.finish().await;
}

#[tokio::test]
async fn a_peer_with_another_key_is_refused_and_opens_nothing() {
    let (own, stranger) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let source = Arc::new(Granting::to(own.public()));
    let sender = Sender::start(Arc::clone(&source) as _).await;
    let error = received(&stranger, &sender, 0).await.unwrap_err();
    assert!(is_refused(&error), "{error}");
    assert_eq!(source.opened.load(Ordering::Relaxed), 0);
    // The key of a node that started again.
    source.granted.lock().unwrap().clear();
    let granted = (stranger.public(), TRANSFER.to_owned());
    source.granted.lock().unwrap().insert(granted);
    let error = received(&own, &sender, 0).await.unwrap_err();
    assert!(is_refused(&error), "{error}");
    received(&stranger, &sender, 0).await.unwrap();
    sender.finish().await;
}

#[tokio::test]
async fn a_source_with_another_key_gets_no_request() {
    let own = KeyPair::generate().unwrap();
    let source = Arc::new(Granting::to(own.public()));
    let sender = Sender::start(Arc::clone(&source) as _).await;
    let expected = KeyPair::generate().unwrap().public();
    let error = fetch(&own, (sender.address, expected), TRANSFER, None).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert_eq!(source.opened.load(Ordering::Relaxed), 0);
    sender.finish().await;
}

#[tokio::test]
async fn only_transfers_that_are_granted_to_the_key_are_served() {
    let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let source = Arc::new(Granting::to(own.public()));
    let of_other = (other.public(), "of-volume-b".to_owned());
    source.granted.lock().unwrap().insert(of_other);
    let sender = Sender::start(Arc::clone(&source) as _).await;
    for transfer in ["of-volume-b", "of-nothing", "", "../of-volume-a"] {
        let error = fetch(&own, sender.peer(), transfer, None)
            .await
            .unwrap_err();
        assert_eq!(code(&error), Code::PermissionDenied, "{error}");
    }
    assert_eq!(source.opened.load(Ordering::Relaxed), 0);
    sender.finish().await;
}

#[tokio::test]
async fn a_stream_ends_when_its_grant_ends() {
    let own = KeyPair::generate().unwrap();
    let granting = Granting {
        revoked_at: Some(3),
        ..Granting::to(own.public())
    };
    let sender = Sender::start(Arc::new(Revoking(Arc::new(granting)))).await;
    let fetch = fetch(&own, sender.peer(), TRANSFER, None).await.unwrap();
    let chunks: Vec<_> = fetch.read(0).await.unwrap().collect().await;
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(before.len(), 3);
    assert_eq!(code(last.as_ref().unwrap_err()), Code::PermissionDenied);
    sender.finish().await;
}

#[tokio::test]
async fn a_peer_that_takes_nothing_holds_neither_data_nor_connection_once_its_grant_ends() {
    let own = KeyPair::generate().unwrap();
    let granting = Arc::new(Granting {
        length: 1 << 20,
        ..Granting::to(own.public())
    });
    let sender = Sender::start(Arc::clone(&granting) as _).await;
    let fetch = fetch(&own, sender.peer(), TRANSFER, None).await.unwrap();
    let mut chunks = fetch.read(0).await.unwrap();
    chunks.next().await.unwrap().unwrap();
    assert!(granting.is_sending());

    granting.granted.lock().unwrap().clear();
    eventually(async || !granting.is_sending()).await;
    let rest = timeout(SOON, chunks.collect::<Vec<_>>()).await.unwrap();
    assert!(rest.last().unwrap().is_err());
    sender.finish().await;
}

/// Makes connections until one is refused. Returns them, and why no more is made.
async fn crowd(own: &KeyPair, sender: &Sender) -> (Vec<Fetch>, Error) {
    let mut held = Vec::new();
    loop {
        match fetch(own, sender.peer(), TRANSFER, None).await {
            Ok(fetched) => held.push(fetched),
            Err(refused) => return (held, refused),
        }
        assert!(held.len() < 100, "there is a limit");
    }
}

/// The connection got no place, and the error of its call says why.
fn is_crowded(refused: &Error, why: &str) {
    assert_eq!(code(refused), Code::Unavailable, "{refused}");
    assert!(refused.to_string().contains(why), "{refused}");
}

#[tokio::test]
async fn a_key_with_many_connections_is_refused_further_ones_and_is_not_in_the_way_of_others() {
    let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let granting = Arc::new(Granting::to(own.public()));
    granting.grant(other.public());
    let sender = Sender::start(Arc::clone(&granting) as _).await;
    let (mut held, refused) = crowd(&own, &sender).await;
    assert_eq!(held.len(), 16);
    is_crowded(&refused, "as many as one key may have");
    // It opens nothing.
    assert_eq!(granting.opened.load(Ordering::Relaxed), 16);
    received(&other, &sender, 0).await.unwrap();

    // Those that it has go on.
    let chunks = held.pop().unwrap().read(0).await.unwrap();
    let chunks: Vec<_> = timeout(SOON, chunks.collect()).await.unwrap();
    assert!(chunks.iter().all(Result::is_ok));
    // Once one of them has ended, it may have another one.
    eventually(async || received(&own, &sender, 0).await.is_ok()).await;
    drop(held);
    sender.finish().await;
}

#[tokio::test]
async fn connections_of_keys_that_are_not_admitted_any_more_are_not_in_the_way_of_others() {
    let other = KeyPair::generate().unwrap();
    let granting = Arc::new(Granting::to(other.public()));
    let sender = Sender::start(Arc::clone(&granting) as _).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let own = KeyPair::generate().unwrap();
        granting.grant(own.public());
        held.extend(crowd(&own, &sender).await.0);
    }
    let refused = received(&other, &sender, 0).await.unwrap_err();
    is_crowded(&refused, "as many as there may be");

    let is_other = |(key, _): &(PublicKey, String)| *key == other.public();
    granting.granted.lock().unwrap().retain(is_other);
    eventually(async || received(&other, &sender, 0).await.is_ok()).await;
    drop(held);
    sender.finish().await;
}

/// Waits until the sender has closed a connection.
async fn is_closed(stream: &mut TcpStream) {
    let read = async {
        let mut buffer = [0; 1024];
        // An alert of TLS may come first.
        while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
    };
    timeout(SOON, read).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_gets_closed_connections_and_does_not_delay_others() {
    let own = KeyPair::generate().unwrap();
    let source = Arc::new(Granting::to(own.public()));
    let sender = Sender::start(Arc::clone(&source) as _).await;
    let address = sender.address;
    let garbage = async |first: &'static [u8]| {
        for _ in 0..50 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let noise = vec![0xa5; 1 << 20];
            let sent: io::Result<()> = async {
                stream.write_all(first).await?;
                stream.write_all(&noise).await
            }
            .await;
            // The sender may have closed it meanwhile.
            drop(sent);
            is_closed(&mut stream).await;
        }
    };
    let ((), (), (), all) = tokio::join!(
        garbage(b""),
        garbage(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        // A record of TLS that announces more than there may be.
        garbage(&[0x16, 0x03, 0x03, 0xff, 0xff]),
        received(&own, &sender, 0),
    );
    assert_eq!(all.unwrap().len() as u64, SIZE >> 20);
    assert_eq!(source.opened.load(Ordering::Relaxed), 2);
    sender.finish().await;
}

#[tokio::test]
async fn peers_that_say_nothing_are_disconnected_and_do_not_delay_others() {
    let own = KeyPair::generate().unwrap();
    let sender = Sender::start(Arc::new(Granting::to(own.public()))).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(sender.address).await.unwrap());
    }
    received(&own, &sender, 0).await.unwrap();
    for stream in &mut silent {
        is_closed(stream).await;
    }
    sender.finish().await;
}

#[tokio::test]
async fn a_source_that_is_gone_is_named() {
    let own = KeyPair::generate().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = fetch(&own, (address, own.public()), TRANSFER, None).await;
    let error = error.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot connect to {address}"));
}
