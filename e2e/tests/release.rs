//! What `make release` makes, from the debug binaries: without Docker, without a registry.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use cistern_e2e::{
    ControlPlane, Folder,
    process::{binary, command, output, run, tool, workspace},
};
use serde_json::Value;
use tokio::sync::OnceCell;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const IMAGES: &str = "registry.example/storage";
const REPOSITORY: &str = "https://git.example/storage";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const COMPRESSED_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// The first run compiles the program that makes the SBOM.
const PATIENCE: Duration = Duration::from_mins(20);
const SOON: Duration = Duration::from_mins(5);
/// What an image may take in a registry. Nodes load it over the network, before any volume on them can be used.
const LARGEST_IMAGE: u64 = 60 << 20;
/// Programs of the driver's image; the driver runs most of them.
const TOOLS: [&str; 14] = [
    "mkfs.ext4",
    "mkfs.xfs",
    "mkfs.btrfs",
    "cryptsetup",
    "lvm",
    "blkid",
    "e2fsck",
    "resize2fs",
    "prlimit",
    "xfs_db",
    "xfs_repair",
    "dumpe2fs",
    "debugfs",
    "btrfs",
];

#[tokio::test]
async fn an_image_archive_is_a_valid_layout_whose_binary_runs() {
    let release = Release::shared().await;
    for target in ["driver", "operator"] {
        let (layout, root) = (Folder::new(), Folder::new());
        let archive = release.file(&format!("cistern-{target}-v{VERSION}.oci.tar"));
        unpack(&archive, layout.path()).await;
        assert_eq!(
            json(&layout.join("oci-layout"))["imageLayoutVersion"],
            "1.0.0"
        );
        let named = &json(&layout.join("index.json"))["manifests"][0];
        let name = format!("{IMAGES}/{target}:v{VERSION}");
        assert_eq!(named["annotations"]["io.containerd.image.name"], name);
        assert_eq!(named["mediaType"], INDEX);

        let manifest = manifest(&layout).await;
        let config = json(&blob(&layout, &manifest["config"]).await);
        let layers = manifest["layers"].as_array().unwrap();
        let contents = config["rootfs"]["diff_ids"].as_array().unwrap();
        assert_eq!(layers.len(), contents.len());
        for (layer, content) in layers.iter().zip(contents) {
            let layer = blob(&layout, layer).await;
            assert_eq!(digest_of_content(&layer).await, *content);
            unpack(&layer, root.path()).await;
        }

        let labels = &config["config"]["Labels"];
        let label = |name: &str| labels[format!("org.opencontainers.image.{name}")].clone();
        assert_eq!(label("version"), format!("v{VERSION}"));
        assert_eq!(label("source"), REPOSITORY);
        assert!(label("revision").as_str().unwrap().len() >= 40, "{labels}");
        let entrypoint = config["config"]["Entrypoint"][0].as_str().unwrap();
        let said = output(inside(&root, &[entrypoint, "--version"]), SOON).await;
        assert_eq!(said.trim(), format!("cistern-{target} {VERSION}"));
        for tool in TOOLS.iter().filter(|_| target == "driver") {
            let status = run(inside(&root, &[tool, "-V"]), SOON).await;
            // Not found, or without one of its libraries.
            assert_ne!(status.status.code(), Some(127), "{tool}: {status:?}");
        }
        // Without its folder, LVM does nothing on a read-only root.
        assert_eq!(root.join("etc/lvm").is_dir(), target == "driver");
    }
}

/// Debug binaries are larger than released ones.
#[tokio::test]
async fn an_image_is_below_60_mib() {
    let release = Release::shared().await;
    for target in ["driver", "operator"] {
        let layout = Folder::new();
        let archive = release.file(&format!("cistern-{target}-v{VERSION}.oci.tar"));
        unpack(&archive, layout.path()).await;
        let manifest = manifest(&layout).await;
        let layers = manifest["layers"].as_array().unwrap();
        for layer in layers {
            assert_eq!(layer["mediaType"], COMPRESSED_LAYER, "{target}");
        }
        let mut total = 0;
        for part in layers.iter().chain([&manifest["config"]]) {
            total += fs::metadata(blob(&layout, part).await).unwrap().len();
        }
        assert!(total > 0 && total < LARGEST_IMAGE, "{target}: {total}");
    }
}

