//! NGS: the statistics of a volume, for every kind of volume.

use std::{collections::BTreeMap, time::Duration};

use cistern_e2e::Frozen;
use cistern_proto::csi::v1::{NodeGetCapabilitiesRequest, VolumeUsage, volume_usage::Unit};
use futures::future::join_all;
use tokio::time::timeout;
use tonic::Code;

use crate::{
    SIZE, code, shared,
    volume::{Volume, kinds},
};

const MIB: i64 = 1 << 20;

/// Total, used and available for each reported unit.
fn numbers(usage: &[VolumeUsage]) -> BTreeMap<&'static str, [i64; 3]> {
    let mut numbers = BTreeMap::new();
    for entry in usage {
        let all = [entry.total, entry.used, entry.available];
        assert!(all.iter().all(|number| *number >= 0), "{entry:?}");
        assert!(entry.total > 0, "{entry:?}");
        let unit = entry.unit();
        assert!(matches!(unit, Unit::Bytes | Unit::Inodes), "{entry:?}");
        assert_eq!(numbers.insert(unit.as_str_name(), all), None, "{usage:?}");
    }
    numbers
}

/// The numbers that df prints.
async fn df(volume: &Volume, columns: &str) -> [i64; 3] {
    let script = r#"df --block-size=1 --output="$1" target | tail -1"#;
    let text = volume.shell(script, &[columns]).await.unwrap();
    let mut numbers = text.split_whitespace().map(|n| n.parse().unwrap());
    [(); 3].map(|()| numbers.next().unwrap())
}

// Shows: NGS-05, NGS-10.
#[tokio::test]
async fn ngs_06_ngs_09_the_statistics_are_those_of_df_or_the_size_of_the_device() {
    for (kind, capability, size) in kinds() {
        let volume = Volume::new(&format!("numbers-{kind}"), capability, size).await;
        volume.stage().await.unwrap();
        volume.publish("target", false).await.unwrap();
        let (staging, target) = (volume.path("staging"), volume.path("target"));
        let usage = volume.statistics(&target).await.unwrap();
        assert_eq!(volume.statistics(&staging).await.unwrap(), usage, "{kind}");
        let before = numbers(&usage);
        if volume.is_block() {
            assert_eq!(before, [("BYTES", [size.to_i64(), 0, 0])].into());
        } else {
            let script = "head -c 4M /dev/urandom > target/data; sync -f target";
            volume.shell(script, &[]).await.unwrap();
            let now = numbers(&volume.statistics(&target).await.unwrap());
            let [_, was_used, _] = before["BYTES"];
            assert!(now["BYTES"][1] - was_used >= 4 * MIB, "{kind}: {now:?}");
            assert_eq!(now["BYTES"], df(&volume, "size,used,avail").await, "{kind}");
            let inodes = df(&volume, "itotal,iused,iavail").await;
            // A filesystem without a limit reports none.
            let expected = (inodes[0] > 0).then_some(inodes);
            assert_eq!(now.get("INODES").copied(), expected, "{kind}");
            assert!(now["BYTES"][0] <= size.to_i64(), "{kind}: {now:?}");
        }
        volume.unpublish("target").await.unwrap();
        volume.unstage().await.unwrap();
        volume.end().await;
    }
}

#[tokio::test]
async fn ngs_04_a_volume_has_statistics_only_at_its_own_paths() {
    for (kind, capability, size) in kinds() {
        let other = Volume::new(&format!("other-{kind}"), capability.clone(), size).await;
        let volume = Volume::new(&format!("here-{kind}"), capability, size).await;
        other.stage().await.unwrap();
        volume.shell("ln -s target link", &[]).await.unwrap();
        let target = volume.path("target");
        for path in [target.clone(), volume.path("staging")] {
            let unstaged = volume.statistics(&path).await;
            assert_eq!(code(&unstaged), Code::NotFound, "{kind}: {path}");
        }
        volume.stage().await.unwrap();
        volume.publish("target", false).await.unwrap();
        volume.statistics(&target).await.unwrap();
        for wrong in [
            other.path("staging"),
            volume.path(""),
            volume.path("target/no/such/file"),
            "/".to_owned(),
            "/no/such/path".to_owned(),
            "some/path".to_owned(),
            volume.path("link"),
            volume.path("link/below"),
            volume.path("target/.."),
            volume.path(&"long/".repeat(1000)),
            volume.path(&"long".repeat(100)),
        ] {
            let answer = volume.statistics(&wrong).await;
            assert_eq!(code(&answer), Code::NotFound, "{kind}: {wrong:.200}");
        }
        volume.unpublish("target").await.unwrap();
        let gone = volume.statistics(&target).await;
        assert_eq!(code(&gone), Code::NotFound, "{kind}");
        for volume in [volume, other] {
            volume.unstage().await.unwrap();
            volume.end().await;
        }
    }
}

#[tokio::test]
async fn ngs_11_a_frozen_filesystem_delays_neither_its_statistics_nor_other_calls() {
    for (kind, capability, size) in kinds() {
        let volume = Volume::new(&format!("frozen-{kind}"), capability, size).await;
        if volume.is_block() {
            volume.end().await;
            continue;
        }
        volume.stage().await.unwrap();
        let asked = volume.path("staging");
        let mut thaw = shared().await.command_on_node("fsfreeze");
        thaw.args(["--unfreeze", &asked]);
        let frozen = Frozen::until_dropped(thaw);
        volume
            .shell("fsfreeze --freeze staging", &[])
            .await
            .unwrap();
        let patience = Duration::from_mins(2);
        let answer = timeout(patience, volume.statistics(&asked)).await;
        let mut client = shared().await.node_client().await;
        let request = NodeGetCapabilitiesRequest {};
        let alive = client.node_get_capabilities(request).await;
        drop(frozen);
        let answer = answer.unwrap_or_else(|_| panic!("{kind}: no answer"));
        let legal = [Code::Ok, Code::DeadlineExceeded];
        assert!(legal.contains(&code(&answer)), "{kind}: {answer:?}");
        alive.unwrap();
        volume.statistics(&asked).await.unwrap();
        volume.unstage().await.unwrap();
        volume.end().await;
    }
}

// Shows: CON-05.
#[tokio::test]
async fn ngs_05_concurrent_calls_are_answered() {
    let (_, capability, _) = kinds().into_iter().next().unwrap();
    let volume = Volume::new("asked", capability, SIZE).await;
    volume.stage().await.unwrap();
    let path = volume.path("staging");
    let answers = join_all((0..64).map(|_| volume.statistics(&path))).await;
    for answer in answers {
        answer.unwrap();
    }
    volume.unstage().await.unwrap();
    volume.end().await;
}
