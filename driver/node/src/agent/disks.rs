//! Reports the disks of the node in `StorageNode.status.disks`, so that people can choose from them.
//!
//! *Invariants:* nothing is written to a disk, and one that a pool of this node has open is not opened.
//! A disk that hangs takes one host thread, however often the disks are read, and delays the others by one
//! deadline at most. The status is written only when a disk has changed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::{Disk, bounds};
use cistern_host::{pool::Unusable, system};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{Agent, pools};
use crate::blocking::on_host;

/// How often the content of all disks is read, at most. A disk that is new, or has changed its size, is read
/// at once.
const PERIOD: Duration = Duration::from_mins(1);
/// Longest time that a disk may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Minimum time between two reads.
const PAUSE: Duration = Duration::from_secs(1);

/// The disks as of the last read.
#[derive(Debug, Default)]
pub struct Disks {
    known: Mutex<Option<Vec<Disk>>>,
}

impl Disks {
    /// The disks, the usable first, then by path. None before the first read: then the previous status
    /// holds.
    pub fn known(&self) -> Option<Vec<Disk>> {
        self.known.lock().clone()
    }

    /// Records the disks. Returns whether they have changed.
    fn set(&self, mut disks: Vec<Disk>) -> bool {
        // A disk without a path is not usable.
        disks.sort_by_key(|disk| {
            let path = (disk.path.is_none(), disk.path.clone());
            (!disk.is_usable(), path, disk.name.clone())
        });
        let mut known = self.known.lock();
        let is_changed = known.as_ref() != Some(&disks);
        *known = Some(disks);
        is_changed
    }
}

/// Reads the disks after each reconcile of the pools, until dropped.
pub async fn run(agent: &Arc<Agent>, interval: Duration) {
    agent.pools.reconciled().await;
    let mut reconciles = agent.pools.reconciles();
    let mut last = BTreeMap::new();
    let mut complete: Option<Instant> = None;
    let period = interval.min(PERIOD);
    loop {
        if complete.is_none_or(|at| at.elapsed() >= period) {
            last.clear();
            complete = Some(Instant::now());
        }
        match listed(agent).await {
            Some(listed) => {
                last = examined(agent, listed, last).await;
                let disks = last.values().map(|(_, disk)| disk.clone());
                if agent.disks.set(disks.collect()) {
                    agent.report.request();
                }
            }
            // The next read lists them again.
            None => last.clear(),
        }
        sleep(PAUSE).await;
        // The sender lives as long as the agent.
        let changed = timeout(period, reconciles.changed()).await;
        if changed.is_ok_and(|changed| changed.is_err()) {
            return;
        }
    }
}

/// A disk as the kernel lists it with the pool that uses it, and as it is reported, by its name.
type Examined = BTreeMap<String, (Listed, Disk)>;

/// A disk as the kernel lists it.
#[derive(Clone, Debug, PartialEq)]
struct Listed {
    disk: system::Disk,
    /// The pool that uses it.
    pool: Option<String>,
}

/// The disks as the kernel lists them. None if it does not answer.
async fn listed(agent: &Agent) -> Option<Vec<Listed>> {
    let permit = agent.pools.permit_alone("the list of disks")?;
    let root = agent.node.root.clone();
    let disks = match timeout(DEADLINE, on_host(permit, move || root.disks())).await {
        Ok(Ok(Ok(disks))) => disks,
        Ok(Ok(Err(error))) => {
            tracing::warn!(error = %Chain(&error), "cannot list the disks of the node");
            return None;
        }
        Ok(Err(error)) => {
            tracing::error!(error = %Chain(&error), "the task that lists the disks panicked");
            return None;
        }
        Err(_) => {
            tracing::warn!("the kernel does not list the disks of the node");
            return None;
        }
    };
    let mut pools = BTreeMap::new();
    for state in agent.pools.all() {
        let images = state.open().and_then(|usable| usable.pool.images());
        if let Some(pool) = images {
            pools.insert(pool.device_number(), state.spec.name.clone());
        }
    }
    let listed = disks.into_iter().map(|disk| Listed {
        pool: pools.get(&disk.number).cloned(),
        disk,
    });
    Some(listed.collect())
}

