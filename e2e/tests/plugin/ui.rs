//! `kubectl cistern ui` in a browser: what it shows, that it follows changes, the keyboard, and what it must not
//! do.

mod large;
mod pictures;

use cistern_crds::{StorageNode, StoragePool};
use cistern_e2e::{ControlPlane, process::output};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use rustix::process::Signal;
use serde_json::json;
use thirtyfour::Key;

use crate::{
    Node, Plugin, SOON,
    browser::{Browser, Scheme, Ui},
    create,
};

/// The number of rows of the table in the document.
const ROWS: &str = "document.querySelectorAll('.grid .body .row').length";
/// The active row, as assistive technology learns it.
const ACTIVE: &str = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))?.innerText";

#[tokio::test]
async fn the_page_shows_pools_volumes_and_problems_and_follows_changes() {
    let node = Node::start("plugin-ui").await;
    let spec = json!({"nodeSelector": {}, "source": {"image": {"size": "1Gi"}}});
    let pool = json!({"metadata": {"name": "plugin-ui"}, "spec": spec});
    create(&node.all::<StoragePool>(), pool).await;
    let volume = node.volume("ui-one", None).await;
    let kubeconfig = ControlPlane::shared().await.kubeconfig();
    let mut ui = Ui::start(kubeconfig, &[]).await;
    let browser = Browser::open(&ui.url, Scheme::Light).await;
    browser.shows(&["plugin-ui", "Live", "test"]).await;
    let bar =
        "[...document.querySelectorAll('.bar')].some(it => it.ariaLabel.includes('volumes 64Mi'))";
    browser.until(bar).await;

    browser.visit("#volumes").await;
    browser.shows(&["default/ui-one", "64Mi", "ext4"]).await;

    // Without a reload: a new volume and its snapshot, and an image that is gone.
    let second = node.volume("ui-two", None).await;
    browser.shows(&["default/ui-two"]).await;
    let snapshot = node.snapshot("ui-snap", &second).await;
    browser.visit("#snapshots").await;
    browser.shows(&["ui-snap"]).await;
    let (image, kept) = (node.images().join(volume.uid().unwrap()), "../kept");
    let mut away = node.driver.command_on_node("mv");
    away.arg(&image).arg(node.images().join(kept));
    output(away, SOON).await;
    browser.visit("#overview").await;
    browser
        .shows(&["Image missing", "Volume ui-one on plugin-ui"])
        .await;

    // The problem leads to the volume, and the page says what the command says.
    browser
        .get("[...document.querySelectorAll('.problem a')].find(it => it.innerText.includes('ui-one')).click()")
        .await;
    browser
        .until("document.querySelector('#details h2')?.innerText === 'ui-one'")
        .await;
    let volumes = node.plugin.json(&["volumes"]).await;
    let items = volumes["items"].as_array().unwrap();
    let one = items.iter().find(|it| it["name"] == "ui-one").unwrap();
    let message = one["problems"][0]["message"].as_str().unwrap();
    let shown = message.replace('`', "");
    browser.shows(&[&shown]).await;

    let mut back = node.driver.command_on_node("mv");
    back.arg(node.images().join(kept)).arg(&image);
    output(back, SOON).await;
    assert!(ui.process.stop().await.success());
    node.remove(&snapshot).await;
    node.remove(&second).await;
    node.remove(&volume).await;
    node.driver.finish().await;
}

#[tokio::test]
async fn text_from_the_cluster_is_never_html() {
    const HOSTILE: &str = "<img src=x onerror=\"document.title='hacked'\"><b>bold</b>";
    let control_plane = ControlPlane::start().await;
    let nodes: Api<StorageNode> = Api::all(control_plane.client());
    let node = json!({"metadata": {"name": "html"}, "spec": {"topology": {}}});
    create(&nodes, node).await;
    let drift = json!({"kind": HOSTILE, "object": HOSTILE, "message": HOSTILE,
        "since": "2026-01-01T00:00:00Z"});
    let status = Patch::Merge(json!({"status": {"drift": [drift]}}));
    let parameters = PatchParams::default();
    nodes
        .patch_status("html", &parameters, &status)
        .await
        .unwrap();

    let ui = Ui::start(control_plane.kubeconfig(), &[]).await;
    let browser = Browser::open(&ui.url, Scheme::Light).await;
    browser.shows(&["<b>bold</b>", "<img src=x"]).await;
    let found = "document.querySelectorAll('main img, main b, main script').length";
    assert_eq!(browser.get(found).await, 0);
    assert_eq!(browser.get("document.title").await, "Cistern: overview");
    // Even a script in the page could not load anything from elsewhere.
    let refused = "await fetch('http://127.0.0.2:1/').then(() => 'sent', error => error.message)";
    let asynchronous = format!("(async () => {refused})()");
    assert_eq!(browser.get(&asynchronous).await, "Failed to fetch");
}

