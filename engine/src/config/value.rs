//! Types of settings, and their text form.

use std::fmt;
use std::path::PathBuf;

use quire_executor::LogprobsMode;
use quire_kernels::DType;
use quire_models::LoadFormat;
use quire_scheduler::CapacityMode;

/// A value with a text form, as flags, environment and files have it.
pub(crate) trait SettingValue: Sized {
    /// What a text must look like.
    const EXPECTED: &'static str;

    /// The same, for a setting whose type has more values than it takes.
    fn expected_for(field: &str) -> &'static str {
        let _ = field;
        Self::EXPECTED
    }

    /// Reads the text form.
    fn parse(text: &str) -> Option<Self>;

    /// Writes it.
    fn show(&self) -> String;
}

/// The longest sequence, prompt and output together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxModelLen {
    /// The model's own, or what fits into the KV pool.
    Auto,
    /// This many tokens.
    Tokens(usize),
}

/// A dtype, or the choice of the model and the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DTypeChoice {
    /// Whatever the model is stored in.
    Auto,
    /// This one.
    DType(DType),
}

/// What happens to a sequence that must give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptionMode {
    /// Whichever of the two is quicker, as measured.
    Auto,
    /// Its cache is computed anew later.
    Recompute,
    /// Its cache is kept on the host, as long as there is room.
    Swap,
}

/// The most log-probabilities at a token that a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxLogprobs {
    /// Those of the whole vocabulary.
    Vocabulary,
    /// So many.
    Tokens(usize),
}

impl MaxLogprobs {
    /// As a number, for a vocabulary of that size.
    pub fn of(self, vocab_size: usize) -> usize {
        match self {
            Self::Vocabulary => vocab_size,
            Self::Tokens(tokens) => tokens,
        }
    }
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    /// In the largest unit that leaves a number of at least 1: `3.5 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.into_iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) => write!(f, "{:.2} {unit}", self.0 as f64 / (1_u64 << shift) as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl std::str::FromStr for Bytes {
    type Err = &'static str;

    /// A number with or without a unit, such as `2GiB`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or(Self::EXPECTED)
    }
}

impl SettingValue for usize {
    const EXPECTED: &'static str = "a whole number, such as 4096, 4k or 4Ki";

    fn parse(text: &str) -> Option<Self> {
        usize::try_from(parse_count(text)?).ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for u64 {
    const EXPECTED: &'static str = "a whole number";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for f64 {
    const EXPECTED: &'static str = "a number";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for bool {
    const EXPECTED: &'static str = "true or false";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "true" | "1" | "on" | "yes" => Some(true),
            "false" | "0" | "off" | "no" => Some(false),
            _ => None,
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for String {
    const EXPECTED: &'static str = "a text that is not empty";

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl SettingValue for PathBuf {
    const EXPECTED: &'static str = "a path";

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::from(text))
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl SettingValue for MaxModelLen {
    const EXPECTED: &'static str = "a number of tokens, such as 4096 or 4k, or auto";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" | "-1" => Some(Self::Auto),
            _ => Some(Self::Tokens(usize::parse(text)?)),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Tokens(tokens) => tokens.to_string(),
        }
    }
}

impl SettingValue for MaxLogprobs {
    const EXPECTED: &'static str = "a whole number, or -1 for the whole vocabulary";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "-1" => Some(Self::Vocabulary),
            _ => Some(Self::Tokens(usize::parse(text)?)),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Vocabulary => "-1".to_owned(),
            Self::Tokens(tokens) => tokens.to_string(),
        }
    }
}

impl SettingValue for LogprobsMode {
    const EXPECTED: &'static str = "raw_logprobs, raw_logits, processed_logprobs or processed_logits";

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == text)
    }

    fn show(&self) -> String {
        self.name().to_owned()
    }
}

impl SettingValue for DTypeChoice {
    const EXPECTED: &'static str = "auto, float32, float16, bfloat16, fp8_e4m3 or fp8_e5m2";

