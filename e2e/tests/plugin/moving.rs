//! `kubectl cistern move`. The tests play operator and agents.

use std::process::ExitStatus;

use cistern_crds::{Cutover, PoolVolume, StorageNode, VolumeMove, testing::volume_spec};
use cistern_e2e::{
    ControlPlane, eventually,
    objects::{change, write_status},
    process::Process,
};
use kube::{Api, api::DeleteParams};
use serde_json::json;

use crate::{Plugin, SOON, create};

/// Nodes with a pool, and the volumes on them. The pool has the name of the test.
pub(crate) struct Stage {
    control_plane: &'static ControlPlane,
    pub(crate) plugin: Plugin,
    pub(crate) pool: String,
    pub(crate) moves: Api<VolumeMove>,
    pub(crate) volumes: Api<PoolVolume>,
}

impl Stage {
    /// Two nodes that carry the pool: `POOL-1` and `POOL-2`.
    pub(crate) async fn new(pool: &str) -> Self {
        let control_plane = ControlPlane::shared().await;
        let client = control_plane.client();
        let stage = Self {
            control_plane,
            plugin: Plugin::with(crate::rights::kubeconfig(control_plane).await),
            pool: pool.to_owned(),
            moves: Api::all(client.clone()),
            volumes: Api::all(client.clone()),
        };
        let nodes: Api<StorageNode> = Api::all(client);
        for number in [1, 2] {
            let entry = json!({"name": pool, "uid": "u", "source": {"image": {"size": "1Gi"}},
                "overcommitPercent": 100, "reservedPercent": 5});
            let node = json!({"metadata": {"name": stage.node(number)},
                "spec": {"topology": {}, "pools": [entry]}});
            create(&nodes, node).await;
        }
        stage
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.control_plane.client()
    }

    pub(crate) fn node(&self, number: u8) -> String {
        format!("{}-{number}", self.pool)
    }

    /// Creates a volume on a node, for the claim in the namespace `default` that has its name.
    pub(crate) async fn volume(&self, name: &str, node: u8) {
        self.volume_in(&self.pool, name, node).await;
    }