/// Looks at the disks that have changed since the last time, one after another.
async fn examined(agent: &Agent, listed: Vec<Listed>, mut last: Examined) -> Examined {
    let mut examined = Examined::new();
    for listed in listed {
        let name = listed.disk.name.clone();
        let known = last.remove(&name).filter(|(before, _)| *before == listed);
        let entry = if let Some(entry) = known {
            entry
        } else {
            let unusable = match &listed.pool {
                Some(pool) => Some(format!("pool {pool} uses it")),
                None => objection(agent, listed.disk.clone()).await,
            };
            let reported = reported(&listed, unusable.as_deref());
            (listed, reported)
        };
        examined.insert(name, entry);
    }
    examined
}

/// Why no pool can be created on a disk; None if it is blank.
async fn objection(agent: &Agent, disk: system::Disk) -> Option<String> {
    // A disk that comes back has the same name, and another number only if the kernel gives it another.
    let permit = agent
        .pools
        .permit_alone(&format!("disk {} {}", disk.name, disk.number));
    let silent = || Some(format!("it has not answered within {DEADLINE:?}"));
    let Some(permit) = permit else {
        return silent();
    };
    let root = agent.node.root.clone();
    let pools = agent.pools.all().into_iter();
    let replaced: Vec<_> = pools.flat_map(|pool| pools::replaced(&pool.spec)).collect();
    let work = move || root.objection_to(&disk, &replaced);
    match timeout(DEADLINE, on_host(permit, work)).await {
        Ok(Ok(objection)) => objection.as_ref().map(describe),
        Ok(Err(error)) => Some(Chain(&error).to_string()),
        Err(_) => silent(),
    }
}

fn describe(objection: &Unusable) -> String {
    match objection {
        Unusable::Failed(cause) => format!("it cannot be read: {}", Chain(cause)),
        other => other.to_string(),
    }
}

/// A disk as the status reports it. The schema rejects longer texts.
fn reported(listed: &Listed, unusable: Option<&str>) -> Disk {
    let Listed { disk, pool } = listed;
    let short = |text: Option<&str>| {
        let text = text.map(str::to_owned);
        text.map(|text| bounds::truncate(text, bounds::DISK_TEXT))
    };
    let path = disk.path.as_ref().map(|path| path.display().to_string());
    Disk {
        name: bounds::truncate(disk.name.clone(), bounds::NAME),
        path: path.filter(|path| path.len() <= bounds::DISK_PATH),
        model: short(disk.model.as_deref()),
        serial: short(disk.serial.as_deref()),
        size: disk.size,
        rotational: disk.rotational,
        pool: pool.clone(),
        unusable: short(unusable),
    }
}

#[cfg(test)]
mod tests {
    use cistern_host::system::DeviceNumber;

    use super::*;

    fn listed(path: &str) -> Listed {
        Listed {
            disk: system::Disk {
                name: "sdb".to_owned(),
                number: DeviceNumber {
                    major: 8,
                    minor: 16,
                },
                path: Some(path.into()),
                model: Some("ü".repeat(bounds::DISK_TEXT)),
                serial: None,
                size: cistern_crds::Bytes::gib(8),
                rotational: true,
                removable: false,
            },
            pool: None,
        }
    }

    #[test]
    fn a_disk_with_a_path_that_the_status_has_no_room_for_is_not_usable() {
        let disk = reported(&listed("/dev/disk/by-id/wwn-1"), None);
        assert!(disk.is_usable());
        assert_eq!(disk.model.unwrap().len(), bounds::DISK_TEXT);
        let disk = reported(&listed(&"x".repeat(bounds::DISK_PATH + 1)), None);
        assert!(!disk.is_usable());
    }

    #[test]
    fn usable_disks_come_first_and_only_a_change_is_one() {
        let disk = |path: &str, unusable| reported(&listed(path), unusable);
        let (held, blank) = (disk("/dev/a", Some("held")), disk("/dev/b", None));
        let disks = Disks::default();
        assert_eq!(disks.known(), None);
        assert!(disks.set(vec![held.clone(), blank.clone()]));
        assert_eq!(disks.known().unwrap(), [blank.clone(), held.clone()]);
        assert!(!disks.set(vec![blank, held]));
        assert!(disks.set(Vec::new()));
    }
}
