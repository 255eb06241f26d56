//! What the front refuses: every request but those of a program that may read the VolumeSnapshot, about snapshots of one volume.

use cistern_crds::Bytes;
use cistern_e2e::ControlPlane;
use kube::ResourceExt as _;
use tonic::{Code, Status};

use super::front::{AUDIENCE, Allocated, Delta, Front, PROGRAM, Published};
use crate::Fixture;

/// Two snapshots of one volume and one of another.
const SNAPSHOTS: [&str; 3] = ["first", "second", "other"];

struct Refusals {
    front: Front,
    allocated: Allocated,
    delta: Delta,
}

impl Refusals {
    /// Requests that are answered.
    async fn new(front: Front, handles: &[String; 3]) -> Self {
        let token = front.token(PROGRAM, Some(AUDIENCE)).await;
        let allocated = Allocated {
            token: token.clone(),
            namespace: "default".to_owned(),
            snapshot: handles[1].clone(),
            ..Allocated::default()
        };
        let delta = Delta {
            token,
            namespace: "default".to_owned(),
            base: handles[0].clone(),
            snapshot: handles[1].clone(),
            ..Delta::default()
        };
        front.allocated(allocated.clone()).await.unwrap();
        front.changed(delta.clone()).await.unwrap();
        Self {
            front,
            allocated,
            delta,
        }
    }

    /// How a changed request of either kind is refused.
    async fn both(&self, change: impl Fn(&mut Asked<'_>)) -> Status {
        let (mut allocated, mut delta) = (self.allocated.clone(), self.delta.clone());
        change(&mut Asked {
            token: &mut allocated.token,
            namespace: &mut allocated.namespace,
            snapshot: &mut allocated.snapshot,
            offset: &mut allocated.offset,
            most: &mut allocated.most,
        });
        change(&mut Asked {
            token: &mut delta.token,
            namespace: &mut delta.namespace,
            snapshot: &mut delta.snapshot,
            offset: &mut delta.offset,
            most: &mut delta.most,
        });
        let one = self.front.allocated(allocated).await.unwrap_err();
        let other = self.front.changed(delta).await.unwrap_err();
        assert_eq!(one.code(), other.code(), "{one} / {other}");
        one
    }

    /// How a request with another base is refused.
    async fn base(&self, base: &str) -> Status {
        let mut ask = self.delta.clone();
        base.clone_into(&mut ask.base);
        self.front.changed(ask).await.unwrap_err()
    }
}

/// What both kinds of requests have.
struct Asked<'a> {
    token: &'a mut String,
    namespace: &'a mut String,
    snapshot: &'a mut String,
    offset: &'a mut i64,
    most: &'a mut i32,
}

#[tokio::test]
async fn kubernetes_front_answers_only_who_may_read_the_snapshot_and_only_about_one_volume() {
    let control_plane = ControlPlane::start().await;
    let node = Fixture::start_with(&control_plane, "agent-front").await;
    let volume = node.block_volume("v", Bytes::mib(16)).await;
    let other = node.block_volume("w", Bytes::mib(16)).await;
    let front = Front::start(&control_plane, &node).await;
    let mut handles = Vec::new();
    for (name, volume) in SNAPSHOTS.into_iter().zip([&volume, &volume, &other]) {
        let snapshot = node.snapshot(name, volume).await;
        front.publish_ready(&snapshot).await;
        handles.push(snapshot.name_any());
    }
    let handles: [String; 3] = handles.try_into().unwrap();
    let refusals = Refusals::new(front, &handles).await;
    tokens(&refusals).await;
    objects(&refusals, &handles).await;
    ranges(&refusals, &handles).await;
    node.remove_snapshots().await;
    for volume in [volume, other] {
        node.remove(&volume.name_any()).await;
    }
    node.finish().await;
}

/// Without a token that is valid here and now, or without the right, nothing is said of any snapshot.
async fn tokens(refusals: &Refusals) {
    let front = &refusals.front;
    let mut stolen = front.token(PROGRAM, Some(AUDIENCE)).await;
    stolen.truncate(stolen.len() - 8);
    for token in [
        String::new(),
        "x".to_owned(),
        stolen,
        front.token(PROGRAM, None).await,
        front.token(PROGRAM, Some("another")).await,
    ] {
        let refused = refusals.both(|it| it.token.clone_from(&token)).await;
        let code = refused.code();
        assert!(
            matches!(code, Code::Unauthenticated | Code::InvalidArgument),
            "{refused}"
        );
    }
    let somebody = front.token("somebody", Some(AUDIENCE)).await;
    let refused = refusals.both(|it| it.token.clone_from(&somebody)).await;
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let elsewhere = |it: &mut Asked<'_>| "kube-system".clone_into(it.namespace);
    let refused = refusals.both(elsewhere).await;
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let gone = front.token_of_deleted_account().await;
    let refused = refusals.both(|it| it.token.clone_from(&gone)).await;
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
}

/// A VolumeSnapshot that is missing, not ready, of another driver or without an image.
async fn objects(refusals: &Refusals, [first, _, _]: &[String; 3]) {
    let front = &refusals.front;
    let ready = Published::of(first);
    let pending = Published {
        ready: false,
        ..ready
    };
    let driver = "csi.example.com";
    let foreign = Published { driver, ..ready };
    let deleted = Published {
        class: Some("deleted"),
        ..ready
    };
    for (name, published) in [
        ("pending", pending),
        ("foreign", foreign),
        ("lost", Published::of("lost")),
        ("classless", deleted),
    ] {
        front.publish(name, published).await;
    }
    for (name, code) in [
        ("", Code::InvalidArgument),
        ("none", Code::Unavailable),
        ("pending", Code::Unavailable),
        ("foreign", Code::InvalidArgument),
        ("lost", Code::NotFound),
        ("classless", Code::Unavailable),
    ] {
        let refused = refusals.both(|it| name.clone_into(it.snapshot)).await;
        assert_eq!(refused.code(), code, "{name}: {refused}");
    }
    let refused = refusals.both(|it| it.namespace.clear()).await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}

/// Places outside of the snapshot, and a base that is none.
async fn ranges(refusals: &Refusals, [_, second, other]: &[String; 3]) {
    for offset in [-1, 17 << 20, i64::MAX] {
        let refused = refusals.both(|it| *it.offset = offset).await;
        assert_eq!(refused.code(), Code::OutOfRange, "{offset}: {refused}");
    }
    let refused = refusals.both(|it| *it.most = -1).await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    for (base, code, says) in [
        ("", Code::InvalidArgument, ""),
        ("none", Code::NotFound, "none"),
        (other, Code::InvalidArgument, "volume"),
    ] {
        let refused = refusals.base(base).await;
        assert_eq!(refused.code(), code, "{base}: {refused}");
        assert!(refused.message().contains(says), "{refused}");
    }
    // The same snapshot has changed nowhere.
    let mut same = refusals.delta.clone();
    same.base.clone_from(second);
    assert!(refusals.front.changed(same).await.unwrap().is_empty());
}
