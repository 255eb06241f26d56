//! Random numbers that a failure can be repeated with.

use std::time::{SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "a test has no config.rs")]
/// Returns the number that a variable of the environment has.
pub fn given(name: &str) -> Option<u64> {
    std::env::var_os(name)?.to_str()?.parse().ok()
}

/// Numbers that look random and are the same for a seed (SplitMix64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A seed from the environment, or from the clock. It is printed, so that a failure can be repeated.
    #[expect(clippy::new_without_default, reason = "it prints")]
    pub fn new() -> Self {
        let clock = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("it is after 1970");
        let seed = given("CISTERN_SEED").unwrap_or_else(|| u64::from(clock.subsec_nanos()));
        eprintln!("CISTERN_SEED={seed}");
        Self(seed)
    }

    /// Returns a number below the limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
