//! NSV, NUS: stage and unstage, for every kind of volume.

use std::fs;

use cistern_proto::csi::v1::{
    NodeStageVolumeRequest,
    volume_capability::{AccessType, MountVolume, access_mode::Mode},
};
use tonic::Code;

use crate::{
    SIZE, block, code, mounted,
    volume::{Volume, kinds},
};

// Shows: NSV-05, NSV-09, NSV-13, NUS-05, NPV-06, NPV-10, NPV-11, NPV-12, NUP-04, NUP-05.
#[tokio::test]
async fn nsv_15_nus_04_the_data_of_a_pod_is_in_the_image_and_the_next_pod_reads_it() {
    for (kind, capability, size) in kinds() {
        let volume = Volume::new(&format!("again-{kind}"), capability, size).await;
        for (before, now) in [("", "first"), ("first", "second")] {
            for _ in 0..2 {
                volume.stage().await.unwrap();
                assert!(!volume.folder.join("target").exists());
            }
            for _ in 0..2 {
                volume.publish("target", false).await.unwrap();
            }
            assert_eq!(volume.mounts_at("target"), 1, "{kind}");
            let in_staging = usize::from(!volume.is_block());
            assert_eq!(volume.mounts_at("staging"), in_staging, "{kind}");
            let what = if volume.is_block() { "-b" } else { "-d" };
            volume
                .shell(r#"test "$1" "$2""#, &[what, "target"])
                .await
                .unwrap();
            if !before.is_empty() {
                assert_eq!(volume.read("target").await, before, "{kind}");
            }
            volume.write("target", now).await.unwrap();
            for _ in 0..2 {
                volume.unpublish("target").await.unwrap();
                let error = fs::symlink_metadata(volume.folder.join("target")).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{kind}");
            }
            for _ in 0..2 {
                volume.unstage().await.unwrap();
            }
            volume.until_nothing_is_attached().await;
            let left = fs::read_dir(volume.folder.join("staging")).unwrap();
            assert_eq!(left.count(), 0, "{kind}");
            volume
                .shell(r#"grep -q "$1" "$2""#, &[now, &volume.image()])
                .await
                .unwrap();
        }
        volume.end().await;
    }
}

/// A description, a change to the request, and the codes of its answers before and after the volume is
/// staged.
type Row = (&'static str, fn(&mut NodeStageVolumeRequest), Code, Code);

const OTHERS: &[Row] = &[
    (
        "another filesystem",
        |request| request.volume_capability = Some(mounted("xfs", Mode::SingleNodeWriter)),
        Code::FailedPrecondition,
        Code::AlreadyExists,
    ),
    (
        "a device",
        |request| request.volume_capability = Some(block()),
        Code::FailedPrecondition,
        Code::AlreadyExists,
    ),
    (
        "read-only",
        |request| request.volume_capability = Some(mounted("", Mode::SingleNodeReaderOnly)),
        Code::Ok,
        Code::AlreadyExists,
    ),
    (
        "other mount flags",
        |request| flags(request, &["noexec"]),
        Code::Ok,
        Code::AlreadyExists,
    ),
    (
        "several nodes",
        |request| request.volume_capability = Some(mounted("", Mode::MultiNodeMultiWriter)),
        Code::FailedPrecondition,
        Code::FailedPrecondition,
    ),
    (
        "flags that are not supported",
        |request| flags(request, &["dev"]),
        Code::InvalidArgument,
        Code::InvalidArgument,
    ),
];

fn flags(request: &mut NodeStageVolumeRequest, flags: &[&str]) {
    let capability = request.volume_capability.as_mut().unwrap();
    capability.access_type = Some(AccessType::Mount(MountVolume {
        mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        ..MountVolume::default()
    }));
}

// Shows: NSV-15: no request formats an existing filesystem again.
#[tokio::test]
async fn nsv_06_nsv_08_a_volume_is_staged_with_one_capability_at_a_time_and_only_with_its_own() {
    let capability = mounted("ext4", Mode::SingleNodeWriter);
    let volume = Volume::new("ways", capability, SIZE).await;
    volume.stage().await.unwrap();
    volume.write("staging", "data").await.unwrap();
    volume.unstage().await.unwrap();
    for (what, change, unstaged, staged) in OTHERS {
        let mut other = volume.stage_request();
        change(&mut other);
        let answer = volume.stage_as(other.clone()).await;
        assert_eq!(code(&answer), *unstaged, "{what}: {answer:?}");
        volume.unstage().await.unwrap();
        volume.stage().await.unwrap();
        let answer = volume.stage_as(other).await;
        assert_eq!(code(&answer), *staged, "{what}: {answer:?}");
        assert_eq!(volume.mounts_at("staging"), 1, "{what}");
        // The volume is unchanged.
        volume.stage().await.unwrap();
        assert_eq!(volume.read("staging").await, "data", "{what}");
        volume.write("staging", "data").await.unwrap();
        volume.unstage().await.unwrap();
    }
    volume.end().await;
}

/// An obstacle to a stage, and the scripts that create and remove it. They run in the volume's folder,
/// with its image as `$1`.
const OBSTACLES: &[(&str, &str, &str)] = &[
    ("no staging path", "rmdir staging", "mkdir staging"),
    (
        "a file at the staging path",
        "rmdir staging; touch staging",
        "rm staging; mkdir staging",
    ),
    (
        "a link at the staging path",
        "mv staging behind; ln -s behind staging",
        "rm staging; mv behind staging",
    ),
    (
        "another mount at the staging path",
        "mount -t tmpfs none staging",
        "umount staging",
    ),
    (
        "no filesystem in the image",
        r#"dd if="$1" of=head bs=4096 count=1 status=none
           dd if=/dev/zero of="$1" bs=4096 count=1 conv=notrunc status=none"#,
        r#"dd if=head of="$1" bs=4096 count=1 conv=notrunc status=none"#,
    ),
    ("no image", r#"mv "$1" "$1.away""#, r#"mv "$1.away" "$1""#),
];

#[tokio::test]
async fn nsv_16_a_failed_stage_leaves_nothing_behind_and_the_next_one_succeeds() {
    let capability = mounted("ext4", Mode::SingleNodeWriter);
    let volume = Volume::new("hindered", capability, SIZE).await;
    volume.stage().await.unwrap();
    volume.write("staging", "data").await.unwrap();
    volume.unstage().await.unwrap();
    let image = volume.image();
    for (what, obstruct, clear) in OBSTACLES {
        volume.shell(obstruct, &[&image]).await.unwrap();
        let answer = volume.stage().await;
        assert_ne!(code(&answer), Code::Ok, "{what}");
        volume.shell(clear, &[&image]).await.unwrap();
        volume.until_nothing_is_attached().await;
        volume
            .stage()
            .await
            .unwrap_or_else(|status| panic!("{what}: {status}"));
        assert_eq!(volume.read("staging").await, "data", "{what}");
        volume.unstage().await.unwrap();
    }
    volume.end().await;
}

// Shows: NUS-05: a path without a staged volume is no error, and foreign files there are kept.
#[tokio::test]
async fn nus_08_an_unstage_removes_no_foreign_file() {
    for (kind, capability, size) in kinds() {
        let volume = Volume::new(&format!("never-{kind}"), capability, size).await;
        for path in ["staging", "no-such-path", "no-such/path"] {
            volume.unstage_from(path).await.unwrap();
        }
        let script = "mkdir -p staging/below; echo data > staging/below/file";
        volume.shell(script, &[]).await.unwrap();
        volume.unstage().await.unwrap();
        let read = volume.shell("cat staging/below/file", &[]).await;
        assert_eq!(read.unwrap(), "data", "{kind}");
        volume.end().await;
    }
}
