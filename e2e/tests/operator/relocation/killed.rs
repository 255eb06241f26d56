//! Moves while the operator and the agents are killed at random times.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cistern_crds::{ConditionType, HasImage as _, PoolVolume, condition, names};
use cistern_e2e::{Driver, eventually, process::output, requests::single_node_writer};
use cistern_proto::csi::v1::{NodeStageVolumeRequest, NodeUnstageVolumeRequest};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::sleep;

use super::nodes::{Nodes, SOON, is_ready};
use crate::{cluster::Cluster, objects::delete};

/// Number of moves without `CISTERN_MOVE_ROUNDS`.
const ROUNDS: u64 = 5;
/// How long a round kills processes.
const KILLING: Duration = Duration::from_secs(6);
/// Timeout of a script on a node.
const SCRIPT: Duration = Duration::from_secs(30);

/// A number from the environment.
#[expect(clippy::disallowed_methods, reason = "a test has no config.rs")]
fn given(name: &str) -> Option<u64> {
    std::env::var_os(name)?.to_str()?.parse().ok()
}

/// Numbers that look random and are the same for a seed (SplitMix64).
struct Random(u64);

impl Random {
    /// A seed from the environment, or from the clock. It is printed, so that a failure can be repeated.
    fn new() -> Self {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed = given("CISTERN_SEED").unwrap_or_else(|| u64::from(clock.subsec_nanos()));
        eprintln!("CISTERN_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// How a round is interrupted.
struct Interrupted<'a, 'b> {
    cluster: &'a mut Cluster,
    nodes: &'a mut Nodes<'b>,
    random: &'a mut Random,
}

impl Interrupted<'_, '_> {
    /// Kills and restarts processes until the volume has moved, the move has ended, or the time is over. Deletes the
    /// VolumeMove at a random time if it is to be undone.
    async fn move_volume(&mut self, volume: &str, undo: bool) {
        let began = Instant::now();
        let undo_after = Duration::from_millis(self.random.below(4000));
        let mut is_undone = !undo;
        while began.elapsed() < KILLING {
            sleep(Duration::from_millis(self.random.below(300))).await;
            if !is_undone && began.elapsed() > undo_after {
                // It may have ended already.
                let _ = self
                    .nodes
                    .moves()
                    .delete(volume, &kube::api::DeleteParams::default())
                    .await;
                is_undone = true;
            }
            self.kill_one().await;
            if self.has_arrived(volume).await {
                return;
            }
        }
    }

    async fn kill_one(&mut self) {
        match self.random.below(3) {
            0 => {
                let command = self.cluster.operator_command();
                self.cluster.operator.kill();
                self.cluster.operator.start_again(command).await;
            }
            1 => restart(&mut self.nodes.first).await,
            _ => restart(&mut self.nodes.second).await,
        }
    }

    async fn has_arrived(&self, volume: &str) -> bool {
        let found = self.nodes.moves().get_opt(volume).await.unwrap();
        let Some(found) = found else {
            return true;
        };
        let conditions = found
            .status
            .map(|status| status.conditions)
            .unwrap_or_default();
        let ready = condition::find(&conditions, ConditionType::Ready);
        ready.is_some_and(|ready| ready.reason == "OldImageKept")
    }
}

async fn restart(driver: &mut Driver) {
    driver.kill_node();
    driver.start_node().await;
}

/// Stages the volume on a node, as kubelet does.
async fn stage(driver: &Driver, volume: &PoolVolume) -> Result<(), tonic::Status> {
    let staging = driver.kubelet_root().join("staging");
    std::fs::create_dir_all(&staging).unwrap();
    let image = volume.image().unwrap().uid.clone();
    let request = NodeStageVolumeRequest {
        volume_id: volume.name_any(),
        staging_target_path: staging.to_str().unwrap().to_owned(),
        volume_capability: Some(single_node_writer()),
        volume_context: [(names::IMAGE_CONTEXT.to_owned(), image)].into(),
        ..NodeStageVolumeRequest::default()
    };
    let mut client = driver.node_client().await;
    client.node_stage_volume(request).await.map(drop)
}

async fn unstage(driver: &Driver, volume: &PoolVolume) {
    let staging = driver.kubelet_root().join("staging");
    let request = NodeUnstageVolumeRequest {
        volume_id: volume.name_any(),
        staging_target_path: staging.to_str().unwrap().to_owned(),
    };
    let mut client = driver.node_client().await;
    client.node_unstage_volume(request).await.unwrap();
}

/// Runs a script with the staged volume as its argument.
async fn shell(driver: &Driver, script: &str) -> String {
    let mut command = driver.command_on_node("sh");
    command
        .args(["-euc", script, "sh"])
        .arg(driver.kubelet_root().join("staging"));
    output(command, SCRIPT).await
}

/// Stages the volume where its spec names it, checks what was written before, and writes more. No other node stages
/// it.
async fn use_volume(nodes: &Nodes<'_>, volume: &PoolVolume, written: &str) -> String {
    let is_first = volume.spec.node_name == nodes.names[0];
    let (here, there) = if is_first {
        (&nodes.first, &nodes.second)
    } else {
        (&nodes.second, &nodes.first)
    };
    stage(there, volume).await.unwrap_err();
    eventually("the volume to be staged", SOON, async || {
        stage(here, volume).await.map_err(|error| error.to_string())
    })
    .await;
    stage(there, volume).await.unwrap_err();
    let sums = "cd $1 && find . -type f | sort | xargs -r sha256sum";
    assert_eq!(shell(here, sums).await, written);
    let write = "dd if=/dev/urandom of=$1/data bs=1M count=40 conv=fsync status=none";
    shell(here, write).await;
    let written = shell(here, sums).await;
    unstage(here, volume).await;
    written
}

#[tokio::test]
async fn r2_a_volume_moves_or_stays_whole_whatever_is_killed_meanwhile() {
    const VOLUME: &str = "killed-v";
    let mut random = Random::new();
    let mut cluster = Cluster::start().await;
    // Some rounds end while the copy runs.
    let mut nodes = Nodes::start(&cluster, "killed", 32 << 20).await;
    let mut volume = nodes.add_volume(VOLUME).await;
    let mut written = use_volume(&nodes, &volume, "").await;
    let rounds = given("CISTERN_MOVE_ROUNDS").unwrap_or(ROUNDS);
    let mut moved = 0;
    for round in 1..=rounds {
        let from = volume.spec.node_name.clone();
        let to = nodes
            .names
            .iter()
            .find(|name| **name != from)
            .unwrap()
            .clone();
        nodes.move_volume(VOLUME, json!({"toNode": to})).await;
        let undo = random.below(3) == 0;
        let mut interrupted = Interrupted {
            cluster: &mut cluster,
            nodes: &mut nodes,
            random: &mut random,
        };
        interrupted.move_volume(VOLUME, undo).await;
        // A pod on the new node ends the move.
        eventually("the move to end", SOON, async || {
            let found = nodes.moves().get_opt(VOLUME).await.unwrap();
            let Some(found) = found else {
                return Ok(());
            };
            let volume = nodes.api.volumes().get(VOLUME).await.unwrap();
            if volume.spec.node_name == to
                && nodes.user_pods().get_opt("user").await.unwrap().is_none()
            {
                nodes.add_pod("user", &to, &[VOLUME], "Running").await;
            }
            Err(format!("{found:#?}"))
        })
        .await;
        nodes.until_ended(VOLUME).await;
        if nodes.user_pods().get_opt("user").await.unwrap().is_some() {
            delete(&nodes.user_pods(), "user").await;
        }
        volume = nodes.until(VOLUME, "to be ready", is_ready).await;
        let node = &volume.spec.node_name;
        assert_eq!(nodes.bound_to(VOLUME).await, std::slice::from_ref(node));
        moved += u32::from(*node == to);
        written = use_volume(&nodes, &volume, &written).await;
        eprintln!("round {round} of {rounds}: {from} to {to}, undo {undo}, now on {node}");
    }
    assert!(moved > 0, "at least one move is not undone");
    nodes.finish(&[VOLUME]).await;
    cluster.operator.stop().await;
}
