//! A stream that is sent.
//!
//! ```text
//! task: reads the data ─▶ slot ─▶ stream: the transfer is still granted ─▶ peer
//! ```
//!
//! *Invariant:* the data is dropped once its transfer is not granted any more, or the peer has taken nothing for long. A stream is
//! asked for nothing while its peer takes nothing, so a task of its own holds the data.

use std::{sync::Arc, time::Duration};

use cistern_host::copy::Chunk;
use cistern_proto::transfer::v1alpha1 as proto;
use futures::{Stream, StreamExt as _, future::BoxFuture, stream};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::Status;

use crate::{
    PublicKey, Rate, WATCHED,
    source::{Data, Refused, Source},
};

/// How long a peer may take nothing. Its disk may be slow, and it goes on later where it was.
const IDLE: Duration = Duration::from_mins(5);

/// What a peer may read.
#[derive(Clone)]
pub(crate) struct Granted {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) key: PublicKey,
    pub(crate) transfer: String,
    pub(crate) image: String,
}

/// A stream that is sent.
pub(crate) struct Sending {
    pub(crate) granted: Granted,
    pub(crate) rate: Arc<Rate>,
    pub(crate) data: Data,
    /// Resolves once the data cannot be read any more.
    pub(crate) lost: BoxFuture<'static, ()>,
}

/// The end of a stream that the peer takes from.
struct Taking {
    granted: Granted,
    chunks: mpsc::Receiver<proto::Chunk>,
    reading: JoinHandle<Result<(), Refused>>,
}

impl Granted {
    fn check(&self) -> Result<(), Refused> {
        let (key, transfer, image) = (&self.key, &self.transfer, Some(&*self.image));
        if self.source.grants(key, transfer, image) {
            Ok(())
        } else {
            Err(Refused::NotGranted)
        }
    }

    /// Resolves once the transfer is not granted any more.
    async fn ended(&self) -> Refused {
        loop {
            if let Err(refused) = self.check() {
                return refused;
            }
            sleep(WATCHED).await;
        }
    }
}

impl Sending {
    /// Begins to read. The stream ends without an error only after the last chunk.
    pub(crate) fn stream(self) -> impl Stream<Item = Result<proto::Chunk, Status>> + Send {
        let granted = self.granted.clone();
        let (slot, chunks) = mpsc::channel(1);
        let taking = Taking {
            granted,
            chunks,
            reading: tokio::spawn(self.read(slot)),
        };
        stream::unfold(Some(taking), async |taking| {
            let mut taking = taking?;
            match taking.next().await? {
                Ok(chunk) => Some((Ok(chunk), Some(taking))),
                Err(refused) => Some((Err(refused.into()), None)),
            }
        })
    }

    /// Reads until the end, or until the stream is dropped. Fails if the data is not to be read any more.
    async fn read(self, slot: mpsc::Sender<proto::Chunk>) -> Result<(), Refused> {
        let Self {
            granted,
            rate,
            data,
            lost,
        } = self;
        tokio::select! {
            passed = pass_on(data, &rate, &slot) => passed,
            refused = granted.ended() => Err(refused),
            () = lost => Err(Refused::Unavailable("its pool cannot be used any more".to_owned())),
            () = slot.closed() => Ok(()),
        }
    }
}

impl Taking {
    async fn next(&mut self) -> Option<Result<proto::Chunk, Refused>> {
        match self.chunks.recv().await {
            // As late as possible: the grant may have ended meanwhile.
            Some(chunk) => Some(self.granted.check().map(|()| chunk)),
            None => self.end().await.map(Err),
        }
    }

    /// Why nothing more is read; None after the last chunk.
    async fn end(&mut self) -> Option<Refused> {
        match (&mut self.reading).await {
            Ok(ended) => ended.err(),
            Err(broken) => Some(Refused::Unavailable(broken.to_string())),
        }
    }
}

