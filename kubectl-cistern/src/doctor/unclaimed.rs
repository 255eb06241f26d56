//! Whether something of Kubernetes stands for each volume and snapshot.

use chrono::Utc;

use super::report::Check;
use crate::{
    Connection, Error,
    arguments::Selection,
    cluster::Cluster,
    orphans::unclaimed::{Known, UnclaimedView},
};

const CLAIMED: &str = "claimed";
/// Objects that are named.
const NAMED: usize = 3;

/// Reads volumes and snapshots, and then what stands for them.
pub async fn examine(connection: &Connection) -> Result<Vec<Check>, Error> {
    let cluster = match Cluster::own(connection).await {
        Ok(cluster) => cluster,
        // The other checks tell.
        Err(Error::NotInstalled { .. } | Error::Denied { .. } | Error::Api { .. }) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let known = Known::read(connection).await?;
    let unclaimed = known.unclaimed(&cluster, &Selection::default(), Utc::now());
    Ok(vec![judge(&unclaimed, known.unread().next())])
}

fn judge(unclaimed: &[UnclaimedView], unread: Option<&str>) -> Check {
    let names = unclaimed.iter().take(NAMED);
    let names: Vec<String> = names.map(|it| format!("{} {}", it.kind, it.name)).collect();
    match (unclaimed.len(), unread) {
        (0, None) => Check::ok(CLAIMED, "nothing is left that nobody claims"),
        (0, Some(why)) => Check::warn(CLAIMED, why, "ask somebody who may"),
        (count, _) => {
            let more = match count.saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let message = format!("nobody claims {}{more}", names.join(", "));
            Check::warn(CLAIMED, message, "kubectl cistern orphans says what to do")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Outcome;

    #[test]
    fn what_nobody_claims_is_a_warning_that_names_it_and_what_to_do() {
        assert_eq!(judge(&[], None).outcome, Outcome::Ok);
        assert_eq!(judge(&[], Some("not allowed")).outcome, Outcome::Warn);
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
        assert_eq!(check.outcome, Outcome::Warn);
        assert_eq!(
            check.message,
            "nobody claims PoolVolume pvc-1, PoolVolume pvc-2, PoolVolume pvc-3 and 1 more"
        );
        assert!(check.action.contains("kubectl cistern orphans"));
    }
}
