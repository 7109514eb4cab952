//! Counter-based random numbers: the same on every backend, alone or in a batch.

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const M0: u32 = 0xD251_1F53;
    const M1: u32 = 0xCD9E_8D57;
    const W0: u32 = 0x9E37_79B9;
    const W1: u32 = 0xBB67_AE85;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p0 = u64::from(M0) * u64::from(c0);
        let p1 = u64::from(M1) * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    [c0, c1, c2, c3]
}

/// Who draws: the seed of the request, the index of the sequence in it, the position of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawKey {
    /// The request's seed.
    pub seed: u64,
    /// Index of the sequence in its request.
    pub sequence: u32,
    /// Position that the drawn token will have.
    pub position: u32,
}

/// Standard Gumbel noise of one token: `-ln(-ln u)`, `u` uniform in (0, 1).
///
/// Two logarithms in f64 of a uniform with 32 bits: backends agree on it to the last bits of f32, and the noise
/// lies within (-3.2, 22.9), so it is finite.
pub fn gumbel(key: DrawKey, token: u32) -> f32 {
    let bits =
        philox4x32([key.sequence, key.position, token, 0], [key.seed as u32, (key.seed >> 32) as u32])[0];
    let u = (f64::from(bits) + 0.5) * (1.0 / 4_294_967_296.0);
    -(-u.ln()).ln() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that come with Random123 (`kat_vectors`, philox4x32 with 10 rounds).
    #[test]
    fn philox_gives_the_published_vectors() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn gumbel_noise_has_the_law_it_should() {
        let n = 100_000;
        let key = DrawKey { seed: 7, sequence: 0, position: 3 };
        let mean = (0..n).map(|t| f64::from(gumbel(key, t))).sum::<f64>() / f64::from(n);
        assert!((mean - 0.577_215_66).abs() < 0.02, "the mean is Euler's constant, not {mean}");
    }
}
