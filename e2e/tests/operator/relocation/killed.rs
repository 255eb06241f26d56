//! Moves while the operator and the agents are killed at random times.

use std::time::{Duration, Instant};

use cistern_crds::{ConditionType, PoolVolume, condition};
use cistern_e2e::{Driver, Random, eventually, random::given};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::sleep;

use super::{
    kubelet::{SUMS, evicted, shell, stage, unstage},
    nodes::{Nodes, SOON, is_ready},
};
use crate::{cluster::Cluster, objects::delete};

/// Number of moves without `CISTERN_MOVE_ROUNDS`.
const ROUNDS: u64 = 5;
/// Name of the pod that uses the volume.
const USER: &str = "user";
/// How long a round kills processes.
const KILLING: Duration = Duration::from_secs(6);

/// How a round is interrupted.
struct Interrupted<'a, 'b> {
    cluster: &'a mut Cluster,
    nodes: &'a mut Nodes<'b>,
    random: &'a mut Random,
}

impl Interrupted<'_, '_> {
    /// Kills and restarts processes until the volume has moved, the move has ended, or the time is over. Deletes the
    /// VolumeMove at a random time if it is to be undone. Ends the pod on the first of the two nodes if it is evicted.
    async fn move_volume(&mut self, volume: &PoolVolume, undo: bool) {
        let name = volume.name_any();
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
                    .delete(&name, &kube::api::DeleteParams::default())
                    .await;
                is_undone = true;
            }
            self.kill_one().await;
            evicted(self.nodes, self.nodes.node_of(volume), (USER, volume)).await;
            if self.has_arrived(&name).await {
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
    assert_eq!(shell(here, SUMS).await, written);
    let write = "dd if=/dev/urandom of=$1/data bs=1M count=40 conv=fsync status=none";
    shell(here, write).await;
    let written = shell(here, SUMS).await;
    unstage(here, volume).await;
    written
}

/// Moves a volume to and fro while processes are killed. If `cutover` is not `WhenUnused`, a pod uses it meanwhile.
async fn move_while_processes_are_killed(pool: &str, name: &str, cutover: &str) {
    let mut random = Random::new();
    let mut cluster = Cluster::start().await;
    // Some rounds end while the copy runs.
    let mut nodes = Nodes::start(&cluster, pool, 32 << 20).await;
    let mut volume = nodes.add_volume(name).await;
    let mut written = use_volume(&nodes, &volume, "").await;
    let rounds = given("CISTERN_MOVE_ROUNDS").unwrap_or(ROUNDS);
    let mut moved = 0;
    for round in 1..=rounds {
        let from = volume.spec.node_name.clone();
        let mut names = nodes.names.iter();
        let to = names.find(|name| **name != from).unwrap().clone();
        if cutover != "WhenUnused" {
            stage(nodes.node_of(&volume), &volume).await.unwrap();
            nodes.add_pod_of_set(USER, &from, &[name]).await;
        }
        let spec = json!({"toNode": to, "cutover": cutover});
        nodes.move_volume(name, spec).await;
        // The last one is not undone, in case all others are.
        let undo = round < rounds && random.below(3) == 0;
        let mut interrupted = Interrupted {
            cluster: &mut cluster,
            nodes: &mut nodes,
            random: &mut random,
        };
        interrupted.move_volume(&volume, undo).await;
        // A pod on the new node ends the move.
        eventually("the move to end", SOON, async || {
            let Some(found) = nodes.moves().get_opt(name).await.unwrap() else {
                return Ok(());
            };
            let is_free = evicted(&nodes, nodes.node_of(&volume), (USER, &volume)).await;
            let now = nodes.api.volumes().get(name).await.unwrap();
            if now.spec.node_name == to && is_free {
                nodes.add_pod(USER, &to, &[name], "Running").await;
            }
            Err(format!("{found:#?}"))
        })
        .await;
        nodes.until_ended(name).await;
        if nodes.user_pods().get_opt(USER).await.unwrap().is_some() {
            delete(&nodes.user_pods(), USER).await;
        }
        unstage(nodes.node_of(&volume), &volume).await;
        volume = nodes.until(name, "to be ready", is_ready).await;
        let node = &volume.spec.node_name;
        assert_eq!(nodes.bound_to(name).await, std::slice::from_ref(node));
        moved += u32::from(*node == to);
        written = use_volume(&nodes, &volume, &written).await;
        eprintln!("round {round} of {rounds}: {from} to {to}, undo {undo}, now on {node}");
    }
    assert!(moved > 0, "at least one move is not undone");
    nodes.finish(&[name]).await;
    cluster.operator.stop().await;
}

#[tokio::test]
async fn r02_a_volume_moves_or_stays_whole_whatever_is_killed_meanwhile() {
    move_while_processes_are_killed("killed", "killed-v", "WhenUnused").await;
}

#[tokio::test]
async fn r02_a_volume_that_is_used_moves_or_stays_whole_whatever_is_killed_meanwhile() {
    move_while_processes_are_killed("killed-used", "killed-used-v", "Automatic").await;
}
