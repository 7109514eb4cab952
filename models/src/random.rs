//! Numbers that look random and depend on nothing but their counter.

/// SplitMix64's finalizer (Steele, Lea and Flood, 2014): every input bit changes half of the output bits.
pub(crate) fn mix(counter: u64) -> u64 {
    let mut bits = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// FNV-1a: a seed for each name.
pub(crate) fn hash_name(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
