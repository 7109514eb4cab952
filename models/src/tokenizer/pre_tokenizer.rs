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
const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
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
