//! NPV, NUP: publish and unpublish, for every kind of volume.

use cistern_crds::Bytes;
use cistern_proto::csi::v1::{
    NodeExpandVolumeRequest, NodePublishVolumeRequest,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};
use tonic::Code;

use crate::{
    SIZE, code, mounted, range, shared,
    volume::{Volume, kinds},
};

// Shows: NPV-07: a publish with another value of readonly is not a repeat.
#[tokio::test]
async fn npv_13_a_volume_published_read_only_cannot_be_written_in_any_mode() {
    for (kind, capability, size) in kinds() {
        let mut volume = Volume::new(&format!("read-{kind}"), capability, size).await;
        volume.stage().await.unwrap();
        for mode in [
            Mode::SingleNodeWriter,
            Mode::SingleNodeSingleWriter,
            Mode::SingleNodeMultiWriter,
        ] {
            volume.capability.access_mode = Some(AccessMode { mode: mode.into() });
            volume.publish("target", false).await.unwrap();
            volume.write("target", "data").await.unwrap();
            let reader = volume.publish("target", true).await;
            assert_eq!(code(&reader), Code::AlreadyExists, "{kind} {mode:?}");
            volume.unpublish("target").await.unwrap();

            volume.publish("target", true).await.unwrap();
            let refused = volume.write("target", "more").await.unwrap_err();
            let why = if volume.is_block() {
                "Operation not permitted"
            } else {
                "Read-only file system"
            };
            assert!(refused.contains(why), "{kind} {mode:?}: {refused}");
            assert_eq!(volume.read("target").await, "data", "{kind} {mode:?}");
            let writer = volume.publish("target", false).await;
            assert_eq!(code(&writer), Code::AlreadyExists, "{kind} {mode:?}");
            volume.unpublish("target").await.unwrap();
        }
        volume.unstage().await.unwrap();
        volume.end().await;
    }
}

#[tokio::test]
async fn nsv_17_npv_20_a_context_of_another_volume_is_refused_and_keys_of_other_components_are_not()
{
    let (_, capability, size) = kinds().into_iter().next().unwrap();
    let other = Volume::new("context-other", capability.clone(), size).await;
    let mut volume = Volume::new("context", capability, size).await;
    let own = volume.context.clone();
    volume.context.clone_from(&other.context);
    let refused = volume.stage().await;
    assert_eq!(code(&refused), Code::InvalidArgument, "{refused:?}");
    volume.context.clone_from(&own);
    let key = "storage.kubernetes.io/csiProvisionerIdentity".to_owned();
    volume.context.insert(key, "x".to_owned());
    volume.stage().await.unwrap();

    // A contradicting context is not a repeat, and the refused publish leaves nothing.
    volume.context.extend(other.context.clone());
    let refused = [volume.stage().await, volume.publish("target", false).await];
    for refused in refused {
        assert_eq!(code(&refused), Code::InvalidArgument, "{refused:?}");
    }
    assert!(!volume.folder.join("target").exists());
    volume.context.extend(own);
    volume.publish("target", false).await.unwrap();
    volume.unpublish("target").await.unwrap();
    volume.unstage().await.unwrap();
    volume.end().await;
    other.end().await;
}

#[tokio::test]
async fn npv_14_the_mount_flags_apply_at_the_target_too() {
    for (kind, flag, shown) in [
        ("ext4", "commit=30", "commit=30"),
        ("xfs", "swalloc", "swalloc"),
        ("btrfs", "commit=29", "commit=29"),
    ] {
        let kinds = kinds();
        let (_, capability, size) = kinds.into_iter().find(|row| row.0 == kind).unwrap();
        let mut volume = Volume::new(&format!("flags-{kind}"), capability, size).await;
        volume.capability.access_type = Some(AccessType::Mount(MountVolume {
            mount_flags: vec!["noexec".to_owned(), flag.to_owned()],
            ..MountVolume::default()
        }));
        volume.stage().await.unwrap();
        volume.publish("target", false).await.unwrap();
        let script = "cp /bin/true target/program; ! target/program 2>error; cat error
            findmnt --noheadings --output OPTIONS --target target";
        let output = volume.shell(script, &[]).await.unwrap();
        for part in ["Permission denied", "noexec", "nosuid", "nodev", shown] {
            assert!(output.contains(part), "{kind}: {part} is not in {output}");
        }
        volume.unpublish("target").await.unwrap();
        volume.unstage().await.unwrap();
        volume.end().await;
    }
}

