//! Storage that breaks under a running pod: everybody is told, nobody else notices, pods can go, and
//! what was written is there when it is whole again.

mod disks;
mod images;
mod patient;
mod silence;
mod told;

use patient::Patient;
use told::WELL;
