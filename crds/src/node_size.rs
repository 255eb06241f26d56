//! Size of the status of a StorageNode: how it is counted, and what is left out of one that is too large.
//!
//! *Invariant:* `manifests/base/node-policy.yaml` counts the same and refuses what is larger. A shortened
//! status keeps what identifies a pool and every number; it loses the last orphans and drift findings, whose
//! number it states, and then the ends of messages. The disks have a size of their own, and lose the last.

use crate::{
    bounds::{self, ALL_DISKS, DISK, DISKS, ENTRY, FIRST_POOL, FURTHER_POOL, ORPHAN, POOL},
    condition::Condition,
    disk::Disk,
    drift::{Drift, Orphan},
    health::PoolProblem,
    node::{NodePoolStatus, PoolOwner, StorageNodeStatus},
};

/// Bytes to which all messages are truncated, one after another, until the status is small enough.
const MESSAGES: [usize; 5] = [512, 256, 128, 64, 0];

impl StorageNodeStatus {
    /// Bytes that count towards [`Self::allowed_bytes`]: all texts, and a fixed number for each pool and
    /// each entry of a list, which covers its numbers, times and field names.
    pub fn counted_bytes(&self) -> usize {
        let pools: usize = self.pools.iter().map(of_pool).sum();
        let drift: usize = self.drift.iter().map(of_finding).sum();
        self.pools_summary.len() + of_conditions(&self.conditions) + drift + pools
    }

    /// Bytes that a status with this number of pools may count.
    pub fn allowed_bytes(&self) -> usize {
        FIRST_POOL - FURTHER_POOL + FURTHER_POOL * self.pools.len().max(1)
    }

    /// Bytes of the disks, which may be [`ALL_DISKS`].
    pub fn disk_bytes(&self) -> usize {
        self.disks.iter().map(of_disk).sum()
    }

    /// Shortens the agent's part until the status has a permitted size.
    pub fn shorten(&mut self) {
        self.drop_last_disks();
        let allowed = self.allowed_bytes();
        let mut counted = self.counted_bytes();
        while counted > allowed
            && let Some(bytes) = self.drop_last_of_longest_list()
        {
            counted -= bytes;
        }
        for message in MESSAGES {
            if self.counted_bytes() <= allowed {
                return;
            }
            self.truncate_messages(message);
        }
    }

    /// Removes the last disks until the others have a permitted size, and counts them as unlisted.
    fn drop_last_disks(&mut self) {
        let mut counted = self.disk_bytes();
        while (counted > ALL_DISKS || self.disks.len() > DISKS)
            && let Some(disk) = self.disks.pop()
        {
            counted -= of_disk(&disk);
            self.unlisted_disks = self.unlisted_disks.saturating_add(1);
        }
    }

    /// Removes the last entry of the longest list of orphans or drift, and counts it as unlisted. Returns
    /// its bytes; None if all lists are empty.
    fn drop_last_of_longest_list(&mut self) -> Option<usize> {
        let longest = self.pools.iter_mut().max_by_key(|pool| pool.orphans.len());
        match longest {
            Some(pool) if pool.orphans.len() >= self.drift.len() => {
                let orphan = pool.orphans.pop()?;
                pool.unlisted_orphans = pool.unlisted_orphans.saturating_add(1);
                Some(of_orphan(&orphan))
            }
            Some(_) | None => {
                let finding = self.drift.pop()?;
                self.unlisted_drift = self.unlisted_drift.saturating_add(1);
                Some(of_finding(&finding))
            }
        }
    }

    fn truncate_messages(&mut self, bytes: usize) {
        for pool in &mut self.pools {
            let conditions = pool.conditions.iter_mut().map(|it| &mut it.message);
            let problems = pool.problems.iter_mut().map(|it| &mut it.message);
            for message in conditions.chain(problems) {
                *message = bounds::truncate(std::mem::take(message), bytes);
            }
        }
    }
}

