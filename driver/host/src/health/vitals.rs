//! Probes a pool: reads its state, and writes and reads a block.

use std::{sync::Arc, time::Duration};

use cistern_types::Bytes;

use super::{PoolTrouble, probe};
use crate::{
    engine::Engine,
    pool::{self, Pool, PoolStatistics},
};

/// Percentage of used space from which a probe frees preallocated blocks.
const LOW_ON_SPACE: u32 = 80;

/// Result of a probe of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolVitals {
    /// Space of the pool; None if it could not be read.
    pub fill: Option<Fill>,
    /// Troubles of the pool; empty if it is healthy.
    pub troubles: Vec<PoolTrouble>,
}

/// Space of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Free space (`f_bavail`; free extents of a volume group).
    pub available: Bytes,
    /// Size of its filesystem, or of its volume group.
    pub size: Bytes,
}

impl Fill {
    fn of(numbers: &PoolStatistics) -> Self {
        Self {
            available: numbers.available,
            size: numbers.size,
        }
    }
}

impl dyn Engine {
    /// Probes the pool: reads its state, and in a pool of images writes a block and reads it back. Returns by the deadline,
    /// even if its disk hangs. Starts no probe while an earlier one has not ended.
    pub fn vitals(self: &Arc<Self>, deadline: Duration) -> PoolVitals {
        let pool = Arc::clone(self);
        let probe = move || {
            Ok(match pool.images() {
                Some(pool) => pool.probe(),
                None => probe_sizes(&*pool),
            })
        };
        let answer = self.root().ask_within(&self.path(), deadline, probe);
        let trouble = match answer {
            Some(Ok(vitals)) => return vitals,
            Some(Err(error)) => PoolTrouble::failed("start a thread", &error),
            None => PoolTrouble::Hung { after: deadline },
        };
        PoolVitals {
            fill: None,
            troubles: vec![trouble],
        }
    }
}

/// Probes a pool without a filesystem of its own, to which nothing can be written.
fn probe_sizes(pool: &dyn Engine) -> PoolVitals {
    let mut vitals = PoolVitals::default();
    // This verifies, too, that it is still the pool.
    match pool.statistics() {
        Ok(numbers) => vitals.fill = Some(Fill::of(&numbers)),
        Err(error) => vitals.troubles.push(error.into()),
    }
    vitals
}

impl Pool {
    fn probe(&self) -> PoolVitals {
        let mut vitals = PoolVitals::default();
        let troubles = &mut vitals.troubles;
        match self.statistics_without_preallocations() {
            Ok(numbers) => {
                vitals.fill = Some(Fill::of(&numbers));
            }
            Err(error) => troubles.push(error.into()),
        }
        match self.check() {
            Ok(()) => {
                troubles.extend(probe::probe(self).err());
                // A failing write often causes the shutdown.
                if !troubles.is_empty() {
                    troubles.extend(self.check().err().map(PoolTrouble::from));
                }
                self.look_at_allocation(troubles);
            }
            Err(error) => troubles.push(error.into()),
        }
        if !troubles.contains(&PoolTrouble::ShutDown) {
            self.count_damage(troubles);
        }
        self.count_device_errors(troubles);
        vitals
    }

    /// The space of the pool. Frees preallocated blocks first if the pool is low on space.
    fn statistics_without_preallocations(&self) -> Result<PoolStatistics, pool::Error> {
        let numbers = self.statistics()?;
        let available = numbers.available;
        if available > numbers.size.percent(100 - LOW_ON_SPACE) || !self.free_preallocations() {
            return Ok(numbers);
        }
        let numbers = self.statistics()?;
        let freed = numbers.available.saturating_sub(available);
        tracing::debug!(pool = %self, %freed, "freed the preallocated blocks of a pool that is low on space");
        Ok(numbers)
    }

    fn look_at_allocation(&self, troubles: &mut Vec<PoolTrouble>) {
        match self.unallocated() {
            Ok(Bytes::ZERO) => {}
            Ok(missing) => troubles.push(PoolTrouble::NotAllocated {
                missing: missing.round_up_to_mib().unwrap_or(missing),
            }),
            Err(error) => troubles.push(error.into()),
        }
    }

    fn count_damage(&self, troubles: &mut Vec<PoolTrouble>) {
        match self.system.xfs_damage(self.directory()) {
            Ok(None | Some(0)) => {}
            Ok(Some(count)) => troubles.push(PoolTrouble::FilesystemErrors { count }),
            Err(error) => troubles.push(PoolTrouble::failed("query the filesystem", &error)),
        }
    }

    fn count_device_errors(&self, troubles: &mut Vec<PoolTrouble>) {
        match self.device_errors() {
            Ok(0) => {}
            Ok(count) => troubles.push(PoolTrouble::DeviceErrors { count }),
            Err(error) => troubles.push(PoolTrouble::failed("query the disk", &error)),
        }
    }
}
