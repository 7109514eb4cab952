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
}

const PLAIN: Family =
    Family { splitting: Splitting::Gpt2, composes: false, ignores_merges: false, adds_bos: false };

const FAMILIES: [(&str, Family); 6] = [
    ("default", PLAIN),
    ("gpt-2", PLAIN),
    ("smollm", Family { splitting: Splitting::DigitsThenGpt2, ..PLAIN }),
    ("qwen2", Family { splitting: Splitting::Pattern(QWEN2), composes: true, ..PLAIN }),
    ("llama-bpe", LLAMA_BPE),
    ("llama3", LLAMA_BPE),
];

const LLAMA_BPE: Family =
    Family { splitting: Splitting::Pattern(LLAMA3), ignores_merges: true, adds_bos: true, ..PLAIN };

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
            Splitting::Pattern(pattern) => {
                let pattern = SplitPattern::Regex(pattern.to_owned());
                let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(TokenizerError::Build)?;
                Sequence::new(vec![split.into(), ByteLevel::new(false, false, false).into()]).into()
            }
        })
    }
}
