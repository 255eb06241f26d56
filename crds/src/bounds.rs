//! Size limits of statuses. The schemas enforce them, writers truncate their texts to them, and the
//! admission policy of the nodes counts the bytes: a compromised node cannot make its objects so
//! large that clients that list them run out of memory. `node_size.rs` applies them to a StorageNode.

/// Maximum number of conditions in a list.
pub const CONDITIONS: usize = 9;
/// Maximum number of problems in a list.
pub const PROBLEMS: usize = 6;
/// Maximum bytes of the message of a condition or a drift finding. A schema counts characters, so it
/// accepts every text of this many bytes.
pub const MESSAGE: usize = 1024;
/// Maximum bytes of the message of a problem.
pub const PROBLEM: usize = 512;
/// Maximum bytes of the name of a type or reason.
pub const NAME: usize = 64;
/// Maximum bytes of all types, reasons and messages of an object, except a StorageNode, in total. With
/// its other fields the object stays below 16 KiB. `manifests/base/node-policy.yaml` states the same numbers.
#[cfg(test)]
const TEXTS: usize = 13 << 10;

/// Maximum bytes of a time, with nanoseconds and an offset.
pub const TIME: usize = 40;
/// Maximum bytes of the path of a device in a status.
pub const DEVICE: usize = 512;
/// Maximum characters of the directory of an image pool.
pub const DIRECTORY: usize = 512;
/// Maximum characters of the name of a volume group of LVM, of which each hyphen counts twice: device-mapper has
/// room for 127 characters of the names of group and volume.
pub const VOLUME_GROUP: usize = 69;
/// Maximum bytes of the identity of a disk.
pub const DEVICE_IDENTITY: usize = 256;
/// Maximum number of disks in the status of a StorageNode.
pub const DISKS: usize = 32;
/// Maximum bytes of the path of a disk in the status of a StorageNode.
pub const DISK_PATH: usize = 256;
/// Maximum bytes of a text about a disk in the status of a StorageNode.
pub const DISK_TEXT: usize = 128;
/// Bytes that a disk counts beside its texts.
pub const DISK: usize = 144;
/// Maximum bytes that the disks of a node count. They do not count towards [`FIRST_POOL`], so that the
/// pools have as much room on a node with many disks.
pub const ALL_DISKS: usize = 10 << 10;
/// Maximum characters of what a node lacks for encrypted volumes.
pub const LACK: usize = 128;
/// Maximum number of replaced disks of a StoragePool.
pub const REPLACED_DISKS: usize = 256;
/// Maximum number of replaced disks of a pool on one node, so that a StorageNode with many pools stays small.
pub const REPLACED_ON_NODE: usize = 8;
/// Maximum number of pools of a node. A StorageNode with as many stays below the 1.5 MiB that etcd accepts
/// even if JSON escapes every byte, and the operator keeps 1,000 of them in its memory.
pub const POOLS: usize = 16;
/// Bytes that a pool in the status of a StorageNode counts beside its texts and lists: those of its numbers
/// and field names.
pub const POOL: usize = 1 << 10;
/// Bytes that a condition, problem or drift finding in the status of a StorageNode counts beside its
/// texts: those of its times, numbers and field names.
pub const ENTRY: usize = 192;
/// Bytes that an orphan in the status of a StorageNode counts beside its texts.
pub const ORPHAN: usize = 512;
/// Maximum bytes that the status of a StorageNode with one pool counts, see
/// [`StorageNodeStatus::counted_bytes`](crate::StorageNodeStatus::counted_bytes).
pub const FIRST_POOL: usize = 16 << 10;
/// Bytes that the status of a StorageNode may count more for each further pool, which needs most of them
/// for its identity, its numbers, its two conditions and its problems. The operator assigns the pools: a node
/// reports no more of them than its spec lists.
pub const FURTHER_POOL: usize = 5 << 10;

/// Truncates the text to at most `bytes` bytes, at a character boundary.
pub fn truncate(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_truncated_at_a_character_boundary() {
        assert_eq!(truncate("aü".to_owned(), 3), "aü");
        assert_eq!(truncate("aü".to_owned(), 2), "a");
        assert_eq!(truncate("ü".repeat(1000), MESSAGE).len(), MESSAGE);
        assert_eq!(truncate(String::new(), 5), "");
    }

    #[test]
    fn texts_within_their_own_bounds_are_within_the_total_bound() {
        // Types, reasons and severities are names of this crate, none of which has more.
        const OWN_NAME: usize = 24;
        let conditions = CONDITIONS * (2 * OWN_NAME + MESSAGE);
        let problems = PROBLEMS * (2 * OWN_NAME + PROBLEM);
        assert!(conditions + problems <= TEXTS);
        let policy = include_str!("../../manifests/base/node-policy.yaml");
        assert!(policy.contains(&format!("<= {TEXTS}")));
        let of_node = format!("<= {} + {FURTHER_POOL} *", FIRST_POOL - FURTHER_POOL);
        assert!(policy.contains(&of_node), "{of_node}");
        for counted in [
            format!("map(c, {ENTRY} + "),
            format!("map(d, {ENTRY} + "),
            format!("map(q, {ENTRY} + "),
            format!("map(o, {ORPHAN} + "),
            format!("pools.map(p, {POOL} + "),
            format!("map(k, {DISK} + "),
            format!("variables.disks.sum() <= {ALL_DISKS}"),
        ] {
            assert!(policy.contains(&counted), "{counted}");
        }
    }
}
