//! The permissions that the commands use.
//!
//! *Invariant:* a command needs no other permission. The tests of the plugin run it as a user who has these
//! and no more.

use cistern_crds::names::GROUP as OWN;

/// A kind of permission, and the commands that use it.
pub(super) struct Used {
    /// API group of the resource; empty for the core group.
    pub(super) group: &'static str,
    /// The resource, with `/` and a subresource if there is one.
    pub(super) resource: &'static str,
    /// Whether it is used in Cistern's namespace only.
    pub(super) in_system: bool,
    /// The verbs.
    pub(super) verbs: &'static [&'static str],
    /// The commands.
    pub(super) commands: &'static [&'static str],
}

const fn of(
    commands: &'static [&'static str],
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Used {
    Used {
        group,
        resource,
        in_system: false,
        verbs,
        commands,
    }
}

const fn in_system(
    commands: &'static [&'static str],
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Used {
    Used {
        in_system: true,
        ..of(commands, group, resource, verbs)
    }
}

const WATCHERS: &[&str] = &[
    "status",
    "pools",
    "volumes",
    "snapshots",
    "transfers",
    "ui",
    "move",
    "standby",
    "promote",
    "drain",
];
const READERS: &[&str] = &[
    "status",
    "pools",
    "volumes",
    "snapshots",
    "transfers",
    "ui",
    "orphans",
    "replace-disk",
    "forget-node",
    "move",
    "standby",
    "promote",
    "drain",
];
// The bundle contains the report of `doctor`.
const DOCTOR: &[&str] = &["doctor", BUNDLE_COMMAND];
const FSCK: &[&str] = &["fsck", BUNDLE_COMMAND];
const BUNDLE: &[&str] = &[BUNDLE_COMMAND];
const BUNDLE_COMMAND: &str = "support-bundle";
const OF_POOLS: &[&str] = &["cordon", "uncordon", "replace-disk", "drain", "forget-node"];
const MOVERS: &[&str] = &["move", "standby", "drain"];
const REMOVAL: &[&str] = &["orphans", "replace-disk", "forget-node"];
const SNAPSHOT: &str = "snapshot.storage.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const LIST: &[&str] = &["list"];
const WATCH: &[&str] = &["list", "watch"];

/// Every permission that a command uses.
pub(super) const USED: &[Used] = &[
    of(WATCHERS, OWN, "storagepools", WATCH),
    of(READERS, OWN, "storagenodes", WATCH),
    of(READERS, OWN, "poolvolumes", WATCH),
    of(READERS, OWN, "poolsnapshots", WATCH),
    of(READERS, OWN, "poolsnapshotgroups", LIST),
    of(READERS, OWN, "volumemoves", WATCH),
    of(READERS, OWN, "imagetransfers", WATCH),
    of(READERS, "", "persistentvolumes", WATCH),
    of(READERS, "", "persistentvolumeclaims", WATCH),
    of(WATCHERS, "", "pods", WATCH),
    of(WATCHERS, "", "events", WATCH),
    of(WATCHERS, "storage.k8s.io", "storageclasses", WATCH),
    of(&["orphans"], "storage.k8s.io", "storageclasses", LIST),
    of(
        &["snapshots", "orphans", "replace-disk", "forget-node"],
        SNAPSHOT,
        "volumesnapshotcontents",
        LIST,
    ),
    in_system(
        &[
            "top",
            "volumes",
            "forget-node",
            "doctor",
            "fsck",
            BUNDLE_COMMAND,
        ],
        "",
        "pods",
        LIST,
    ),
    in_system(
        &["top", "volumes", "fsck", BUNDLE_COMMAND],
        "",
        "pods/proxy",
        &["get"],
    ),
    in_system(BUNDLE, "", "pods/log", &["get"]),
    of(FSCK, OWN, "storagenodes", LIST),
    of(&["discover"], OWN, "storagenodes", LIST),
    of(&["fsck", "discover"], "", "nodes", LIST),
    of(BUNDLE, OWN, "storagepools", LIST),
    of(BUNDLE, OWN, "poolvolumes", LIST),
    of(BUNDLE, OWN, "poolsnapshots", LIST),
    of(BUNDLE, OWN, "poolsnapshotgroups", LIST),
    of(BUNDLE, OWN, "volumemoves", LIST),
    of(BUNDLE, OWN, "imagetransfers", LIST),
    of(BUNDLE, OWN, "poolreplicas", LIST),
    of(BUNDLE, "", "persistentvolumes", LIST),
    of(BUNDLE, "", "persistentvolumeclaims", LIST),
    of(BUNDLE, "", "events", LIST),
    of(BUNDLE, "storage.k8s.io", "storageclasses", LIST),
    of(BUNDLE, "storage.k8s.io", "csistoragecapacities", LIST),
    of(BUNDLE, SNAPSHOT, "volumesnapshotcontents", LIST),
    of(OF_POOLS, OWN, "storagepools", &["get", "patch"]),
    of(
        &["cordon", "replace-disk", "forget-node", "drain"],
        OWN,
        "storagenodes",
        &["get"],
    ),
    of(MOVERS, OWN, "poolvolumes", &["get"]),
    of(MOVERS, OWN, "volumemoves", &["get", "create", "patch"]),
    of(&["move", "standby"], OWN, "volumemoves", &["delete"]),
    of(&["promote"], OWN, "poolvolumes", &["get"]),
    of(&["promote"], OWN, "volumemoves", &["get", "patch"]),
    of(&["drain"], "apps", "statefulsets", LIST),
    of(
        &["cordon", "drain", "forget-node", "promote"],
        "",
        "nodes",
        &["get"],
    ),
    of(&["orphans"], OWN, "poolvolumes", &["get", "create"]),
    of(&["orphans"], OWN, "poolsnapshots", &["get", "create"]),
    of(&["orphans"], "", "persistentvolumes", &["create"]),
    of(REMOVAL, OWN, "poolvolumes", &["patch", "delete"]),
    of(REMOVAL, OWN, "poolsnapshots", &["patch", "delete"]),
    of(&["replace-disk", "forget-node"], OWN, "poolreplicas", LIST),
    of(
        &["replace-disk", "forget-node"],
        OWN,
        "poolsnapshotgroups",
        &["patch", "delete"],
    ),
    of(
        DOCTOR,
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        LIST,
    ),
    of(DOCTOR, ADMISSION, "validatingadmissionpolicies", LIST),
    of(DOCTOR, ADMISSION, "validatingadmissionpolicybindings", LIST),
    of(DOCTOR, "storage.k8s.io", "csidrivers", LIST),
    of(DOCTOR, "storage.k8s.io", "csinodes", LIST),
    of(DOCTOR, "", "nodes", LIST),
    of(DOCTOR, "apps", "deployments", LIST),
    in_system(
        &["doctor", BUNDLE_COMMAND, "forget-node"],
        "apps",
        "daemonsets",
        LIST,
    ),
    of(DOCTOR, SNAPSHOT, "volumesnapshotclasses", LIST),
    of(
        DOCTOR,
        "authorization.k8s.io",
        "subjectaccessreviews",
        &["create"],
    ),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn every_permission_names_commands_of_the_program() {
        let program = Arguments::command();
        for used in USED {
            assert!(!used.commands.is_empty(), "{}", used.resource);
            for command in used.commands {
                assert!(program.find_subcommand(command).is_some(), "{command}");
            }
        }
    }

    #[test]
    fn every_command_that_asks_the_api_server_names_its_permissions() {
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            let named = USED.iter().any(|used| used.commands.contains(&name));
            assert!(named || name == "completion", "{name}");
        }
    }
}