fn of_pool(pool: &NodePoolStatus) -> usize {
    let identity = [&pool.filesystem_uuid, &pool.device, &pool.device_identity].map(Option::as_ref);
    let problems: usize = pool.problems.iter().map(of_problem).sum();
    let orphans: usize = pool.orphans.iter().map(of_orphan).sum();
    POOL + pool.name.len()
        + pool.uid.len()
        + identity.into_iter().map(length).sum::<usize>()
        + pool.belongs_to.as_ref().map_or(0, of_owner)
        + of_conditions(&pool.conditions)
        + problems
        + orphans
}

fn of_owner(owner: &PoolOwner) -> usize {
    let uuids = owner.pool_uid.len() + owner.filesystem_uuid.len();
    owner.node.len() + length(owner.machine_id.as_ref()) + uuids
}

fn of_conditions(conditions: &[Condition]) -> usize {
    let each = conditions.iter();
    each.map(|it| ENTRY + it.type_.len() + it.reason.len() + it.message.len())
        .sum()
}

fn of_problem(problem: &PoolProblem) -> usize {
    ENTRY + problem.reason.len() + problem.message.len()
}

fn of_finding(finding: &Drift) -> usize {
    ENTRY + finding.kind.len() + finding.object.len() + finding.message.len()
}

fn of_disk(disk: &Disk) -> usize {
    let texts = [
        &disk.path,
        &disk.model,
        &disk.serial,
        &disk.pool,
        &disk.unusable,
    ];
    let texts = texts.map(Option::as_ref).into_iter().map(length);
    DISK + disk.name.len() + texts.sum::<usize>()
}

fn of_orphan(orphan: &Orphan) -> usize {
    let identity = orphan.identity.as_ref().map_or(0, |it| {
        it.name.len() + length(it.source_volume.as_ref()) + length(it.source_image.as_ref())
    });
    ORPHAN + orphan.image.len() + length(orphan.belongs_to.as_ref()) + identity
}

