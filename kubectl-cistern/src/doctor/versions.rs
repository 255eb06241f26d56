//! Parses versions, and checks that of the API server. Pure.

use super::report::Check;

/// Oldest Kubernetes version with node names in service account tokens; the policy for nodes needs them.
const KUBERNETES: Version = Version(1, 32);

/// Major and minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// Parses `v1.33.2`, `6.12.41-generic`, `v6.3.0`; `None` if the text does not start with a version.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text
            .trim_start_matches('v')
            .split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        Some(Self(next()?, next()?))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Checks that the API server is new enough.
pub fn server(version: &str) -> Check {
    const NAME: &str = "kubernetes";
    match Version::parse(version) {
        Some(found) if found >= KUBERNETES => Check::ok(NAME, version),
        Some(_) => Check::fail(
            NAME,
            format!("{version} is older than {KUBERNETES}"),
            format!("upgrade the cluster to {KUBERNETES} or newer"),
        ),
        None => Check::warn(
            NAME,
            format!("the version {version:?} cannot be parsed"),
            format!("make sure that it is {KUBERNETES} or newer"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::CheckOutcome;

    #[test]
    fn common_version_formats_are_parsed() {
        assert_eq!(Version::parse("v1.33.2"), Some(Version(1, 33)));
        assert_eq!(Version::parse("6.12.41-generic"), Some(Version(6, 12)));
        assert_eq!(Version::parse("v1.31+k3s"), Some(Version(1, 31)));
        assert_eq!(Version::parse("dev"), None);
        assert!(Version(1, 9) < Version(1, 10));
    }

    #[test]
    fn an_old_api_server_fails_and_an_unknown_version_is_a_warning() {
        assert_eq!(server("v1.32.0").outcome, CheckOutcome::Ok);
        assert_eq!(server("v1.31.9").outcome, CheckOutcome::Fail);
        assert_eq!(server("master").outcome, CheckOutcome::Warn);
    }
}
