//! Text to token ids and back, and where a model keeps what it takes.

mod contradictions;
mod error;
mod fault;
mod gguf;
mod hf;
mod pre_tokenizer;
mod probe;
mod sentence_piece;
mod template;
mod text;
mod word_piece;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokenizers::ModelWrapper;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::gguf::Gguf;

use text::Pieces;

pub use error::TokenizerError;
pub use template::ChatTemplates;
pub(crate) use template::template_files;
pub use text::{TextOptions, TextStream};

/// A tokenizer with what its model says about special tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The same, blind for special tokens in a text; made when first needed.
    blind: OnceLock<Box<tokenizers::Tokenizer>>,
    /// What its tokens stand for; made when first needed.
    pieces: OnceLock<Option<Pieces>>,
    /// The largest id of a token and one; made when first needed.
    num_ids: OnceLock<usize>,
    named: NamedTokens,
    eos_token_ids: BTreeSet<u32>,
    /// Settings of its file that are for batches of training, and are left alone.
    unheeded: Vec<String>,
}

/// The special tokens that have a role, as text: what a chat template refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedTokens {
    /// Begins a text.
    pub bos: Option<String>,
    /// Ends a text.
    pub eos: Option<String>,
    /// Fills a batch; never computed with here.
    pub pad: Option<String>,
    /// Stands for what the vocabulary lacks.
    pub unk: Option<String>,
}

/// What special tokens written in a text are read as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SpecialTokens {
    /// As what they stand for: a rendered chat template needs this.
    #[default]
    Recognized,
    /// As the characters they are written with: what text that is not trusted should get, so that nobody
    /// ends their own turn and speaks as the system.
    AsText,
}

/// How a text is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Whether the model's own frame (such as a BOS token in front) is put around the text. A rendered
    /// chat template holds it already.
    pub add_special_tokens: bool,
    /// What special tokens written in the text are read as.
    pub special_tokens: SpecialTokens,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { add_special_tokens: true, special_tokens: SpecialTokens::Recognized }
    }
}

impl Tokenizer {
    /// Opens the tokenizer of a model: a GGUF file, a folder with `tokenizer.json`, or that file itself.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if there is none or it cannot be used.
    pub fn open(path: &Path) -> Result<Self> {
        first_error(|errors| Self::survey(path, errors))
    }

    /// The same as far as it can be opened, with everything that is wrong.
    fn survey(path: &Path, errors: &mut Vec<Error>) -> Option<Self> {
        if path.is_dir() {
            return hf::survey_folder(path, errors);
        }
        if path.extension().is_some_and(|end| end == "json") {
            return hf::survey_file(path, errors);
        }
        let file = Gguf::open(path).map_err(|error| errors.push(error)).ok()?;
        gguf::survey(&file, errors)
    }

    /// The files that [`open`](Self::open) reads; `None` for a GGUF file.
    pub(crate) fn files_of(path: &Path) -> Option<[PathBuf; 2]> {
        if path.is_dir() {
            return Some(hf::files_of(&path.join(hf::FILE)));
        }
        path.extension().is_some_and(|end| end == "json").then(|| hf::files_of(path))
    }

    /// Texts are neither cut nor filled up, whatever the file was saved with: the reference sets both anew for each call.
    pub(crate) fn new(mut inner: tokenizers::Tokenizer, named: NamedTokens) -> Self {
        let eos_token_ids = named.eos.iter().filter_map(|text| inner.token_to_id(text)).collect();
        let cut = inner.get_truncation().map(|cut| format!("truncation to {} tokens", cut.max_length));
        let filled = inner.get_padding().map(|_| "padding".to_owned());
        let dropped = take_dropout(&mut inner).map(|share| format!("dropout of {share}"));
        let unheeded = cut.into_iter().chain(filled).chain(dropped).collect();
        inner.with_truncation(None).expect("texts that are not cut have room for any frame");
        inner.with_padding(None);
        let (blind, pieces, num_ids) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { inner, blind, pieces, num_ids, named, eos_token_ids, unheeded }
    }

    /// The same, known to have been made from `num_tokens` tokens whose ids are their places.
    pub(crate) fn of_list(inner: tokenizers::Tokenizer, named: NamedTokens, num_tokens: usize) -> Self {
        let tokenizer = Self::new(inner, named);
        // Fewer are there where one was listed twice.
        if tokenizer.vocab_size() == num_tokens {
            tokenizer.num_ids.get_or_init(|| num_tokens);
        }
        tokenizer
    }

