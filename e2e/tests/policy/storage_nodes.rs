//! Statuses of StorageNodes that are exactly as large as is permitted.

use cistern_crds::{Orphan, StorageNodeStatus, bounds};
use serde_json::{Value, json};

const SINCE: &str = "2026-01-01T00:00:00Z";

/// Returns a status with pools `p`, `q` and so on, in which every text that counts is set, and which counts as
/// many bytes as it may.
pub(crate) fn padded(pools: u8) -> StorageNodeStatus {
    let pools: Vec<_> = (b'p'..b'p' + pools).map(pool).collect();
    let status = json!({
        "poolsSummary": "p: ü",
        "conditions": [condition()],
        "drift": [finding(), finding()],
        "pools": pools,
        "disks": [disk()],
    });
    let mut status: StorageNodeStatus = serde_json::from_value(status).unwrap();
    let missing = |status: &StorageNodeStatus| status.allowed_bytes() - status.counted_bytes();
    let mut number = 0;
    while missing(&status) > 1000 {
        number += 1;
        // A list has 64 items at most.
        let pool = number % status.pools.len();
        let image = format!("uid-{number}");
        status.pools[pool].orphans.push(orphan(&image));
    }
    // A text of the schema holds 1024 characters, some of which are set already.
    let rest = missing(&status);
    fill_disks(&mut status);
    status.drift[0].message.push_str(&"x".repeat(rest / 2));
    status.drift[0]
        .object
        .push_str(&"x".repeat(rest - rest / 2));
    status
}

/// Returns variants of the status, by the place at which each has one byte more.
pub(crate) fn each_with_one_byte_more(
    status: &StorageNodeStatus,
) -> Vec<(&'static str, StorageNodeStatus)> {
    type Place = fn(&mut StorageNodeStatus) -> &mut String;
    let places: [(&'static str, Place); 28] = [
        ("summary", |it| &mut it.pools_summary),
        ("condition type", |it| &mut it.conditions[0].type_),
        ("condition reason", |it| &mut it.conditions[0].reason),
        ("condition message", |it| &mut it.conditions[0].message),
        ("drift kind", |it| &mut it.drift[0].kind),
        ("drift object", |it| &mut it.drift[1].object),
        ("drift message", |it| &mut it.drift[1].message),
        ("uid", |it| &mut it.pools[0].uid),
        ("filesystem", |it| {
            it.pools[0].filesystem_uuid.as_mut().unwrap()
        }),
        ("device", |it| it.pools[0].device.as_mut().unwrap()),
        ("identity", |it| {
            it.pools[0].device_identity.as_mut().unwrap()
        }),
        ("owner", |it| {
            &mut it.pools[0].belongs_to.as_mut().unwrap().node
        }),
        ("owner's machine", |it| {
            let owner = it.pools[0].belongs_to.as_mut().unwrap();
            owner.machine_id.as_mut().unwrap()
        }),
        ("owner's pool", |it| {
            &mut it.pools[0].belongs_to.as_mut().unwrap().pool_uid
        }),
        ("pool's reason", |it| &mut it.pools[0].conditions[0].reason),
        ("pool's message", |it| {
            &mut it.pools[0].conditions[0].message
        }),
        ("problem's reason", |it| &mut it.pools[0].problems[0].reason),
        ("problem's message", |it| {
            &mut it.pools[0].problems[0].message
        }),
        ("orphan", |it| &mut orphan_of(it).image),
        ("orphan's node", |it| {
            orphan_of(it).belongs_to.as_mut().unwrap()
        }),
        ("orphan's name", |it| {
            &mut orphan_of(it).identity.as_mut().unwrap().name
        }),
        ("orphan's source", |it| {
            let identity = orphan_of(it).identity.as_mut().unwrap();
            identity.source_volume.as_mut().unwrap()
        }),
        ("disk", |it| &mut it.disks[0].name),
        ("disk's path", |it| it.disks[0].path.as_mut().unwrap()),
        ("disk's model", |it| it.disks[0].model.as_mut().unwrap()),
        ("disk's serial", |it| it.disks[0].serial.as_mut().unwrap()),
        ("disk's pool", |it| it.disks[0].pool.as_mut().unwrap()),
        ("disk's fault", |it| it.disks[0].unusable.as_mut().unwrap()),
    ];
    let longer = places.into_iter().map(|(name, place)| {
        let mut status = status.clone();
        place(&mut status).push('x');
        (name, status)
    });
    longer.collect()
}

fn orphan_of(status: &mut StorageNodeStatus) -> &mut Orphan {
    status
        .pools
        .last_mut()
        .unwrap()
        .orphans
        .first_mut()
        .unwrap()
}

/// Adds disks until they count as many bytes as they may.
fn fill_disks(status: &mut StorageNodeStatus) {
    let missing = |status: &StorageNodeStatus| bounds::ALL_DISKS - status.disk_bytes();
    let mut serials = 0;
    while missing(status) > 1000 {
        let mut disk = status.disks[0].clone();
        disk.serial = Some("s".repeat(128));
        disk.path = Some("x".repeat(256));
        status.disks.push(disk);
        serials += 1;
    }
    assert!(serials + 1 < bounds::DISKS);
    let mut rest = missing(status);
    for disk in &mut status.disks {
        let model = disk.model.as_mut().unwrap();
        let more = rest.min(100);
        model.push_str(&"x".repeat(more));
        rest -= more;
    }
    assert_eq!(missing(status), 0);
}

fn disk() -> Value {
    json!({"name": "d", "path": "ü", "model": "ü", "serial": "ü", "size": "1Gi", "rotational": true,
        "pool": "p", "unusable": "ü"})
}

fn pool(name: u8) -> Value {
    json!({
        "name": char::from(name).to_string(),
        "uid": "u",
        "filesystemUuid": "u",
        "device": "/dev/ü",
        "deviceIdentity": "ü",
        "belongsTo": {"node": "b", "machineId": "m", "poolUid": "u", "filesystemUuid": "f"},
        "conditions": [condition()],
        "problems": [{"severity": "Degraded", "reason": "R", "message": "ü", "since": SINCE}],
        "orphans": [orphan::<Value>("uid-0")],
    })
}

fn condition() -> Value {
    json!({"type": "Ready", "status": "True", "reason": "Reconciled", "message": "ü",
        "lastTransitionTime": SINCE})
}

fn finding() -> Value {
    json!({"kind": "Stray", "object": "ü", "message": "ü", "since": SINCE})
}

fn orphan<T: serde::de::DeserializeOwned>(image: &str) -> T {
    let orphan = json!({
        "image": image,
        "size": "1Gi",
        "since": SINCE,
        "belongsTo": "n",
        "identity": {
            "kind": "Snapshot",
            "name": "n",
            "sourceVolume": "v",
            "sourceImage": "i",
            "creationTime": SINCE,
            "volumeSize": "1Gi",
            "accessType": "Block",
            "provisioning": "Thin",
        },
    });
    serde_json::from_value(orphan).unwrap()
}
