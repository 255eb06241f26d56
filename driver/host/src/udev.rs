//! Whether the host has Cistern's rule for udev, judged by what udev has made in `/dev`.
//!
//! The rule gives the control device of loop devices a link of its own. udev gives that device, as every other, a link with
//! its number, in the same step.

use std::{io, path::Path};

/// Link that the rule adds.
const OF_RULE: &str = "cistern/udev-rule";
/// Link that udev makes by itself.
const OF_UDEV: &str = "char/10:237";

/// Whether the host has the rule that keeps it from the content of raw block volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRule {
    /// udev has applied it.
    Installed,
    /// udev runs without it.
    Missing,
    /// udev does not run, so the host does nothing with the content of a device.
    NotNeeded,
}

/// Looks for the rule on this host. Fails if `/dev` cannot be inspected.
pub fn host_rule() -> io::Result<HostRule> {
    host_rule_in(Path::new("/dev"))
}

fn host_rule_in(devices: &Path) -> io::Result<HostRule> {
    // The links themselves: where they lead may not be visible in a container.
    let has = |link| crate::system::if_there(devices.join(link).symlink_metadata());
    Ok(match (has(OF_RULE)?, has(OF_UDEV)?) {
        (Some(_), _) => HostRule::Installed,
        (None, Some(_)) => HostRule::Missing,
        (None, None) => HostRule::NotNeeded,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn the_rule_is_missing_only_where_udev_runs() {
        let folder = tempfile::tempdir().unwrap();
        let found = || host_rule_in(folder.path()).unwrap();
        assert_eq!(found(), HostRule::NotNeeded);
        fs::create_dir(folder.path().join("char")).unwrap();
        symlink("../loop-control", folder.path().join(OF_UDEV)).unwrap();
        assert_eq!(found(), HostRule::Missing);
        fs::create_dir(folder.path().join("cistern")).unwrap();
        symlink("../loop-control", folder.path().join(OF_RULE)).unwrap();
        assert_eq!(found(), HostRule::Installed);
    }
}