#[tokio::test]
async fn the_manifests_name_the_version_and_an_api_server_takes_them() {
    let release = Release::shared().await;
    let control_plane = ControlPlane::start().await;
    let kubectl = tool("kubectl").await;
    let on_it = |arguments: &[&str]| {
        let mut command = command(&kubectl);
        command.arg("--kubeconfig").arg(control_plane.kubeconfig());
        command.args(arguments);
        command
    };
    // Nothing is created by a dry run, so the namespace must exist before it.
    output(on_it(&["create", "namespace", "cistern-system"]), SOON).await;
    for (file, sidecar) in [
        ("install.yaml", "csi-provisioner"),
        ("install-snapshots.yaml", "csi-snapshotter"),
    ] {
        let path = release.file(file);
        let content = fs::read_to_string(&path).unwrap();
        for target in ["driver", "operator"] {
            let image = format!("image: {IMAGES}/{target}:v{VERSION}\n");
            assert!(content.contains(&image), "{file} lacks {image}");
        }
        assert!(!content.contains("image: cistern") && content.contains(sidecar));
        let mut apply = on_it(&[
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
        ]);
        apply.arg("--filename").arg(&path);
        let applied = output(apply, SOON).await;
        for object in ["poolvolumes.cistern.storage", "daemonset.apps/cistern-node"] {
            assert!(applied.contains(object), "{file}: {applied}");
        }
    }
}

#[tokio::test]
async fn the_rule_for_udev_is_that_of_the_checkout() {
    let released = fs::read(Release::shared().await.file("12-cistern.rules")).unwrap();
    let own = fs::read(workspace().join("manifests/udev/12-cistern.rules")).unwrap();
    assert_eq!(released, own);
}

#[tokio::test]
async fn the_chart_renders_the_same_objects_as_its_folder_with_the_images_of_the_version() {
    let release = Release::shared().await;
    let helm = tool("helm").await;
    let packed = release.file(&format!("cistern-chart-v{VERSION}.tgz"));
    let mut template = command(&helm);
    template.args(["template", "cistern"]).arg(packed);
    let rendered = output(template, SOON).await;
    for target in ["driver", "operator"] {
        let image = format!("{IMAGES}/{target}:v{VERSION}");
        assert!(rendered.contains(&image), "the chart lacks {image}");
    }

    let mut template = command(&helm);
    template
        .args(["template", "cistern"])
        .arg(workspace().join("charts/cistern"));
    for target in ["driver", "operator"] {
        template.arg(format!("--set=image.{target}.repository={IMAGES}/{target}"));
    }
    assert_eq!(rendered, output(template, SOON).await);
}

#[tokio::test]
async fn the_checksums_cover_every_file() {
    let release = Release::shared().await;
    let mut check = command("sha256sum");
    check.args(["--check", "--strict", "SHA256SUMS"]);
    check.current_dir(release.0.path());
    let checked = output(check, SOON).await;
    for entry in fs::read_dir(release.0.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "SHA256SUMS" || checked.contains(&format!("{name}: OK\n")),
            "{name}"
        );
    }
}

