//! Data in pieces at equal distances: fio writes and reads it.

use std::{path::Path, process::Command, time::Duration};

use cistern_e2e::{Driver, process::output};

/// Deadline of fio.
const LONGEST: Duration = Duration::from_mins(10);

/// Data of a volume: pieces at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    bytes: u64,
    distance: u64,
}

impl Pieces {
    /// Data everywhere.
    pub(crate) fn all() -> Self {
        Self {
            bytes: 1 << 20,
            distance: 1 << 20,
        }
    }

    /// Data in one of a hundred blocks of this size.
    pub(crate) fn one_in_hundred(bytes: u64) -> Self {
        Self {
            bytes,
            distance: bytes * 100,
        }
    }

    /// The bytes of data in an image of this size.
    pub(crate) fn data_in(self, size: u64) -> u64 {
        size / self.distance * self.bytes
    }

    /// Writes random data to a device of this size.
    pub(crate) async fn write(self, node: &Driver, device: &Path, size: u64) {
        let mut fio = self.fio(node, device, size, "write");
        fio.args(["--end_fsync=1", "--refill_buffers"]);
        output(fio, LONGEST).await;
    }

    /// Reads the data of a file of this size with direct I/O; returns the seconds.
    pub(crate) async fn read(self, node: &Driver, file: &Path, size: u64) -> f64 {
        let mut fio = self.fio(node, file, size, "read");
        fio.arg("--output-format=json");
        let report = output(fio, LONGEST).await;
        let report: serde_json::Value = serde_json::from_str(&report).expect("fio writes JSON");
        let milliseconds = report["jobs"][0]["read"]["runtime"].as_f64();
        milliseconds.expect("fio measures") / 1000.0
    }

    fn fio(self, node: &Driver, file: &Path, size: u64, mode: &str) -> Command {
        let Self { bytes, distance } = self;
        let mut fio = node.command_on_node("fio");
        fio.args(["--name=pieces", "--direct=1", "--ioengine=libaio"])
            .arg("--iodepth=8")
            .arg(format!("--filename={}", file.display()))
            .arg(format!("--rw={mode}:{}", distance - bytes))
            .arg(format!("--bs={bytes}"))
            .arg(format!("--size={size}"))
            .arg(format!("--number_ios={}", size / distance));
        fio
    }
}