#[tokio::test]
async fn the_keyboard_reaches_everything() {
    let control_plane = ControlPlane::start().await;
    large::volumes(&control_plane, 30, 3).await;
    let ui = Ui::start(control_plane.kubeconfig(), &[]).await;
    let browser = Browser::open(&ui.url, Scheme::Light).await;
    browser.visit("#volumes").await;
    browser.shows(&["Volumes (30)"]).await;

    browser.press("/").await;
    assert_eq!(browser.get("document.activeElement.id").await, "search");
    browser.press("volume-0001").await;
    browser.shows(&["Volumes (10 of 30)"]).await;
    browser.press(&char::from(Key::Down).to_string()).await;
    assert_eq!(browser.get("document.activeElement.role").await, "grid");
    browser.press(&char::from(Key::Down).to_string()).await;
    browser.press(&char::from(Key::Down).to_string()).await;
    browser
        .until(&format!("{ACTIVE}?.includes('volume-00011')"))
        .await;
    browser.press(&char::from(Key::Enter).to_string()).await;
    let details = "document.querySelector('#details h2')?.innerText === 'volume-00011'";
    browser.until(details).await;

    // A change keeps the focus, the active row and the details.
    large::volumes(&control_plane, 31, 3).await;
    browser.shows(&["Volumes (10 of 31)"]).await;
    browser.until(details).await;
    assert_eq!(browser.get("document.activeElement.role").await, "grid");
    browser
        .until(&format!("{ACTIVE}?.includes('volume-00011')"))
        .await;

    browser.press(&char::from(Key::Escape).to_string()).await;
    browser
        .until("document.querySelector('#details').hidden")
        .await;
    assert_eq!(browser.get("document.activeElement.role").await, "grid");
    browser.press("/").await;
    browser.press(&char::from(Key::Escape).to_string()).await;
    browser.shows(&["Volumes (31)"]).await;
}

#[tokio::test]
async fn missing_rights_and_an_outage_are_explained() {
    let control_plane = ControlPlane::start().await;
    let client = control_plane.client();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let own =
        json!({"apiGroups": ["cistern.storage"], "resources": ["*"], "verbs": ["list", "watch"]});
    create(&roles, json!({"metadata": {"name": "own"}, "rules": [own]})).await;
    let bindings: Api<ClusterRoleBinding> = Api::all(client);
    let role =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "own"});
    let user = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"});
    let binding = json!({"metadata": {"name": "own"}, "roleRef": role, "subjects": [user]});
    create(&bindings, binding).await;

    let ui = Ui::start(control_plane.kubeconfig(), &["--as", "reader"]).await;
    let browser = Browser::open(&ui.url, Scheme::Light).await;
    let pods = "pods are not shown: you may not list them";
    browser
        .shows(&[pods, "There are no pools yet", "Live"])
        .await;

    control_plane.apiserver().signal(Signal::STOP);
    browser
        .shows(&["The page shows the last known state", "Outage"])
        .await;
    control_plane.apiserver().signal(Signal::CONT);
    browser
        .until("document.querySelector('#banner').hidden")
        .await;

    // The page has no server any more.
    drop(ui);
    browser.shows(&["Disconnected", "Start it again"]).await;

    let refused = Plugin::of(&control_plane);
    let refused = refused.run(&["ui", "--as", "nobody"]).await;
    assert_eq!(refused.code, 3);
    assert!(refused.stderr.contains("not allowed"), "{}", refused.stderr);
}

#[tokio::test]
async fn the_colours_follow_the_preferred_scheme() {
    let control_plane = ControlPlane::shared().await;
    let ui = Ui::start(control_plane.kubeconfig(), &[]).await;
    let colour = "getComputedStyle(document.body).backgroundColor";
    let light = Browser::open(&ui.url, Scheme::Light).await;
    assert_eq!(light.get(colour).await, "rgb(245, 247, 249)");
    let dark = Browser::open(&ui.url, Scheme::Dark).await;
    assert_eq!(dark.get(colour).await, "rgb(13, 18, 23)");
}
