//! Storage that fails under a running pod: the failure is reported, other pools are not affected, pods can be
//! deleted, and all data is there after recovery.

mod disks;
mod images;
mod patient;
mod reported;
mod silence;

use patient::Patient;
use reported::HEALTHY;
