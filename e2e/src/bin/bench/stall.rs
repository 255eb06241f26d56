//! A writer that notices how long a snapshot blocks it: 4 KiB per write to the first block, one after the other.

use std::{
    fs::File,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use rustix::fs::OFlags;

use cistern_e2e::measure::milliseconds;

const BLOCK: usize = 4096;

/// The thread of the writer.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<f64>,
}

impl Writer {
    /// Starts to write to a device.
    pub(crate) fn start(device: &Path) -> Self {
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("it is a small number");
        let file = File::options().write(true).custom_flags(flags).open(device);
        let file = file.expect("the device is there");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            // Direct I/O wants an aligned buffer.
            let buffer = vec![0; 2 * BLOCK];
            let start = buffer.as_ptr().align_offset(BLOCK);
            let block = &buffer[start..start + BLOCK];
            let mut longest = 0.0_f64;
            while !stopped.load(Ordering::Relaxed) {
                let started = Instant::now();
                file.write_all_at(block, 0).expect("the disk has room");
                longest = longest.max(milliseconds(started));
            }
            longest
        });
        Self { stop, thread }
    }

    /// Stops it; returns the milliseconds of its longest write.
    pub(crate) fn longest(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the writer does not panic")
    }
}
