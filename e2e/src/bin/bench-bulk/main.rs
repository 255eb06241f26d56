//! `make bench-bulk`: many pods at a time, each with a claim, beside as many pods without volumes, on a real cluster.
//!
//! Shows where the time of a pod's start goes: scheduler, provisioner, agent, controller-manager or kubelet. A stage begins
//! when a watch shows the end of the one before it.
//!
//! Usage: `bench-bulk [PODS...]`, with `KUBECONFIG`

#![allow(
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its figures, and ends when something is not as it must be"
)]

mod round;
mod timeline;

use cistern_crds::Bytes;
use cistern_e2e::{Test, cluster::objects::Binding, measure::percentile};

use self::{
    round::{Contents, Round},
    timeline::{STAGES, Stage, WITHOUT_VOLUME},
};

/// Numbers of pods. A number is repeated to see how much the runs differ.
const SIZES: [usize; 4] = [50, 50, 50, 200];
/// How many times as long as pods without volumes the same pods with volumes may take.
const AIM: f64 = 1.25;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let asked = std::env::args().skip(1).map(|size| size.parse());
    let mut sizes: Vec<usize> = asked
        .collect::<Result<_, _>>()
        .expect("usage: bench-bulk [PODS...]");
    if sizes.is_empty() {
        sizes = SIZES.to_vec();
    }
    Test::run_alone("bulk", async |test| {
        let workers = test.cluster.workers().await;
        let nodes = workers.each_ref().map(String::as_str);
        let pool = test.pool("pool", Bytes::gib(2), &nodes).await;
        let class = test
            .class("class", &pool, Binding::WaitForFirstConsumer, &[])
            .await;
        for (number, &size) in sizes.iter().enumerate() {
            let without =
                round::measure(test, &format!("a{number}"), size, &Contents::Nothing).await;
            let with = Contents::Volume {
                class: class.clone(),
            };
            let with = round::measure(test, &format!("b{number}"), size, &with).await;
            print(size, &without, &with);
        }
    })
    .await;
}

fn print(size: usize, without: &Round, with: &Round) {
    println!(
        "\n{size} pods{:<42}{:>9}{:>9}{:>9}",
        "", "p50 s", "p90 s", "max s"
    );
    println!("without volumes");
    stages(&WITHOUT_VOLUME, without);
    println!("with a volume of 16 MiB each");
    stages(&STAGES, with);
    for (what, without, with) in [
        ("all Ready", without.ready, with.ready),
        ("all deleted", without.deleted, with.deleted),
    ] {
        println!(
            "{what}: {with:.1} s, without volumes {without:.1} s, ratio {:.2} (aim {AIM})",
            with / without
        );
    }
}

fn stages(stages: &[Stage], round: &Round) {
    for stage in stages {
        let samples: Vec<f64> = round.pods.iter().map(|pod| pod.seconds(stage)).collect();
        let [p50, p90, max] = [50, 90, 100].map(|percent| percentile(&samples, percent));
        println!("  {:<50}{p50:>9.2}{p90:>9.2}{max:>9.2}", stage.name);
    }
}
