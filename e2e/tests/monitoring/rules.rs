//! The files in `manifests/monitoring`: unit tests of the alerts, and consistency with the runbook.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use cistern_e2e::{
    Document,
    process::{command, output, tool, workspace},
};
use serde::Deserialize;
use serde_json::Value;

const RULES: &str = include_str!("../../../manifests/monitoring/rules.yaml");
const FOR_PROMETHEUS_OPERATOR: &str =
    include_str!("../../../manifests/monitoring/prometheus-operator/rules.yaml");
const RUNBOOK: &str = include_str!("../../../docs/runbook.md");
const DASHBOARD: &str = include_str!("../../../manifests/monitoring/dashboard.json");
/// The runbook in the repository.
const RUNBOOK_URL: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/docs/runbook.md");
const SOON: Duration = Duration::from_mins(2);

/// A file of alerting rules.
#[derive(Debug, Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    rules: Vec<Alert>,
}

/// An alerting rule.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Alert {
    #[serde(rename = "alert")]
    pub(crate) name: String,
    pub(crate) expr: String,
    labels: Value,
    annotations: Value,
}

/// Returns every alert.
pub(crate) fn alerts() -> Vec<Alert> {
    let rules: Rules = serde_saphyr::from_str(RULES).unwrap();
    rules
        .groups
        .into_iter()
        .flat_map(|group| group.rules)
        .collect()
}

/// Returns the folder of the rules and the dashboard.
pub(crate) fn folder() -> PathBuf {
    workspace().join("manifests/monitoring")
}

#[tokio::test]
async fn alerts_fire_at_the_expected_times_with_the_expected_texts() {
    let mut check = command("promtool");
    check
        .args(["check", "rules"])
        .arg(folder().join("rules.yaml"));
    output(check, SOON).await;
    let mut test = command("promtool");
    let tests = workspace().join("e2e/tests/monitoring/rules.test.yaml");
    test.args(["test", "rules"]).arg(&tests);
    output(test, SOON).await;
    let tests = std::fs::read_to_string(tests).unwrap();
    let untested: Vec<String> = alerts()
        .into_iter()
        .map(|alert| alert.name)
        .filter(|name| !tests.contains(&format!("alertname: {name}\n")))
        .collect();
    // Their rules are as simple as those of the tested alerts beside them.
    assert_eq!(
        untested,
        [
            "CisternPoolDegraded",
            "CisternVolumeInaccessible",
            "CisternDrift"
        ]
    );
}

#[test]
fn every_alert_has_a_severity_texts_and_its_section_in_the_runbook() {
    let sections: BTreeSet<&str> = RUNBOOK
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    let alerts = alerts();
    let page = Document::read("docs/runbook.md");
    for alert in &alerts {
        let (name, annotations) = (&alert.name, &alert.annotations);
        let severity = alert.labels["severity"].as_str().unwrap();
        assert!(["critical", "warning"].contains(&severity), "{name}");
        for words in ["summary", "description"] {
            assert!(annotations[words].as_str().is_some(), "{name}: {words}");
        }
        let section = format!("{RUNBOOK_URL}#{}", name.to_lowercase());
        assert!(page.anchors.contains(&name.to_lowercase()), "{name}");
        assert_eq!(annotations["runbook_url"], section.as_str(), "{name}");
    }
    let names: BTreeSet<&str> = alerts.iter().map(|alert| alert.name.as_str()).collect();
    assert_eq!(names, sections);
}

#[test]
fn the_dashboard_links_to_the_runbook() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert_eq!(dashboard["links"][0]["url"], RUNBOOK_URL);
}

#[test]
fn prometheus_operator_is_given_the_same_rules() {
    let (_, rules) = RULES.split_once("groups:").unwrap();
    let rules = format!("  groups:{}", rules.trim_end().replace('\n', "\n  "));
    let (_, theirs) = FOR_PROMETHEUS_OPERATOR.split_once("spec:\n").unwrap();
    assert!(
        theirs.trim_end() == rules,
        "the rules differ: run make generate"
    );
}

#[tokio::test]
async fn kubectl_can_apply_both_folders() {
    let kubectl = tool("kubectl").await;
    for (folder, kinds) in [
        (folder(), vec!["ConfigMap", "ConfigMap"]),
        (
            folder().join("prometheus-operator"),
            vec!["PodMonitor", "PrometheusRule"],
        ),
    ] {
        let mut kustomize = command(&kubectl);
        kustomize.arg("kustomize").arg(folder);
        let built = output(kustomize, SOON).await;
        let mut found: Vec<&str> = built
            .lines()
            .filter_map(|line| line.strip_prefix("kind: "))
            .collect();
        found.sort_unstable();
        assert_eq!(found, kinds);
    }
}
