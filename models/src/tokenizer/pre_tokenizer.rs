//! How text is split before merges: the part of a byte-level BPE tokenizer that a GGUF file only names.
//!
//! The patterns are those of each model family's published `tokenizer.json`.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::TokenizerError;

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Its letters are by number: some would be other ones in a text that was composed.
const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    concat!(
        r"\s?[",
        r"A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
        r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
        r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
        r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}",
        r"\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}",
        r"\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}",
        r"\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
        r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}",
        r"\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
        r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}",
        r"\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}",
        r"\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}",
        r"\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}",
        r"]+",
    ),
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
];
const DEEPSEEK_CODER: &[&str] = &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+"];
const DEEPSEEK_V3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// What a name under `tokenizer.ggml.pre` stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    /// How text is split before the bytes are mapped to characters.
    splitting: Splitting,
    /// Whether text is brought into Unicode's composed form first.
    pub(super) composes: bool,
    /// Whether a piece that is a token stays whole, whatever the merges say.
    pub(super) ignores_merges: bool,
    /// Whether a text begins with BOS where the file does not say.
    pub(super) adds_bos: bool,
}

#[derive(Debug, Clone, Copy)]
enum Splitting {
    /// GPT-2's pattern.
    Gpt2,
    /// GPT-2's pattern after cutting out every digit.
    DigitsThenGpt2,
    /// A pattern of the family's own.
    Pattern(&'static str),
    /// Patterns one after the other, each on what the ones before left whole.
    Patterns(&'static [&'static str]),
    /// The same, and then every digit, or runs of them, by themselves.
    PatternsThenDigits { patterns: &'static [&'static str], each_digit: bool },
}

const PLAIN: Family =
    Family { splitting: Splitting::Gpt2, composes: false, ignores_merges: false, adds_bos: false };
const SMOLLM: Family = Family { splitting: Splitting::DigitsThenGpt2, ..PLAIN };
const QWEN: Family = Family { splitting: Splitting::Pattern(QWEN2), composes: true, ..PLAIN };
const LLAMA_BPE: Family =
    Family { splitting: Splitting::Pattern(LLAMA3), ignores_merges: true, adds_bos: true, ..PLAIN };
/// The pattern of Llama 3 with merges that count.
const CL100K: Family = Family { splitting: Splitting::Pattern(LLAMA3), ..PLAIN };

/// The names that llama.cpp writes for the families that are run here, and those that split as they do.
const FAMILIES: [(&str, Family); 27] = [
    ("default", PLAIN),
    ("gpt-2", PLAIN),
    ("phi-2", PLAIN),
    ("jina-es", PLAIN),
    ("jina-de", PLAIN),
    ("olmo", PLAIN),
    ("roberta-bpe", PLAIN),
    ("smollm", SMOLLM),
    ("codeshell", SMOLLM),
    ("command-r", SMOLLM),
    ("refact", SMOLLM),
    ("starcoder", SMOLLM),
    ("qwen2", QWEN),
    ("deepseek-r1-qwen", QWEN),
    ("stablelm2", Family { composes: false, ..QWEN }),
    ("llama-bpe", LLAMA_BPE),
    ("llama3", LLAMA_BPE),
    ("llama-v3", LLAMA_BPE),
    ("falcon3", Family { adds_bos: false, ..LLAMA_BPE }),
    ("dbrx", CL100K),
    ("smaug-bpe", CL100K),
    (
        "tekken",
        Family { splitting: Splitting::Pattern(TEKKEN), ignores_merges: true, adds_bos: true, ..PLAIN },
    ),
    ("gpt-4o", Family { splitting: Splitting::Pattern(GPT4O), ..PLAIN }),
    ("llama4", Family { splitting: Splitting::Pattern(GPT4O), adds_bos: true, ..PLAIN }),
    (
        "deepseek-llm",
        Family {
            splitting: Splitting::PatternsThenDigits { patterns: DEEPSEEK_LLM, each_digit: true },
            adds_bos: true,
            ..PLAIN
        },
    ),
    (
        "deepseek-coder",
        Family {
            splitting: Splitting::PatternsThenDigits { patterns: DEEPSEEK_CODER, each_digit: true },
            adds_bos: true,
            ..PLAIN
        },
    ),
    ("deepseek-v3", Family { splitting: Splitting::Patterns(DEEPSEEK_V3), adds_bos: true, ..PLAIN }),
];

impl Family {
    pub(super) fn named(name: &str) -> Result<Self, TokenizerError> {
        let found = FAMILIES.iter().find(|(known, _)| *known == name);
        found.map(|(_, family)| *family).ok_or_else(|| TokenizerError::PreTokenizer {
            given: name.to_owned(),
            known: FAMILIES.map(|(known, _)| known).join(", "),
        })
    }

    pub(super) fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let gpt2 = || PreTokenizerWrapper::from(ByteLevel::new(false, true, true));
        Ok(match self.splitting {
            Splitting::Gpt2 => gpt2(),
            Splitting::DigitsThenGpt2 => Sequence::new(vec![Digits::new(true).into(), gpt2()]).into(),
            Splitting::Pattern(pattern) => sequence(&[pattern], None)?,
            Splitting::Patterns(patterns) => sequence(patterns, None)?,
            Splitting::PatternsThenDigits { patterns, each_digit } => sequence(patterns, Some(each_digit))?,
        })
    }
}

/// Splits by each pattern in turn, by digits where asked for, then maps bytes to characters.
fn sequence(patterns: &[&str], digits: Option<bool>) -> Result<PreTokenizerWrapper, TokenizerError> {
    let mut parts = Vec::new();
    for pattern in patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split =
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(TokenizerError::Build)?;
        parts.push(split.into());
    }
    parts.extend(digits.map(|each| PreTokenizerWrapper::from(Digits::new(each))));
    parts.push(ByteLevel::new(false, false, false).into());
    Ok(Sequence::new(parts).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_splits() {
        for (name, family) in FAMILIES {
            assert!(family.pre_tokenizer().is_ok(), "{name}");
        }
    }
}
