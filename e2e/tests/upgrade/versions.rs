//! An upgrade from a pinned earlier version to this one and back, in the steps of `docs/upgrade.md`.

use cistern_e2e::{
    Harness, Page, Test,
    cluster::PATIENCE,
    eventually,
    process::{binary, command, run},
};
use serde_json::Value;

use crate::{
    installed::{Manifests, and_then_install},
    uninstall::{remove_and_keep_the_data, remove_everything},
    workload::Workload,
};

/// The headings of the page that have commands, and what `doctor` says about the versions after them.
const STEPS: [(&str, &str, &str); 7] = [
    ("Before", "", ""),
    ("CRDs", "", ""),
    (
        "Operator and controller",
        "old-agents",
        "controller dev (2), node previous (4), operator dev (2)",
    ),
    ("Agents", "new", "all parts are dev"),
    (
        "Downgrade",
        "new-agents",
        "controller previous (2), node dev (4), operator previous (2)",
    ),
    ("Agents of the older version", "", ""),
    (
        "CRDs of the older version",
        "back",
        "all parts are previous",
    ),
];

#[tokio::test]
async fn all_goes_on_during_an_upgrade_and_a_downgrade_in_the_steps_of_the_document() {
    let Some(_) = Harness::or_skip("an upgrade") else {
        return;
    };
    let (old, new) = (
        Manifests::of_the_previous_version().await,
        Manifests::of_this_version(),
    );
    Test::run_alone("upgrade", async |test| {
        test.no_failed_test_keeps_volumes().await;
        let cluster = &test.cluster;
        and_then_install(cluster, async || {
            remove_everything(&new).await;
            old.define(cluster).await;
            let page = Page::read("docs/uninstall.md").await;
            let page = page.with("MANIFESTS", old.path());
            page.run_section("Install it again").await;
            versions_are("all parts are previous").await;
            let workload = Workload::create(test).await;
            workload.works("old").await;

            let page = Page::read("docs/upgrade.md").await;
            let page = page.with("OLD", old.path()).with("NEW", new.path());
            assert_eq!(page.headings(), STEPS.map(|(heading, ..)| heading));
            for (heading, name, versions) in STEPS {
                page.run_section(heading).await;
                if !name.is_empty() {
                    versions_are(versions).await;
                    workload.works(name).await;
                }
            }
            // The command of this version removes the previous one, too.
            remove_and_keep_the_data(test, &old).await;
        })
        .await;
    })
    .await;
}

/// Waits until `kubectl cistern doctor` says this about the versions. It is a warning if they differ.
async fn versions_are(expected: &str) {
    eventually(&format!("doctor to say {expected}"), PATIENCE, async || {
        let mut doctor = command(binary("kubectl-cistern"));
        doctor.args(["doctor", "-o", "json"]);
        let answer = run(doctor, PATIENCE).await.stdout;
        let report: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        let mut checks = report["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["name"] == "versions").unwrap();
        let outcome = if expected.starts_with("all") {
            "ok"
        } else {
            "warn"
        };
        let says = check["message"].as_str().unwrap().ends_with(expected);
        let fits = says && check["outcome"] == outcome;
        fits.then_some(()).ok_or_else(|| check.to_string())
    })
    .await;
}
