//! Eight copies at a time: their memory, and what others notice of them. An agent receives at most four at a time, so
//! two nodes receive.

use std::{
    fs,
    time::{Duration, Instant},
};

use cistern_crds::Bytes;
use cistern_e2e::{
    measure::{peak, resident},
    requests,
};
use futures::future::join_all;
use tokio::time::sleep;

use super::{
    cost::gibibytes,
    node::Node,
    noticed::{self, Noticed},
    other_ways,
    snapshot::Snapshot,
};
use crate::{Figure, latency, pieces::Pieces};

const STREAMS: usize = 8;
/// The agents whose figures are printed: one that sends, and one that receives.
const AGENTS: [&str; 2] = ["sends 8 copies", "receives 4 copies"];
/// The volumes that are staged on their nodes meanwhile.
const STAGED: [&str; 2] = ["staged-sending", "staged-receiving"];
/// How long idle agents are called.
const IDLE: Duration = Duration::from_secs(5);

/// The nodes, and the snapshot that is copied.
struct Streams<'a> {
    sending: &'a Node,
    receiving: [&'a Node; 2],
    snapshot: Snapshot,
}

/// Copies, and what both agents did meanwhile.
struct Copied {
    seconds: f64,
    /// Resident memory of both agents in MiB, before, and the peak.
    memory: [[f64; 2]; 2],
    noticed: [Noticed; 2],
}

/// Prints all figures. `size` is that of each copy.
pub(crate) async fn figures(sending: &Node, receiving: [&Node; 2], size: u64) {
    let streams = Streams {
        sending,
        receiving,
        snapshot: sending.snapshot("eight-times", size, Pieces::all()).await,
    };
    streams.add_staged().await;
    let idle = streams.during(sleep(IDLE)).await;
    let plain = streams.plain().await;
    let ours = streams.ours().await;
    streams.finish().await;

    throughput(&ours, &plain, size).print();
    for (agent, [before, peak]) in ours.memory.into_iter().enumerate() {
        Figure {
            what: format!("agent that {}: peak memory", AGENTS[agent]),
            ours: format!("{peak:.0} MiB"),
            beside: format!("before it {before:.0} MiB"),
            ratio: Some(peak / before),
            aim: "<= 64 MiB",
        }
        .print();
    }
    for (agent, name) in AGENTS.into_iter().enumerate() {
        let noticed = [&ours, &plain, &idle].map(|it| &it.noticed[agent]);
        let figures = noticed_figures(name, noticed);
        figures.iter().for_each(Figure::print);
    }
}

impl Streams<'_> {
    /// The nodes whose agents are called.
    fn called(&self) -> [&Node; 2] {
        [self.sending, self.receiving[0]]
    }

    /// The node that receives a copy, and the name of the copy.
    fn copies(&self) -> impl Iterator<Item = (&Node, String)> {
        (0..STREAMS).map(|number| (self.receiving[number % 2], format!("copy-{number}")))
    }

    async fn add_staged(&self) {
        for (node, volume) in self.called().iter().zip(STAGED) {
            let request = requests::create_volume(volume, node.name, Bytes::mib(64));
            let mut client = node.driver.controller_client().await;
            client.create_volume(request).await.expect("there is room");
        }
    }

    /// Copies through TCP connections.
    async fn plain(&self) -> Copied {
        let files: Vec<_> = self.copies().map(|(node, name)| node.file(&name)).collect();
        let copying = files
            .iter()
            .map(|to| other_ways::tcp(&self.snapshot.file, to));
        let copied = self.during(join_all(copying)).await;
        for file in files {
            fs::remove_file(file).expect("it was made");
        }
        copied
    }

    /// Creates volumes from the snapshot.
    async fn ours(&self) -> Copied {
        for (node, volume) in self.copies() {
            node.permit(&self.snapshot, &volume).await;
        }
        let copying = self
            .copies()
            .map(async |(node, volume)| node.restore(&self.snapshot, &volume).await);
        let copied = self.during(join_all(copying)).await;
        for (node, volume) in self.copies() {
            node.remove(&volume).await;
        }
        copied
    }

    /// Does something, with nothing of the snapshot in memory, and calls both agents meanwhile.
    async fn during<T>(&self, work: impl Future<Output = T>) -> Copied {
        let nodes = self.called();
        for node in nodes {
            node.sync();
            node.forget_peak();
        }
        self.snapshot.forget();
        let before = nodes.map(|node| resident(node.agent()));
        let called = [(nodes[0], STAGED[0]), (nodes[1], STAGED[1])];
        let started = Instant::now();
        let work = async {
            work.await;
            started.elapsed().as_secs_f64()
        };
        let (seconds, noticed) = noticed::during(work, called).await;
        let peak = nodes.map(|node| peak(node.agent()));
        Copied {
            seconds,
            memory: [[before[0], peak[0]], [before[1], peak[1]]],
            noticed,
        }
    }

    async fn finish(self) {
        for (node, volume) in self.called().iter().zip(STAGED) {
            latency::delete(&node.driver, vec![volume.to_owned()]).await;
        }
        self.sending.remove_snapshot(self.snapshot).await;
    }
}

fn throughput(copied: &Copied, plain: &Copied, size: u64) -> Figure {
    #[expect(clippy::cast_precision_loss, reason = "there are eight")]
    let total = gibibytes(size) * STREAMS as f64;
    let rate = |copied: &Copied| total * 1024.0 / copied.seconds;
    Figure {
        what: format!("{STREAMS} copies of {} MiB at a time", size >> 20),
        ours: format!("{:.0} MiB/s", rate(copied)),
        beside: format!("as many TCP connections {:.0} MiB/s", rate(plain)),
        ratio: Some(rate(copied) / rate(plain)),
        aim: "",
    }
}

/// What callers of an agent notice, while copies go on, while plain copies go on instead, and without either.
fn noticed_figures(agent: &str, [copied, plain, idle]: [&Noticed; 3]) -> [Figure; 2] {
    let figure = |what: &str, of: fn(&Noticed) -> f64| Figure {
        what: format!("agent that {agent}: {what}"),
        ours: format!("{:.1} ms", of(copied)),
        beside: format!(
            "as many TCP connections {:.1} ms; idle {:.1} ms",
            of(plain),
            of(idle)
        ),
        ratio: Some(of(copied) / of(plain)),
        aim: "",
    };
    [
        figure("Probe p99", |it| it.probe),
        figure("stage and publish p50", |it| it.stage),
    ]
}