    /// Settings of its file that are not heeded, in words.
    pub(crate) fn unheeded(&self) -> &[String] {
        &self.unheeded
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] where the tokenizer has no id for a part of it.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizerError> {
        let tokenizer = match options.special_tokens {
            SpecialTokens::Recognized => &self.inner,
            SpecialTokens::AsText => self.blind(),
        };
        let encoding =
            tokenizer.encode_fast(text, options.add_special_tokens).map_err(TokenizerError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, special tokens included, as [`TextStream`] gives it piece by piece: ids outside of the
    /// vocabulary are nothing; bytes that no character can have are one U+FFFD for each maximal part of a character.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_with(ids, TextOptions::default())
    }

    /// The text of `ids` without special tokens.
    pub fn decode_plain(&self, ids: &[u32]) -> String {
        self.decode_with(ids, TextOptions { skip_special_tokens: true, ..TextOptions::default() })
    }

    /// The text of `ids`.
    pub fn decode_with(&self, ids: &[u32], options: TextOptions) -> String {
        let (mut stream, mut text) = (TextStream::new(options), String::with_capacity(4 * ids.len()));
        ids.iter().for_each(|&id| stream.push(self, id, &mut text));
        stream.flush(self, &mut text);
        text
    }

    /// The bytes of a token within a text, special ones as they are written. None for an id outside of the vocabulary,
    /// and where tokens cannot be looked at one by one.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces()?.bytes_of(id)
    }

    /// The tokenizer itself, for decoding a stream or compiling a grammar.
    pub fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Tokens, added ones included. The model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The largest id of a token and one: rows that an embedding needs.
    pub fn num_ids(&self) -> usize {
        *self.num_ids.get_or_init(|| self.count_ids())
    }

    /// As [`num_ids`](Self::num_ids), of tokens that were not added to the vocabulary.
    pub(crate) fn num_base_ids(&self) -> usize {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let is_base = |id: &usize| u32::try_from(*id).is_ok_and(|id| !added.contains_key(&id));
        (0..self.num_ids()).rev().find(is_base).map_or(0, |last| last + 1)
    }

    fn count_ids(&self) -> usize {
        let num_tokens = self.vocab_size();
        // Where so many ids from 0 on have a token there are no others; asking is cheaper than a copy of all.
        let has_token = |id: usize| u32::try_from(id).is_ok_and(|id| self.inner.id_to_token(id).is_some());
        if (0..num_tokens).all(has_token) {
            return num_tokens;
        }
        let ids = self.inner.get_vocab(true).into_values();
        ids.max().map_or(0, |last| last as usize + 1)
    }

    /// The special tokens that have a role.
    pub fn named_tokens(&self) -> &NamedTokens {
        &self.named
    }

    /// Ids that end a text, as the tokenizer's files say. They join those of
    /// [`Checkpoint::eos_token_ids`].
    pub fn eos_token_ids(&self) -> &BTreeSet<u32> {
        &self.eos_token_ids
    }

    /// Whether a token is special: hidden from text that skips those.
    pub fn is_special(&self, id: u32) -> bool {
        if let Some(pieces) = self.pieces() {
            return pieces.is_special(id);
        }
        self.inner
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .get(&id)
            .is_some_and(|token| token.special)
    }

    /// Whether there is a token of that id.
    fn has_token(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    fn pieces(&self) -> Option<&Pieces> {
        self.pieces.get_or_init(|| Pieces::of(&self.inner, self.num_ids())).as_ref()
    }

    fn blind(&self) -> &tokenizers::Tokenizer {
        self.blind.get_or_init(|| {
            let mut blind = self.inner.clone();
            blind.set_encode_special_tokens(true);
            Box::new(blind)
        })
    }
}

/// Merges that are left out by chance are for training: a prompt is the same each time. How many were to be left out.
fn take_dropout(tokenizer: &mut tokenizers::Tokenizer) -> Option<f32> {
    let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
    let share = model.dropout.filter(|&share| share > 0.0)?;
    let mut model = model.clone();
    model.dropout = None;
    tokenizer.with_model(model);
    Some(share)
}

impl Checkpoint {
    /// The model's tokenizer.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if it has none or it cannot be used.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        first_error(|errors| self.survey_tokenizer(errors))
    }

    /// The same as far as it can be opened, with everything that is wrong.
    pub(crate) fn survey_tokenizer(&self, errors: &mut Vec<Error>) -> Option<Tokenizer> {
        match self.gguf() {
            Some(file) => gguf::survey(file, errors),
            None => Tokenizer::survey(self.path(), errors),
        }
    }

    /// The model's chat templates; empty where it has none.
    ///
    /// # Errors
    /// [`Error::Json`] or [`Error::Gguf`] where a file that would hold one cannot be read.
    pub fn chat_templates(&self) -> Result<ChatTemplates> {
        first_error(|errors| Some(self.survey_templates(errors)))
    }

    /// Those that can be read, with everything that is wrong.
    pub(crate) fn survey_templates(&self, errors: &mut Vec<Error>) -> ChatTemplates {
        match self.gguf() {
            Some(file) => ChatTemplates::from_gguf(file, errors),
            None => ChatTemplates::from_folder(self.path(), errors),
        }
    }
}

/// What was opened, if nothing is wrong with it.
fn first_error<T>(open: impl FnOnce(&mut Vec<Error>) -> Option<T>) -> Result<T> {
    let mut errors = Vec::new();
    let opened = open(&mut errors);
    match (errors.into_iter().next(), opened) {
        (Some(error), _) => Err(error),
        (None, Some(opened)) => Ok(opened),
        (None, None) => unreachable!("what cannot be opened gives an error"),
    }
}

fn refuse(path: &Path, source: TokenizerError) -> Error {
    Error::Tokenizer { path: path.to_owned(), source }
}
