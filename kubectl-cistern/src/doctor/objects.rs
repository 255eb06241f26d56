//! Checks that Cistern's objects can be parsed, and who claims those that have data.

use super::{report::Check, unclaimed};
use crate::{Connection, Error, cluster::Cluster};

const OBJECTS: &str = "objects";

/// Checks Cistern's own objects. Returns no checks if they cannot be listed, which other checks report. Fails if
/// the API server does not answer, and like [`unclaimed::examine`].
pub async fn examine(connection: &Connection) -> Result<Vec<Check>, Error> {
    let cluster = match Cluster::own(connection).await {
        Ok(cluster) => cluster,
        Err(Error::NotInstalled { .. } | Error::Denied { .. } | Error::Api { .. }) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let mut checks = readable(&cluster);
    checks.push(unclaimed::examine(connection, &cluster).await?);
    Ok(checks)
}

/// Checks that each object can be parsed.
fn readable(cluster: &Cluster) -> Vec<Check> {
    let unreadable = cluster.unreadable.iter().map(|it| {
        let message = format!("{} {} cannot be read: {}", it.kind, it.name, it.error);
        let action = "correct the object, or use the plugin of the version that wrote it";
        Check::warn(OBJECTS, message, action)
    });
    let checks: Vec<Check> = unreadable.collect();
    if checks.is_empty() {
        return vec![Check::ok(OBJECTS, "all can be read")];
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::CheckOutcome;

    #[test]
    fn each_object_that_cannot_be_read_is_a_warning() {
        let mut cluster = crate::testing::cluster();
        assert_eq!(readable(&cluster)[0].outcome, CheckOutcome::Ok);
        let pools = ["one", "two"].map(crate::unreadable::tests::strange);
        cluster.unreadable.sort_out(pools);
        let checks = readable(&cluster);
        assert_eq!(checks.len(), 2);
        assert_eq!(checks[1].outcome, CheckOutcome::Warn);
        let message = &checks[1].message;
        assert!(
            message.starts_with("StoragePool two cannot be read: "),
            "{message}"
        );
    }
}