/// Reads until the end, each chunk once the one before is taken.
async fn pass_on(
    mut data: Data,
    rate: &Rate,
    slot: &mpsc::Sender<proto::Chunk>,
) -> Result<(), Refused> {
    loop {
        let Ok(free) = timeout(IDLE, slot.reserve()).await else {
            let why = format!("the receiver has taken nothing for {IDLE:?}");
            return Err(Refused::Unavailable(why));
        };
        // The stream is dropped.
        let Ok(free) = free else { return Ok(()) };
        let Some(chunk) = data.next().await.transpose()? else {
            return Ok(());
        };
        rate.take(chunk.data.len()).await;
        free.send(sent(chunk));
    }
}

/// A chunk as it is sent.
fn sent(chunk: Chunk) -> proto::Chunk {
    let Chunk {
        offset,
        data,
        zeros,
    } = chunk;
    let crc32c = crc32c::crc32c(&data);
    let data = data.into();
    proto::Chunk {
        offset,
        data,
        crc32c,
        zeros,
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::pending};
    use tokio::{sync::oneshot, task::yield_now};
    use tonic::Code;

    use super::*;
    use crate::{KeyPair, Opened};

    /// Grants everything.
    #[derive(Debug)]
    struct Granting;

    impl Source for Granting {
        fn admits(&self, _: &PublicKey) -> bool {
            true
        }

        fn grants(&self, _: &PublicKey, _: &str, _: Option<&str>) -> bool {
            true
        }

        fn open<'a>(
            &'a self,
            _: &'a str,
            _: Option<&'a str>,
            _: u64,
        ) -> BoxFuture<'a, Result<Opened, Refused>> {
            async { Err(Refused::NotGranted) }.boxed()
        }
    }

    /// A stream of chunks that are read one by one, and hold a value.
    fn eight_chunks(held: Arc<()>, lost: BoxFuture<'static, ()>) -> Sending {
        let numbers = stream::iter(0..8_u64).then(async |number| {
            yield_now().await;
            number
        });
        let chunks = numbers.zip(stream::repeat(held)).map(|(number, _)| {
            Ok(Chunk {
                offset: number << 20,
                data: vec![7; 4096],
                zeros: 0,
            })
        });
        let granted = Granted {
            source: Arc::new(Granting),
            key: KeyPair::generate().unwrap().public(),
            transfer: "of-volume-a".to_owned(),
            image: "uid-s".to_owned(),
        };
        Sending {
            granted,
            rate: Arc::new(Rate::new(None)),
            data: chunks.boxed(),
            lost,
        }
    }

    /// The last item is the error that says why there are no more.
    async fn is_unavailable(stream: impl Stream<Item = Result<proto::Chunk, Status>>) {
        let rest: Vec<_> = stream.collect().await;
        let last = rest.last().unwrap().as_ref().unwrap_err();
        assert_eq!(last.code(), Code::Unavailable);
    }

    #[tokio::test]
    async fn all_chunks_are_sent_in_order() {
        let stream = eight_chunks(Arc::new(()), pending().boxed()).stream();
        let offsets = stream.map(|chunk| chunk.unwrap().offset >> 20);
        let offsets: Vec<u64> = offsets.collect().await;
        assert_eq!(offsets, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_data_of_a_peer_that_takes_nothing_for_long_is_dropped() {
        let held = Arc::new(());
        let sending = eight_chunks(Arc::clone(&held), pending().boxed());
        let mut stream = Box::pin(sending.stream());
        stream.next().await.unwrap().unwrap();
        sleep(IDLE / 2).await;
        assert!(Arc::strong_count(&held) > 1);
        sleep(IDLE).await;
        assert_eq!(Arc::strong_count(&held), 1);
        is_unavailable(stream).await;
    }

    #[tokio::test]
    async fn a_stream_fails_once_its_data_cannot_be_read_any_more() {
        let (end, lost) = oneshot::channel::<()>();
        let sending = eight_chunks(Arc::new(()), lost.map(drop).boxed());
        let mut stream = Box::pin(sending.stream());
        stream.next().await.unwrap().unwrap();
        drop(end);
        is_unavailable(stream).await;
    }
}
