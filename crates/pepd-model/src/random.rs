//! Random numbers that do not depend on what else is drawn.

use rand::RngExt as _;
use rand::rngs::Xoshiro256PlusPlus;

/// Draws from an exponential distribution with mean 1.
pub(crate) fn exponential(random: &mut Xoshiro256PlusPlus) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

/// Mixes two numbers into one that has nothing to do with its neighbours (SplitMix64's finalizer).
pub(crate) fn mixed(seed: u64, with: u64) -> u64 {
    let mut z = seed.wrapping_add(with.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
