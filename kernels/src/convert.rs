//! Conversions between the small float types and f32.
//!
//! Decoding is exact. Encoding rounds to the nearest value, ties to the even one. The 8-bit types saturate: what
//! is larger than their largest finite value becomes that value, as in the caches of other engines and in the
//! `satfinite` conversions of GPUs; a NaN stays one.

use half::{bf16, f16};

/// The value of an IEEE half, without branches so that loops over it vectorize.
pub fn f16_to_f32(bits: u16) -> f32 {
    // The exponent and mantissa, moved to their place in an f32, read as a value 2^112 too small; multiplying
    // is exact and also normalizes the subnormal ones. Infinities and NaNs come out as 2^16 and above.
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let special = if magnitude >= 65536.0 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | u32::from(bits & 0x8000) << 16)
}

/// The value of a bfloat16.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest IEEE half; too large a value becomes infinite.
pub fn f32_to_f16(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

/// The nearest bfloat16.
pub fn f32_to_bf16(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}

/// The value of an 8-bit float with 4 exponent and 3 mantissa bits.
pub fn f8e4m3_to_f32(bits: u8) -> f32 {
    E4M3_VALUES[bits as usize]
}

/// The value of an 8-bit float with 5 exponent and 2 mantissa bits.
pub fn f8e5m2_to_f32(bits: u8) -> f32 {
    E5M2_VALUES[bits as usize]
}

/// The nearest 8-bit float with 4 exponent and 3 mantissa bits, saturated at 448.
pub fn f32_to_f8e4m3(value: f32) -> u8 {
    E4M3.encode(value)
}

/// The nearest 8-bit float with 5 exponent and 2 mantissa bits, saturated at 57344.
pub fn f32_to_f8e5m2(value: f32) -> u8 {
    E5M2.encode(value)
}

/// What tells the two 8-bit formats apart.
struct Float8 {
    mantissa_bits: i32,
    /// Exponent of the smallest normal value.
    min_exponent: i32,
    /// Code and value of the largest finite number.
    max_code: u8,
    max_value: f32,
    nan: u8,
}

const E4M3: Float8 =
    Float8 { mantissa_bits: 3, min_exponent: -6, max_code: 0x7e, max_value: 448.0, nan: 0x7f };
const E5M2: Float8 =
    Float8 { mantissa_bits: 2, min_exponent: -14, max_code: 0x7b, max_value: 57344.0, nan: 0x7f };

static E4M3_VALUES: [f32; 256] = E4M3.values();
static E5M2_VALUES: [f32; 256] = E5M2.values();

impl Float8 {
    fn encode(&self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        if value.is_nan() {
            return sign | self.nan;
        }
        let magnitude = value.abs().min(self.max_value);
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(self.min_exponent);
        // The distance of neighbours there is a power of two, so the division is exact. A carry of the rounding
        // into the next exponent gives that exponent's first code, as it should.
        let steps = (magnitude / pow2(exponent - self.mantissa_bits)).round_ties_even() as u8;
        let code = (((exponent - self.min_exponent) as u8) << self.mantissa_bits) + steps;
        sign | code.min(self.max_code)
    }

    const fn values(&self) -> [f32; 256] {
        let mut values = [0.0; 256];
        let mut code = 0;
        while code < 128 {
            let value = self.decode(code as u8);
            values[code] = value;
            values[code + 128] = -value;
            code += 1;
        }
        values
    }

    const fn decode(&self, code: u8) -> f32 {
        if code > self.max_code {
            // Of the two only E5M2 has an infinity, right after its largest finite value.
            return if code == 0x7c { f32::INFINITY } else { f32::NAN };
        }
        let exponent = (code >> self.mantissa_bits) as i32;
        let mantissa = (code & ((1 << self.mantissa_bits) - 1)) as i32;
        let (steps, exponent) = match exponent {
            0 => (mantissa, self.min_exponent),
            _ => (mantissa + (1 << self.mantissa_bits), self.min_exponent + exponent - 1),
        };
        steps as f32 * pow2(exponent - self.mantissa_bits)
    }
}

const fn pow2(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_decodes_to_its_value() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:04x}");
        }
    }

    #[test]
    fn every_8_bit_code_survives_the_round_trip() {
        for code in 0..=u8::MAX {
            let (a, b) = (f8e4m3_to_f32(code), f8e5m2_to_f32(code));
            assert!(a.is_nan() || f32_to_f8e4m3(a) == code, "e4m3 {code:02x} is {a}");
            assert!(!b.is_finite() || f32_to_f8e5m2(b) == code, "e5m2 {code:02x} is {b}");
        }
    }

    #[test]
    fn halfway_values_take_the_even_code() {
        for code in 0..0x7eu8 {
            let middle = (f8e4m3_to_f32(code) + f8e4m3_to_f32(code + 1)) / 2.0;
            assert_eq!(f32_to_f8e4m3(middle), code + code % 2, "halfway above {code:02x}");
        }
    }

    #[test]
    fn large_values_saturate_and_nan_stays() {
        for large in [449.0, 1e30, f32::MAX, f32::INFINITY] {
            assert_eq!(f8e4m3_to_f32(f32_to_f8e4m3(large)), 448.0);
            assert_eq!(f8e4m3_to_f32(f32_to_f8e4m3(-large)), -448.0);
        }
        assert_eq!(f8e5m2_to_f32(f32_to_f8e5m2(f32::INFINITY)), 57344.0);
        assert!(f8e4m3_to_f32(f32_to_f8e4m3(f32::NAN)).is_nan());
        assert!(f8e5m2_to_f32(f32_to_f8e5m2(-f32::NAN)).is_nan());
    }
}
