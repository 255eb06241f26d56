//! The documentation: every relative link leads to a file and a heading, the book contains every page, and every
//! block of commands in the pages whose commands tests run says how. `cluster/documents.rs` and `upgrade` run them.
//! Every test that the page about reliability names exists, and the page defines every property that a test names.
//! SECURITY.md names what the node plugin mounts of its node. The pages about the installation name the kernels that
//! `kubectl cistern doctor` accepts. The commands that remove Cistern and keep the data leave out only the namespace.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

use cistern_e2e::{
    Document,
    document::{Block, Treatment},
    process::workspace,
};
use serde_json::Value;

/// The Markdown files outside of `docs`.
const OTHERS: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "e2e/cluster/README.md",
    "e2e/offline/README.md",
    "proto/README.md",
];

fn documents() -> Vec<Document> {
    let pages = pages().into_iter().map(|page| Path::new("docs").join(page));
    let others = OTHERS.iter().map(PathBuf::from);
    pages.chain(others).map(Document::read).collect()
}

/// The names of the pages in `docs`.
fn pages() -> BTreeSet<String> {
    let names = fs::read_dir(workspace().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_page = |name: &String| Path::new(name).extension() == Some("md".as_ref());
    names.filter(is_page).collect()
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let mut dead = Vec::new();
    for document in documents() {
        for link in &document.links {
            if link.target.contains("://") || link.target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
            if let Err(why) = follow(&document, path, anchor) {
                let place = format!("{}:{}", document.path.display(), link.line);
                dead.push(format!("{place}: {}: {why}", link.target));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn every_test_that_the_page_about_reliability_names_exists() {
    let (sources, page) = (sources(), reliability());
    let (_, hazards) = page.split_once("## Hazards").unwrap();
    let tests = hazards
        .lines()
        .filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | "))
        .flat_map(|(_, tests)| tests.split('`').skip(1).step_by(2));
    let names: Vec<&str> = tests.filter_map(|path| path.rsplit("::").next()).collect();
    assert!(names.len() > 50, "{names:?}");
    let is_missing = |name: &&&str| !sources.contains(&format!("fn {name}("));
    let missing: Vec<_> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

#[test]
fn every_property_that_a_test_names_is_one_of_the_page_about_reliability() {
    let (sources, page) = (sources(), reliability());
    let rows = page.lines().filter_map(|row| row.strip_prefix("| R"));
    let defined: BTreeSet<&str> = rows.filter_map(|row| row.split(' ').next()).collect();
    let named: BTreeSet<&str> = sources
        .split("fn r")
        .filter_map(|name| name.split('_').next())
        .filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    assert!(named.len() > 10, "{named:?}");
    let unknown: Vec<_> = named.difference(&defined).collect();
    assert!(
        unknown.is_empty(),
        "docs/reliability.md does not define {unknown:?}"
    );
}

/// The text of every Rust file with tests.
fn sources() -> String {
    let folders = ["crds", "driver", "operator", "kubectl-cistern", "e2e"];
    let texts = folders.map(|folder| texts_below(&workspace().join(folder), "rs"));
    texts.concat()
}

fn reliability() -> String {
    read("docs/reliability.md")
}

/// The text of every file with this extension below a folder.
fn texts_below(folder: &Path, extension: &str) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let texts = entries.map(|entry| {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        match path.extension() {
            _ if kind.is_dir() => texts_below(&path, extension),
            Some(found) if found == extension => fs::read_to_string(path).unwrap(),
            _ => String::new(),
        }
    });
    texts.collect()
}

fn follow(from: &Document, path: &str, anchor: &str) -> Result<(), String> {
    let target = if path.is_empty() {
        from.path.clone()
    } else {
        normal(&from.path.parent().unwrap().join(path))
    };
    if !workspace().join(&target).exists() {
        return Err("no such file".to_owned());
    }
    let found = anchor.is_empty() || Document::read(&target).anchors.contains(anchor);
    found
        .then_some(())
        .ok_or_else(|| "no such heading".to_owned())
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                assert!(normal.pop(), "{} leaves the repository", path.display());
            }
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn the_book_contains_every_page_once() {
    let summary = Document::read("docs/SUMMARY.md");
    let mut pages = pages();
    pages.remove("SUMMARY.md");
    for link in &summary.links {
        let ours = !link.target.starts_with("../");
        assert!(
            !ours || pages.remove(&link.target),
            "docs/SUMMARY.md:{}: {} is no page, or is listed twice",
            link.line,
            link.target
        );
    }
    assert!(pages.is_empty(), "docs/SUMMARY.md does not list {pages:?}");
}

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap()
}

#[test]
fn the_pages_about_the_installation_name_the_kernels_that_doctor_accepts() {
    let source = read("kubectl-cistern/src/doctor/nodes.rs");
    let version = |name: &str| {
        let (_, rest) = source
            .split_once(&format!("const {name}: Version = Version("))
            .unwrap();
        rest.split_once(");").unwrap().0.replace(", ", ".")
    };
    let (needed, tested) = (version("NEEDED"), version("TESTED"));
    let stated = format!("Linux {needed} or newer (tested from {tested})");
    for page in ["README.md", "docs/install.md", "docs/versions.md"] {
        let words: Vec<String> = read(page).split_whitespace().map(str::to_owned).collect();
        assert!(words.join(" ").contains(&stated), "{page} lacks {stated:?}");
    }
}

#[test]
fn security_names_every_folder_of_the_host_that_the_node_plugin_mounts() {
    let security = read("SECURITY.md");
    let set: Value = serde_saphyr::from_str(&read("manifests/base/node.yaml")).unwrap();
    let volumes = &set["spec"]["template"]["spec"]["volumes"];
    for volume in volumes.as_array().unwrap() {
        let path = volume["hostPath"]["path"].as_str().unwrap();
        assert!(
            security.contains(&format!("`{path}`")),
            "SECURITY.md does not name {path}"
        );
    }
}

#[test]
fn the_removal_that_keeps_the_data_leaves_out_only_the_namespace() {
    let page = read("docs/uninstall.md");
    let (_, selector) = page.split_once(" --selector '!").unwrap();
    let (label, _) = selector.split_once('\'').unwrap();
    let selector = format!(" --selector '!{label}'");
    assert!(read("e2e/demo").contains(&selector), "{selector}");
    let object = read("manifests/base/namespace.yaml");
    let object: Value = serde_saphyr::from_str(&object).unwrap();
    let labels = &object["metadata"]["labels"];
    assert!(labels[label].is_string(), "{labels}");
    let manifests = texts_below(&workspace().join("manifests"), "yaml");
    assert_eq!(manifests.matches(label).count(), 1, "{label}");
}

#[test]
fn every_command_of_the_pages_that_tests_run_is_run_or_has_a_reason() {
    for (path, clean_up) in [
        ("README.md", 1),
        ("docs/quickstart.md", 1),
        ("docs/upgrade.md", 0),
        ("docs/uninstall.md", 0),
    ] {
        let document = Document::read(path);
        let place = |block: &Block| format!("{path}:{}", block.line);
        let mut before: Option<&Block> = None;
        for block in &document.blocks {
            match block.language.as_str() {
                "sh" => {}
                "text" => assert!(
                    before.is_some_and(|it| it.language == "sh"),
                    "{}: a block of output follows its commands",
                    place(block)
                ),
                other => panic!("{}: a block is sh or text, not {other:?}", place(block)),
            }
            if let Treatment::DryRun { reason } | Treatment::NotRun { reason } = &block.treatment {
                assert!(!reason.is_empty(), "{}: no reason is given", place(block));
                eprintln!("{}: not run as written: {reason}", place(block));
            }
            before = Some(block);
        }
        let clean_ups = document.blocks.iter();
        let clean_ups = clean_ups.filter(|block| block.treatment == Treatment::CleanUp);
        assert_eq!(clean_ups.count(), clean_up, "{path}: blocks of clean-up");
    }
}
