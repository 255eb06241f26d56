//! The program as a kubectl plugin, in a pipe, and without a cluster.

use std::path::Path;

use cistern_e2e::{
    ControlPlane, Folder,
    process::{binary, command, output, run, tool},
};
use serde_json::json;

use crate::{Plugin, SOON};

#[tokio::test]
async fn kubectl_finds_the_plugin_by_its_name() {
    let mut kubectl = command(tool("kubectl").await);
    kubectl.args(["cistern", "--version"]);
    kubectl.env("PATH", binary("kubectl-cistern").parent().unwrap());
    assert!(output(kubectl, SOON).await.starts_with("kubectl-cistern "));
}

#[tokio::test]
async fn kubectl_completes_the_words_of_the_plugin() {
    let folder = Folder::new();
    let plugin = binary("kubectl-cistern");
    for name in ["kubectl-cistern", "kubectl_complete-cistern"] {
        std::os::unix::fs::symlink(&plugin, folder.join(name)).unwrap();
    }
    let kubectl = tool("kubectl").await;
    let complete = async |words: &[&str]| {
        let mut kubectl = command(&kubectl);
        kubectl.args(["__complete", "cistern"]).args(words);
        kubectl.env("PATH", folder.path());
        output(kubectl, SOON).await
    };
    let commands = complete(&["vol"]).await;
    assert!(commands.starts_with("volumes\tList volumes"), "{commands}");
    let values = complete(&["top", "pools", "--sort", "th"]).await;
    assert!(values.starts_with("throughput\n:4\n"), "{values}");
}

#[tokio::test]
async fn a_closed_pipe_is_no_error() {
    let mut shell = command("bash");
    let script = "\"$0\" completion bash | true; echo ${PIPESTATUS[0]}";
    shell.args(["-c", script]).arg(binary("kubectl-cistern"));
    assert_eq!(output(shell, SOON).await.trim(), "0");
}

#[tokio::test]
async fn every_shell_has_its_completion() {
    let plugin = Plugin::with(Path::new("/nowhere"));
    for shell in ["bash", "zsh", "fish"] {
        let script = plugin.text(&["completion", shell]).await;
        assert!(
            script.contains("kubectl-cistern") && script.contains("orphans"),
            "{shell}"
        );
    }
}

#[tokio::test]
async fn errors_without_a_cluster_say_what_to_do() {
    let wrong = Plugin::with(Path::new("/nowhere")).run(&["status"]).await;
    assert_eq!(wrong.code, 3);
    assert!(
        wrong.stderr.contains("check --kubeconfig and --context"),
        "{}",
        wrong.stderr
    );

    let folder = Folder::new();
    let kubeconfig = folder.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        // No process listens on port 9 (discard).
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let away = Plugin::with(&kubeconfig).run(&["status"]).await;
    assert_eq!(away.code, 3);
    let words = "the API server at https://127.0.0.1:9/ does not answer";
    assert!(away.stderr.contains(words), "{}", away.stderr);

    let context = Plugin::with(&kubeconfig)
        .run(&["status", "--context", "other"])
        .await;
    assert_eq!(context.code, 3);
    let mut bare = command(binary("kubectl-cistern"));
    bare.arg("status")
        .env_remove("KUBECONFIG")
        .env("HOME", folder.path());
    let bare = run(bare, SOON).await;
    assert_eq!(bare.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&bare.stderr);
    assert!(stderr.contains("no cluster is configured"), "{stderr}");
    let typo = Plugin::with(&kubeconfig).run(&["statsu"]).await;
    assert_eq!(typo.code, 3);
}

#[tokio::test]
async fn a_user_without_permissions_gets_an_error() {
    let plugin = Plugin::of(ControlPlane::shared().await);
    let stranger = plugin.run(&["pools", "--as", "stranger"]).await;
    assert_eq!(stranger.code, 3, "{}", stranger.stdout);
    assert!(
        stranger.stderr.contains("not allowed"),
        "{}",
        stranger.stderr
    );
}