/// A description, a change to the request, and the code of its answer while the volume is staged.
type Row = (&'static str, fn(&mut NodePublishVolumeRequest), Code);

const UNPUBLISHABLE: &[Row] = &[
    (
        "NPV-19: not staged there",
        |request| request.staging_target_path.push_str("-elsewhere"),
        Code::FailedPrecondition,
    ),
    (
        "NPV-08: an unknown volume",
        |request| request.volume_id.push_str("-unknown"),
        Code::NotFound,
    ),
    (
        "NPV-09: a mode that it was not created for",
        |request| {
            let mode = Mode::MultiNodeMultiWriter.into();
            let capability = request.volume_capability.as_mut().unwrap();
            capability.access_mode = Some(AccessMode { mode });
        },
        Code::FailedPrecondition,
    ),
    (
        "NPV-09: another filesystem",
        |request| request.volume_capability = Some(mounted("xfs", Mode::SingleNodeWriter)),
        Code::FailedPrecondition,
    ),
    (
        "NPV-10: below a missing directory",
        |request| request.target_path.push_str("/below"),
        Code::FailedPrecondition,
    ),
];

// Shows: NPV-19.
#[tokio::test]
async fn npv_22_a_publish_that_failed_leaves_no_target() {
    for (kind, capability, size) in kinds() {
        // One row requests XFS as another filesystem.
        if kind == "xfs" {
            continue;
        }
        let volume = Volume::new(&format!("refused-{kind}"), capability, size).await;
        let early = volume.publish("target", false).await;
        assert_eq!(code(&early), Code::FailedPrecondition, "NPV-19: {kind}");
        assert!(!volume.folder.join("target").exists(), "{kind}");
        volume.stage().await.unwrap();
        for (what, change, expected) in UNPUBLISHABLE {
            let mut request = volume.publish_request("target");
            change(&mut request);
            let answer = volume.publish_as(request).await;
            assert_eq!(code(&answer), *expected, "{kind}, {what}: {answer:?}");
            assert!(!volume.folder.join("target").exists(), "{kind}, {what}");
        }
        volume.publish("target", false).await.unwrap();
        volume.unpublish("target").await.unwrap();
        volume.unstage().await.unwrap();
        volume.end().await;
    }
}

#[tokio::test]
async fn nup_07_nup_08_one_target_is_removed_with_all_its_mounts_and_no_other() {
    for (kind, capability, size) in kinds() {
        let mut volume = Volume::new(&format!("stacked-{kind}"), capability, size).await;
        let mode = Mode::SingleNodeMultiWriter.into();
        volume.stage().await.unwrap();
        volume.capability.access_mode = Some(AccessMode { mode });
        for target in ["one", "other"] {
            volume.publish(target, false).await.unwrap();
        }
        volume.write("one", "data").await.unwrap();
        // Two concurrent drivers, one of which died, might have left this.
        volume.shell("mount --bind other one", &[]).await.unwrap();
        assert_eq!(volume.mounts_at("one"), 2, "{kind}");
        volume.unpublish("one").await.unwrap();
        assert!(!volume.folder.join("one").exists(), "{kind}");
        assert_eq!(volume.read("other").await, "data", "{kind}");
        volume.write("other", "more").await.unwrap();
        // A new pod, after the last one ended and before the volume is unstaged.
        volume.unpublish("other").await.unwrap();
        volume.publish("one", false).await.unwrap();
        assert_eq!(volume.read("one").await, "more", "{kind}");
        volume.unpublish("one").await.unwrap();
        volume.unstage().await.unwrap();
        volume.end().await;
    }
}

#[tokio::test]
async fn nup_09_a_foreign_file_at_a_target_is_not_removed() {
    for (kind, capability, size) in kinds() {
        let volume = Volume::new(&format!("foreign-{kind}"), capability, size).await;
        for (make, file) in [
            ("mkdir target; echo data > target/file", "target/file"),
            ("echo data > target", "target"),
        ] {
            volume.shell(make, &[]).await.unwrap();
            let refused = volume.unpublish("target").await;
            assert_eq!(code(&refused), Code::FailedPrecondition, "{kind}: {make}");
            let read = volume.shell("cat \"$1\"; rm -r target", &[file]).await;
            assert_eq!(read.unwrap(), "data", "{kind}: {make}");
        }
        volume.end().await;
    }
}

/// A relative path with which a path below a folder has this length. Its components fit the name limit.
fn long(folder: &std::path::Path, length: usize) -> String {
    let mut path = String::new();
    let missing = |path: &str| length - folder.as_os_str().len() - 1 - path.len();
    while missing(&path) > 255 {
        path.push_str(&"p".repeat(200));
        path.push('/');
    }
    path.push_str(&"p".repeat(missing(&path)));
    path
}

// Every plugin must accept 128 bytes, and the kernel accepts at most 4095.
// Shows: NSV-11, NSV-18, NUS-09, NUP-10, NGS-08, NGS-12, NEV-11, FLD-04.
#[tokio::test]
async fn npv_15_npv_31_paths_may_be_as_long_as_the_kernel_accepts() {
    for (kind, capability, _) in kinds().into_iter().filter(|row| row.2 == SIZE) {
        let mut volume = Volume::new(&format!("long-{kind}"), capability, SIZE).await;
        let folder = volume.folder.clone();
        for length in [128, 4095] {
            volume.folder = folder.join("s");
            let staging = long(&volume.folder, length);
            let mut stage = volume.stage_request();
            stage.staging_target_path = volume.path(&staging);
            std::fs::create_dir_all(&stage.staging_target_path).unwrap();
            volume.folder = folder.join("t");
            let target = long(&volume.folder, length);
            let mut publish = volume.publish_request(&target);
            publish
                .staging_target_path
                .clone_from(&stage.staging_target_path);
            let parent = std::path::Path::new(&publish.target_path).parent();
            std::fs::create_dir_all(parent.unwrap()).unwrap();
            let paths = [&stage.staging_target_path, &publish.target_path];
            let [at_staging, at_target] = paths.map(Clone::clone);
            assert_eq!((at_staging.len(), at_target.len()), (length, length));
            for _ in 0..2 {
                volume.stage_as(stage.clone()).await.unwrap();
                volume.publish_as(publish.clone()).await.unwrap();
                let usage = volume.statistics(&at_staging).await.unwrap();
                assert_eq!(volume.statistics(&at_target).await.unwrap(), usage);
            }
            for volume_path in [&at_staging, &at_target] {
                let request = NodeExpandVolumeRequest {
                    volume_id: volume.id.clone(),
                    volume_path: volume_path.clone(),
                    capacity_range: range(SIZE, Bytes::ZERO),
                    ..NodeExpandVolumeRequest::default()
                };
                let mut node = shared().await.node_client().await;
                let grown = node.node_expand_volume(request).await.unwrap();
                assert_eq!(grown.into_inner().capacity_bytes, SIZE.to_i64());
            }
            volume.write(&target, "data").await.unwrap();
            volume.unpublish(&target).await.unwrap();
            assert!(!std::path::Path::new(&at_target).exists());
            volume.folder = folder.join("s");
            volume.unstage_from(&staging).await.unwrap();
        }
        volume.folder = folder;
        volume.end().await;
    }
}