    /// Creates a volume as [`Self::volume`] does, in this pool.
    pub(crate) async fn volume_in(&self, pool: &str, name: &str, node: u8) {
        let mut spec = json!(volume_spec(name, &self.node(node), pool));
        spec["claim"] = json!({"namespace": "default", "name": name});
        create(
            &self.volumes,
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await;
    }

    /// Starts the program.
    pub(crate) fn start(&self, words: &[&str]) -> Running {
        let log = self.control_plane.folder().join(words.join("_"));
        let process = Process::start("kubectl-cistern", &log, self.plugin.command(words));
        Running { process, log }
    }

    /// Waits until a volume has a VolumeMove.
    pub(crate) async fn moves(&self, name: &str) -> VolumeMove {
        eventually(&format!("a move of {name}"), SOON, async || {
            let found = self.moves.get_opt(name).await;
            found
                .map_err(|error| error.to_string())?
                .ok_or("there is none")
                .map_err(str::to_owned)
        })
        .await
    }

    /// Reports why a move waits, as the operator does.
    pub(crate) async fn wait(&self, name: &str, reason: &str, message: &str) {
        let condition = json!({"type": "Ready", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let plan = json!({"fromNode": self.node(1), "toNode": self.node(2), "epoch": 1});
        let status = json!({"plan": plan, "conditions": [condition]});
        write_status(&self.moves, name, status).await;
    }

    /// Moves a volume to the second node, as operator and agents do, and ends its VolumeMove.
    pub(crate) async fn arrive(&self, name: &str) {
        let uid = self.moves(name).await.metadata.uid;
        let target = json!({"nodeName": self.node(2), "moveUID": uid});
        change(&self.volumes, name, json!({"spec": {"target": target}})).await;
        let fence = json!({"state": "Closed", "moveUID": uid});
        write_status(&self.volumes, name, json!({"fence": fence})).await;
        let there = json!({"nodeName": self.node(2), "target": null, "epoch": 1});
        change(&self.volumes, name, json!({"spec": there})).await;
        self.delete_move(name).await;
    }

    pub(crate) async fn delete_move(&self, name: &str) {
        let now = DeleteParams::default();
        self.moves.delete(name, &now).await.unwrap();
    }
}

/// The program while it waits.
pub(crate) struct Running {
    process: Process,
    log: std::path::PathBuf,
}

impl Running {
    /// Waits until it has printed a text.
    pub(crate) async fn says(&self, text: &str) {
        eventually(&format!("{text:?} to be printed"), SOON, async || {
            let printed = std::fs::read_to_string(&self.log).unwrap();
            if printed.contains(text) {
                Ok(())
            } else {
                Err(printed)
            }
        })
        .await;
    }

    /// Waits until it ends, and asserts its exit code.
    pub(crate) async fn ends(mut self, code: i32) -> String {
        let mut exited: Option<ExitStatus> = None;
        eventually("the command to end", SOON, async || {
            exited = self.process.exited();
            let printed = std::fs::read_to_string(&self.log).unwrap();
            exited.map(|_| ()).ok_or(printed)
        })
        .await;
        let printed = std::fs::read_to_string(&self.log).unwrap();
        assert_eq!(exited.unwrap().code(), Some(code), "{printed}");
        printed
    }
}

#[tokio::test]
async fn a_volume_gets_one_move_which_can_be_undone() {
    let stage = Stage::new("undone").await;
    stage.volume("undone-a", 1).await;
    let run = async |words: &[&str]| stage.plugin.run(words).await;
    let wrong = run(&["move", "undone-a", "--to", "undone-9"]).await;
    assert_eq!(wrong.code, 3);
    let why = "no StorageNode undone-9";
    assert!(wrong.stderr.contains(why), "{}", wrong.stderr);
    assert_eq!(stage.moves.get_opt("undone-a").await.unwrap(), None);

    let words = ["move", "undone-a", "--to", "undone-2", "--wait=false"];
    let begun = stage.plugin.text(&words).await;
    assert!(begun.contains("is to move"), "{begun}");
    let spec = stage.moves.get("undone-a").await.unwrap().spec;
    assert_eq!(spec.to_node.as_deref(), Some("undone-2"));
    let again = stage.plugin.text(&words).await;
    assert!(again.contains("moves already"), "{again}");
    let other = run(&["move", "undone-a", "--to", "undone-1"]).await;
    assert_eq!(other.code, 3);

    let undone = stage.plugin.text(&["move", "undone-a", "--undo"]).await;
    assert!(undone.contains("the move is undone"), "{undone}");
    assert_eq!(stage.moves.get_opt("undone-a").await.unwrap(), None);
}

#[tokio::test]
async fn a_move_that_exists_is_cut_over_when_that_is_asked_for_and_not_otherwise() {
    let stage = Stage::new("released").await;
    stage.volume("released-a", 1).await;
    let begin = ["move", "released-a", "--wait=false"];
    let with = |when| [&begin[..], &["--cutover", when]].concat();
    let cutover = async || stage.moves.get("released-a").await.unwrap().spec.cutover;
    stage.plugin.text(&with("manual")).await;
    assert_eq!(cutover().await, Cutover::Manual);
    stage.plugin.text(&begin).await;
    assert_eq!(cutover().await, Cutover::Manual);
    let said = stage.plugin.text(&with("automatic")).await;
    assert!(said.contains("is cut over automatically"), "{said}");
    assert_eq!(cutover().await, Cutover::Automatic);
    stage.plugin.text(&with("when-unused")).await;
    assert_eq!(cutover().await, Cutover::WhenUnused);
    let wrong = stage.plugin.run(&with("soon")).await;
    assert_eq!(wrong.code, 3, "{}", wrong.stderr);
    stage.delete_move("released-a").await;
}

#[tokio::test]
async fn a_move_is_shown_until_the_volume_is_on_the_new_node() {
    let stage = Stage::new("shown").await;
    stage.volume("shown-a", 1).await;
    let wrong = stage.plugin.run(&["move", "default/shown-a"]).await;
    let why = "there is no claim default/shown-a";
    assert!(wrong.stderr.contains(why), "{}", wrong.stderr);
    let running = stage.start(&["move", "shown-a", "--to", "shown-2"]);
    stage.moves("shown-a").await;
    let pods = "pods use the volume: default/db-0";
    stage.wait("shown-a", "PodsRemain", pods).await;
    running.says(&format!("PodsRemain: {pods}\n")).await;
    stage.wait("shown-a", "Copying", "25 % are done").await;
    running.says("Copying: 25 % are done\n").await;
    stage.arrive("shown-a").await;
    let printed = running.ends(0).await;
    let shown = "default/shown-a (volume shown-a)";
    assert!(
        printed.contains(&format!("{shown} is to move\n")),
        "{printed}"
    );
    assert!(
        printed.ends_with(&format!("{shown} has moved\n")),
        "{printed}"
    );
}

#[tokio::test]
async fn a_move_that_somebody_undoes_ends_the_command_with_a_warning() {
    let stage = Stage::new("withdrawn").await;
    stage.volume("withdrawn-a", 1).await;
    let running = stage.start(&["move", "withdrawn-a"]);
    running.says("is to move").await;
    stage.delete_move("withdrawn-a").await;
    let printed = running.ends(1).await;
    assert!(printed.contains("the move was undone"), "{printed}");
}

#[tokio::test]
async fn a_move_cannot_be_undone_once_the_volume_is_on_the_new_node() {
    let stage = Stage::new("late").await;
    stage.volume("late-a", 2).await;
    let object = json!({
        "metadata": {"name": "late-a", "finalizers": ["cistern.storage/data"]},
        "spec": {"volumeName": "late-a", "toNode": "late-2"},
    });
    create(&stage.moves, object).await;
    stage
        .wait("late-a", "Moving", "node late-2 opens the copy")
        .await;
    let late = stage.plugin.run(&["move", "late-a", "--undo"]).await;
    assert_eq!(late.code, 1, "{}{}", late.stdout, late.stderr);
    assert!(late.stdout.contains("too late to undo"), "{}", late.stdout);
    let none = json!({"metadata": {"finalizers": []}});
    change(&stage.moves, "late-a", none).await;
}
