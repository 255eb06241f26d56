//! Counters of the volumes' I/O: those of their loop devices, which the kernel keeps.

use std::{collections::HashMap, fmt};

use cistern_client::metrics::Gauges;
use cistern_crds::PoolVolume;
use cistern_host::{io_counters::VolumeIo, system::IoCounters};

use super::labels;
use crate::agent::Agent;

/// Name without `_total`, help text and value of a counter.
type Counter = (&'static str, &'static str, fn(&IoCounters) -> u64);

const COUNTERS: [Counter; 4] = [
    (
        "cistern_volume_reads_completed",
        "Reads that the loop device of a volume has completed.",
        |io| io.reads,
    ),
    (
        "cistern_volume_read_bytes",
        "Bytes read from the loop device of a volume.",
        |io| io.read_bytes,
    ),
    (
        "cistern_volume_writes_completed",
        "Writes that the loop device of a volume has completed.",
        |io| io.writes,
    ),
    (
        "cistern_volume_written_bytes",
        "Bytes written to the loop device of a volume.",
        |io| io.written_bytes,
    ),
];

/// Writes the counters of the attached volumes. If the loop devices cannot be listed, there are no samples.
pub(super) fn write(
    agent: &Agent,
    volumes: &[&PoolVolume],
    gauges: &mut Gauges<'_>,
) -> fmt::Result {
    let by_image: HashMap<&str, &PoolVolume> = volumes
        .iter()
        .filter_map(|volume| {
            let image = volume.status.as_ref()?.image.as_ref()?;
            Some((image.uid.as_str(), *volume))
        })
        .collect();
    let attached = agent.node.root.volume_io().unwrap_or_default();
    let attached: Vec<(&PoolVolume, String, IoCounters)> = attached
        .into_iter()
        .filter_map(|io| {
            let VolumeIo {
                image,
                device,
                counters,
            } = io;
            let volume = by_image.get(image.as_str())?;
            Some((*volume, device.name(), counters))
        })
        .collect();
    for (name, help, number) in COUNTERS {
        let samples = attached.iter().map(|(volume, device, counters)| {
            let [volume, pool] = labels::of_volume(volume);
            (
                [volume, pool, ("device", device.as_str())],
                number(counters),
            )
        });
        gauges.write_counter(name, help, samples)?;
    }
    Ok(())
}