    /// Weights are computed in wider types than a cache may be kept in.
    fn expected_for(field: &str) -> &'static str {
        if field == "dtype" { "auto, float32, float16 or bfloat16" } else { Self::EXPECTED }
    }

    fn parse(text: &str) -> Option<Self> {
        Some(Self::DType(match text {
            "auto" => return Some(Self::Auto),
            "float32" | "float" | "f32" => DType::F32,
            "float16" | "half" | "f16" => DType::F16,
            "bfloat16" | "bf16" => DType::BF16,
            "fp8" | "fp8_e4m3" => DType::F8E4M3,
            "fp8_e5m2" => DType::F8E5M2,
            _ => return None,
        }))
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::DType(dtype) => dtype.to_string(),
        }
    }
}

impl SettingValue for CapacityMode {
    const EXPECTED: &'static str = "max-utilization or guaranteed";

    fn parse(text: &str) -> Option<Self> {
        let known = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        known.map(|(_, mode)| mode)
    }

    fn show(&self) -> String {
        self.name().to_owned()
    }
}

impl SettingValue for PreemptionMode {
    const EXPECTED: &'static str = "auto, recompute or swap";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "recompute" => Some(Self::Recompute),
            "swap" => Some(Self::Swap),
            _ => None,
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Recompute => "recompute".to_owned(),
            Self::Swap => "swap".to_owned(),
        }
    }
}

impl SettingValue for LoadFormat {
    const EXPECTED: &'static str = "auto or dummy";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" | "safetensors" | "gguf" => Some(Self::Auto),
            "dummy" => Some(Self::Dummy),
            _ => None,
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Dummy => "dummy".to_owned(),
        }
    }
}

impl SettingValue for Bytes {
    const EXPECTED: &'static str = "an amount of memory, such as 2GiB, 512M, 1TiB or 1000000";

    fn parse(text: &str) -> Option<Self> {
        let number = text.trim_end_matches(['B', 'b']);
        Some(Self(parse_count(number.trim_end())?))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn parse(text: &str) -> Option<Self> {
        if text == "none" { Some(None) } else { T::parse(text).map(Some) }
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), T::show)
    }
}

/// `4096`, `4k` (thousands), `4K` or `4Ki` (1024), `1.5G`; a fraction must come out whole.
fn parse_count(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = text[digits.len()..].trim_start();
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "K" | "Ki" => 1 << 10,
        "M" | "Mi" => 1 << 20,
        "G" | "Gi" => 1 << 30,
        "T" | "Ti" => 1 << 40,
        _ => return None,
    };
    if let Ok(count) = digits.parse::<u64>() {
        return count.checked_mul(factor);
    }
    let count = digits.parse::<f64>().ok()? * factor as f64;
    (count >= 0.0 && count.fract() == 0.0 && count < u64::MAX as f64).then_some(count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sizes_have_units() {
        assert_eq!(
            ["7", "4k", "4Ki", "25.6k", "0.3", "x", "-1"].map(usize::parse),
            [Some(7), Some(4000), Some(4096), Some(25_600), None, None, None]
        );
        assert_eq!(Bytes::parse("1.5GiB"), Some(Bytes(3 << 29)));
        for text in ["1TiB", "1 TiB", "1TB", "1T", "1024GiB"] {
            assert_eq!(Bytes::parse(text), Some(Bytes(1 << 40)), "{text}");
        }
        assert_eq!(Bytes::parse("0.5TiB"), Some(Bytes(1 << 39)));
        assert_eq!(Bytes(3 << 39).to_string(), "1.50 TiB");
        assert_eq!(["99999999999999999999", "99999999TiB", "1PiB"].map(Bytes::parse), [None; 3]);
        assert_eq!(Bytes(3 << 29).to_string(), "1.50 GiB");
        assert_eq!(MaxModelLen::parse("auto"), Some(MaxModelLen::Auto));
    }
}
