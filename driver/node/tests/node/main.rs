//! Tests on real loop devices and real filesystems, in the machine that the tests of `driver/host` have. They
//! need root, and fail without it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../../../host/tests/host/cgroups.rs"]
#[allow(dead_code, reason = "shared with the tests of driver/host")]
mod cgroups;
#[path = "../../../host/tests/host/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of driver/host")]
mod harness;
mod io_limits;
#[path = "../../../host/tests/host/scenario.rs"]
#[allow(dead_code, reason = "shared with the tests of driver/host")]
mod scenario;