#[tokio::test]
async fn krew_finds_the_plugin_by_the_checksum_of_its_archive() {
    let release = Release::shared().await;
    let manifest = fs::read_to_string(release.file("krew-cistern.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&manifest).unwrap();
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let platform = &manifest["spec"]["platforms"][0];
    assert_eq!(platform["selector"]["matchLabels"]["arch"], architecture());
    let uri = platform["uri"].as_str().unwrap();
    let downloads = format!("{REPOSITORY}/releases/download/v{VERSION}/");
    let name = uri.strip_prefix(&downloads).unwrap();
    let archive = release.file(name);
    let digest = digest(&archive).await;
    assert_eq!(platform["sha256"], digest.strip_prefix("sha256:").unwrap());

    let folder = Folder::new();
    unpack(&archive, folder.path()).await;
    let licence = fs::read_to_string(folder.join("LICENSE")).unwrap();
    assert!(licence.contains("Apache License"));
    let mut plugin = command(folder.join(platform["bin"].as_str().unwrap()));
    plugin.arg("--version");
    assert!(output(plugin, SOON).await.contains(VERSION));
}

#[tokio::test]
async fn the_sbom_lists_crates_and_the_packages_of_the_image() {
    let release = Release::shared().await;
    for (crate_name, wanted) in [
        (
            "driver",
            &["tonic", "xfsprogs", "cryptsetup-bin", "lvm2", "libc6"][..],
        ),
        ("operator", &["kube", "libc6"]),
        ("kubectl-cistern", &["kube"]),
    ] {
        let sbom = json(&release.file(&format!("sbom-{crate_name}.cdx.json")));
        assert_eq!(sbom["bomFormat"], "CycloneDX");
        let components = sbom["components"].as_array().unwrap();
        for name in wanted {
            let found = components
                .iter()
                .any(|it| it["name"] == *name && it["version"].is_string());
            assert!(found, "the SBOM of {crate_name} lacks {name}");
        }
    }
}

#[tokio::test]
async fn a_tag_that_is_not_the_version_is_refused() {
    let mut make = command(workspace().join("release/make"));
    make.env("VERSION", "v99.0.0");
    let ended = run(make, SOON).await;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        !ended.status.success() && said.contains("Cargo.toml states v"),
        "{said}"
    );
}

/// Two builds under one tag differ, and nodes that have the first one do not pull the second.
#[tokio::test]
async fn a_release_has_no_unreleased_changes_and_any_other_build_names_its_commit() {
    let release = format!("v{VERSION}");
    let released = repository("").await;
    assert_eq!(complaint(&released, &release).await, "");

    let changed = repository("### Fixed\n\n- A fault.\n").await;
    let commit = git(&changed, &["rev-parse", "HEAD"]).await;
    let build = format!("{release}-g{}", &commit[..12]);
    let said = complaint(&changed, &release).await;
    assert!(
        said.contains("changes under Unreleased") && said.contains(&build),
        "{said}"
    );
    assert_eq!(complaint(&changed, &build).await, "");
    for other in ["0123456789ab", &commit[..6], ""] {
        let said = complaint(&changed, &format!("{release}-g{other}")).await;
        assert!(!said.is_empty(), "{other:?} is taken");
    }
}

#[test]
fn the_workflow_publishes_commits_of_main_whose_tests_passed_and_marks_pre_releases() {
    let workflow = workspace().join(".github/workflows/release.yaml");
    let workflow: Value = serde_saphyr::from_str(&fs::read_to_string(workflow).unwrap()).unwrap();
    let commands = |job: &str| {
        let steps = workflow["jobs"][job]["steps"].as_array().unwrap();
        let commands = steps.iter().filter_map(|step| step["run"].as_str());
        commands.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(workflow["jobs"]["release"]["needs"], "tested");
    let checks = commands("tested");
    assert!(checks.contains("git merge-base --is-ancestor HEAD origin/main"));
    assert!(checks.contains("gh run list --workflow test.yaml --branch main"));
    let publishes = commands("release");
    assert!(publishes.contains("if [[ $VERSION == *-* ]]; then options+=(--prerelease)"));
}

#[tokio::test]
async fn a_binary_that_the_images_cannot_run_is_refused() {
    let root = Folder::new();
    fs::create_dir(root.join("libraries")).unwrap();
    // A program defines no version of the C library, as an older library lacks the newest.
    fs::copy("/bin/true", root.join("libraries/libc.so.6")).unwrap();
    let mut check = command(workspace().join("release/check-binaries"));
    check.arg(root.path()).arg("/bin/true");
    let checked = run(check, SOON).await;
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(
        !checked.status.success() && said.contains("/bin/true needs GLIBC_"),
        "{said}"
    );
}

/// The folder of a release that all tests of this binary share.
struct Release(Folder);

impl Release {
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Release> = OnceCell::const_new();
        SHARED.get_or_init(Self::make).await
    }

    async fn make() -> Self {
        let folder = Folder::new();
        let binaries = binary("cistern-driver").parent().unwrap().to_owned();
        let mut make = command(workspace().join("release/make"));
        make.env("VERSION", format!("v{VERSION}"))
            .env("ARCHITECTURES", architecture())
            .env("IMAGES", IMAGES)
            .env("REPOSITORY", REPOSITORY)
            .env("OUTPUT", folder.path())
            .env("BINARIES", binaries);
        output(make, PATIENCE).await;
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Creates a repository with the files that decide whether `release/make` accepts a version, and these unreleased changes.
async fn repository(changes: &str) -> Folder {
    let folder = Folder::new();
    for file in [
        "Cargo.toml",
        "release/make",
        "release/lib/artifacts.sh",
        "e2e/cluster/lib/common.sh",
    ] {
        let copy = folder.join(file);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(workspace().join(file), copy).unwrap();
    }
    let changelog = format!("## [Unreleased]\n\n{changes}\n## [{VERSION}]\n\nThe first one.\n");
    fs::write(folder.join("CHANGELOG.md"), changelog).unwrap();
    git(&folder, &["init", "--quiet"]).await;
    git(&folder, &["add", "."]).await;
    git(&folder, &["commit", "--quiet", "--message", "Begin"]).await;
    folder
}

async fn git(folder: &Folder, arguments: &[&str]) -> String {
    let mut git = command("git");
    git.current_dir(folder.path())
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.com"])
        .args(arguments);
    output(git, SOON).await
}

/// Returns why `release/make` refuses a version; empty if it accepts it.
async fn complaint(folder: &Folder, version: &str) -> String {
    let mut make = command("bash");
    make.arg(folder.join("release/make"))
        .arg("--check")
        .env("VERSION", version);
    let ended = run(make, SOON).await;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.success(), said.is_empty(), "{said}");
    said
}

/// Returns this machine's architecture as Kubernetes calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the manifest of this machine's architecture, which is the only one in an unpacked archive.
async fn manifest(layout: &Folder) -> Value {
    let named = &json(&layout.join("index.json"))["manifests"][0];
    let index = json(&blob(layout, named).await);
    let manifests = index["manifests"].as_array().unwrap();
    assert_eq!(manifests.len(), 1, "one architecture was asked for");
    let of_this_machine = &manifests[0];
    assert_eq!(of_this_machine["platform"]["architecture"], architecture());
    json(&blob(layout, of_this_machine).await)
}

/// Returns the path of the blob that a descriptor names, after a check of its digest and size.
async fn blob(layout: &Folder, descriptor: &Value) -> PathBuf {
    let digest_of_descriptor = descriptor["digest"].as_str().unwrap();
    let path = layout.join(format!("blobs/{}", digest_of_descriptor.replace(':', "/")));
    assert_eq!(digest(&path).await, digest_of_descriptor);
    assert_eq!(descriptor["size"], fs::metadata(&path).unwrap().len());
    path
}

async fn digest(path: &Path) -> String {
    let mut sum = command("sha256sum");
    sum.arg(path);
    let said = output(sum, SOON).await;
    format!("sha256:{}", said.split(' ').next().unwrap())
}

/// Returns the digest of what a compressed file contains.
async fn digest_of_content(path: &Path) -> String {
    let mut sum = command("bash");
    sum.args(["-o", "pipefail", "-ec", "gunzip <\"$0\" | sha256sum"])
        .arg(path);
    let said = output(sum, SOON).await;
    format!("sha256:{}", said.split(' ').next().unwrap())
}

async fn unpack(archive: &Path, folder: &Path) {
    let mut tar = command("tar");
    tar.arg("--extract")
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(folder);
    output(tar, SOON).await;
}

/// Returns a command that runs in an unpacked image.
fn inside(root: &Folder, arguments: &[&str]) -> Command {
    let mut chroot = command("chroot");
    chroot.arg(root.path()).args(arguments);
    chroot
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    chroot
}
