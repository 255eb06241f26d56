//! Versions: of the API server, of sidecars, of kernels. Pure.

use super::report::Check;

/// Kubernetes with node names in tokens, on which the policy for nodes stands.
const KUBERNETES: Version = Version(1, 32);

/// Major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// Reads `v1.33.2`, `6.12.41-generic`, `v6.3.0`; none where the text does not begin so.
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

/// Whether the API server is new enough.
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
            format!("the version {version:?} cannot be understood"),
            format!("make sure that it is {KUBERNETES} or newer"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Outcome;

    #[test]
    fn versions_are_read_as_they_are_written_everywhere() {
        assert_eq!(Version::parse("v1.33.2"), Some(Version(1, 33)));
        assert_eq!(Version::parse("6.12.41-generic"), Some(Version(6, 12)));
        assert_eq!(Version::parse("v1.31+k3s"), Some(Version(1, 31)));
        assert_eq!(Version::parse("dev"), None);
        assert!(Version(1, 9) < Version(1, 10));
    }

    #[test]
    fn an_old_or_strange_api_server_is_told_of() {
        assert_eq!(server("v1.32.0").outcome, Outcome::Ok);
        assert_eq!(server("v1.31.9").outcome, Outcome::Fail);
        assert_eq!(server("master").outcome, Outcome::Warn);
    }
}
