//! Checks that each volume has a PersistentVolume and each snapshot a VolumeSnapshotContent.

use chrono::Utc;
use cistern_crds::enumeration::first_names;

use super::report::Check;
use crate::{
    Connection, Error,
    arguments::Selection,
    cluster::Cluster,
    orphans::unclaimed::{OwnerIndex, OwnersUnknown, UnclaimedView},
};

const CLAIMED: &str = "claimed";
/// Maximum number of objects that the message names.
const NAMED: usize = 3;

/// Checks that all listed volumes and snapshots are claimed. Lists their owners after them. Fails if the
/// owners cannot be listed for a reason other than denied access or a missing kind.
pub async fn examine(connection: &Connection, cluster: &Cluster) -> Result<Check, Error> {
    let known = OwnerIndex::read(connection).await?;
    let unclaimed = known.unclaimed(cluster, &Selection::default(), Utc::now());
    Ok(judge(&unclaimed, known.unread().next()))
}

fn judge(unclaimed: &[UnclaimedView], unread: Option<&OwnersUnknown>) -> Check {
    let names = unclaimed.iter();
    let names = names.map(|it| format!("{} {}", it.kind, it.name));
    match (unclaimed.len(), unread) {
        (0, None) => Check::ok(CLAIMED, "every volume and snapshot is claimed"),
        (0, Some(error)) => Check::unread(CLAIMED, error),
        _ => {
            let message = format!("unclaimed: {}", first_names(names, NAMED));
            Check::warn(CLAIMED, message, "kubectl cistern orphans lists what to do")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::CheckOutcome;

    #[test]
    fn unclaimed_objects_are_a_warning_that_names_them_and_the_action() {
        assert_eq!(judge(&[], None).outcome, CheckOutcome::Ok);
        let denied = OwnersUnknown::Denied {
            what: "cannot list persistentvolumes".to_owned(),
        };
        let unknown = judge(&[], Some(&denied));
        assert_eq!(unknown.outcome, CheckOutcome::Warn);
        assert_eq!(
            unknown.message,
            "cannot list persistentvolumes: not allowed"
        );
        let one = |number: usize| UnclaimedView {
            kind: "PoolVolume".to_owned(),
            name: format!("pvc-{number}"),
            pool: "fast".to_owned(),
            node: "n".to_owned(),
            reserved_bytes: 1,
            claim: None,
            message: String::new(),
        };
        let all: Vec<UnclaimedView> = (1..=4).map(one).collect();
        let check = judge(&all, None);
        assert_eq!(check.outcome, CheckOutcome::Warn);
        assert_eq!(
            check.message,
            "unclaimed: PoolVolume pvc-1, PoolVolume pvc-2, PoolVolume pvc-3 and 1 more"
        );
        assert!(check.action.contains("kubectl cistern orphans"));
    }
}