fn length(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bounds,
        condition::ConditionStatus,
        drift::LISTED,
        drift::OrphanIdentity,
        health::PoolSeverity,
        node::{NodeEncryption, UdevRule},
        time,
        volume::SourceKind,
    };
    use chrono::DateTime;
    use cistern_types::{Bytes, Encryption, FilesystemType, Provisioning};
    use serde_json::{Value, json};

    /// Bytes of the longest type or reason, see [`bounds`].
    const OWN_NAME: usize = 24;
    /// A number with as many digits as the largest.
    const UNLISTED: u32 = 4_000_000_000;

    fn text(bytes: usize) -> String {
        "x".repeat(bytes)
    }

    fn condition(number: usize) -> Condition {
        Condition {
            type_: format!("{number:0>OWN_NAME$}"),
            status: ConditionStatus::Unknown.as_str().to_owned(),
            reason: text(OWN_NAME),
            message: text(bounds::MESSAGE),
            observed_generation: Some(i64::MAX),
            last_transition_time: time::to_kubernetes(DateTime::default()),
        }
    }

    fn orphan(number: usize) -> Orphan {
        Orphan {
            image: format!("{number:0>36}"),
            size: Bytes(u64::MAX),
            identity: Some(OrphanIdentity {
                kind: SourceKind::Snapshot,
                name: text(63),
                source_volume: Some(text(63)),
                source_image: Some(text(64)),
                creation_time: Some(DateTime::default()),
                volume_size: Bytes(u64::MAX),
                access_type: crate::AccessType::Filesystem,
                filesystem: Some(FilesystemType::Btrfs),
                encryption: Some(Encryption::Luks2),
                provisioning: Provisioning::Thick,
            }),
            since: DateTime::default(),
            belongs_to: Some(text(40)),
            trashed_since: Some(DateTime::default()),
        }
    }

    fn finding() -> Drift {
        Drift {
            kind: text(OWN_NAME),
            object: text(100),
            message: text(200),
            since: DateTime::default(),
        }
    }

    /// A pool about which everything is reported that an agent can report, in every field.
    fn largest_pool() -> NodePoolStatus {
        let problem = PoolProblem {
            severity: PoolSeverity::Unreachable,
            reason: text(OWN_NAME),
            message: text(bounds::PROBLEM),
            since: DateTime::default(),
        };
        NodePoolStatus {
            name: text(63),
            uid: text(64),
            filesystem_uuid: Some(text(64)),
            device: Some(text(bounds::DEVICE)),
            device_identity: Some(text(bounds::DEVICE_IDENTITY)),
            takeovers: u32::MAX,
            belongs_to: Some(PoolOwner {
                node: text(253),
                machine_id: Some(text(64)),
                pool_uid: text(64),
                filesystem_uuid: text(64),
            }),
            conditions: (0..2).map(condition).collect(),
            problems: vec![problem; bounds::PROBLEMS],
            orphans: (0..LISTED).map(orphan).collect(),
            size: Bytes(u64::MAX),
            size_unit: Some(Bytes(u64::MAX)),
            usable: Bytes(u64::MAX),
            empty: Bytes(u64::MAX),
            used: Bytes(u64::MAX),
            free: Bytes(u64::MAX),
            reserved: Bytes(u64::MAX),
            thin_room: Bytes(u64::MAX),
            thick_room: Bytes(u64::MAX),
            volumes: u32::MAX,
            snapshots: u32::MAX,
            reserved_for_snapshots: Bytes(u64::MAX),
            unlisted_orphans: UNLISTED,
        }
    }

    fn disk() -> Disk {
        Disk {
            name: text(bounds::NAME),
            path: Some(text(bounds::DISK_PATH)),
            model: Some(text(bounds::DISK_TEXT)),
            serial: Some(text(bounds::DISK_TEXT)),
            size: Bytes(u64::MAX),
            rotational: false,
            pool: Some(text(63)),
            unusable: Some(text(bounds::DISK_TEXT)),
        }
    }

    fn largest_status(pools: usize) -> StorageNodeStatus {
        StorageNodeStatus {
            pools: vec![largest_pool(); pools],
            pools_summary: text(76 * pools),
            drift: vec![finding(); LISTED],
            // Those of the operator.
            conditions: (0..5).map(condition).collect(),
            observed_generation: Some(i64::MAX),
            unlisted_drift: UNLISTED,
            disks: vec![disk(); DISKS],
            unlisted_disks: UNLISTED,
            transfer_key: Some(text(64)),
            encryption: Some(NodeEncryption {
                unavailable: Some(text(bounds::LACK)),
            }),
            udev_rule: Some(UdevRule::Installed),
        }
    }

    /// JSON in which each size and time has as many bytes as the schema permits.
    fn padded(value: &mut Value) {
        match value {
            Value::String(text) if text.parse::<Bytes>().is_ok() => *text = "9".repeat(32),
            Value::String(text) if DateTime::parse_from_rfc3339(text).is_ok() => {
                *text = "9".repeat(bounds::TIME);
            }
            Value::Array(items) => items.iter_mut().for_each(padded),
            Value::Object(fields) => fields.values_mut().for_each(padded),
            _ => {}
        }
    }

    fn json_bytes(status: &StorageNodeStatus) -> usize {
        let mut value = json!(status);
        padded(&mut value);
        value.to_string().len()
    }

    /// Bytes of the JSON of a status without pools and entries.
    const ENVELOPE: usize = 352;

    #[test]
    fn the_largest_status_that_an_agent_can_report_is_shortened_to_its_bound() {
        for pools in [0, 1, 2, 7, bounds::POOLS] {
            let mut status = largest_status(pools);
            let conditions = status.conditions.clone();
            status.shorten();
            assert!(status.counted_bytes() <= status.allowed_bytes(), "{pools}");
            assert_eq!(status.conditions, conditions, "they are not the agent's");
            for pool in &status.pools {
                assert_eq!(pool.device, largest_pool().device);
                assert_eq!(pool.problems.len(), bounds::PROBLEMS);
                let unlisted = pool.unlisted_orphans - UNLISTED;
                assert_eq!(
                    pool.orphans.len(),
                    LISTED - usize::try_from(unlisted).unwrap()
                );
            }
            let unlisted = usize::try_from(status.unlisted_drift - UNLISTED).unwrap();
            assert_eq!(status.drift.len() + unlisted, LISTED);
            assert!((8..DISKS).contains(&status.disks.len()));
            assert!(status.disk_bytes() <= ALL_DISKS);
            let unlisted = usize::try_from(status.unlisted_disks - UNLISTED).unwrap();
            assert_eq!(status.disks.len() + unlisted, DISKS);
        }
    }

    #[test]
    fn a_node_with_one_pool_lists_a_dozen_orphans_and_keeps_its_messages() {
        let mut status = largest_status(1);
        status.drift.clear();
        status.conditions.clear();
        status.pools[0].problems.clear();
        status.shorten();
        assert_eq!(status.pools[0].conditions, largest_pool().conditions);
        assert!((12..LISTED).contains(&status.pools[0].orphans.len()));
        // The oldest are listed.
        assert_eq!(status.pools[0].orphans[0], orphan(0));
    }

    #[test]
    fn a_node_with_thirty_two_usual_disks_lists_them_all() {
        let usual = Disk {
            name: "nvme10n1".to_owned(),
            path: Some("/dev/disk/by-id/nvme-eui.0025385b21404321".to_owned()),
            model: Some("SAMSUNG MZVL21T0HCLR-00B00".to_owned()),
            serial: Some("S676NF0R123456".to_owned()),
            size: Bytes::gib(953),
            rotational: false,
            pool: None,
            unusable: Some("it holds xfs (\"3f2a91c07d5e\")".to_owned()),
        };
        let mut status = StorageNodeStatus {
            disks: vec![usual; DISKS + 1],
            ..StorageNodeStatus::default()
        };
        status.shorten();
        assert_eq!((status.disks.len(), status.unlisted_disks), (DISKS, 1));
    }

    #[test]
    fn a_status_within_its_bound_is_not_changed() {
        let mut status = largest_status(3);
        status.shorten();
        let before = status.clone();
        status.shorten();
        assert_eq!(status, before);
    }

    #[test]
    fn the_counted_bytes_cover_the_json_of_every_field_at_its_maximum() {
        for pools in [0, 1, 2, bounds::POOLS] {
            let largest = largest_status(pools);
            let mut without_lists = largest.clone();
            without_lists.drift.clear();
            for pool in &mut without_lists.pools {
                pool.orphans.clear();
                pool.problems.clear();
                pool.conditions.clear();
            }
            let mut shortened = largest.clone();
            shortened.shorten();
            for status in [largest, without_lists, shortened] {
                let counted = status.counted_bytes() + status.disk_bytes();
                let json = json_bytes(&status);
                assert!(
                    json <= counted + ENVELOPE,
                    "{pools} pools: {json} > {counted}"
                );
            }
        }
    }

    #[test]
    fn etcd_accepts_the_largest_status_even_if_every_byte_is_escaped() {
        // As `\u0001`.
        const ESCAPED: usize = 6;
        const ETCD: usize = 3 << 19;
        let mut status = largest_status(bounds::POOLS);
        status.shorten();
        assert!(status.counted_bytes() > status.allowed_bytes() / 4 * 3);
        // The other half is for the spec and the managed fields.
        let allowed = status.allowed_bytes() + ALL_DISKS;
        assert!(ESCAPED * allowed < ETCD / 2);
        assert!(ESCAPED * (allowed + 48 * FURTHER_POOL) > ETCD);
    }
}
