//! Writing GGUF files.

use std::io;
use std::path::Path;

use quire_kernels::{DType, quant};

use super::{TinyModel, TinyTensor, TinyTokenizer};
use crate::checkpoint::GgufNames;
use crate::gguf::type_id;

const ALIGNMENT: usize = 32;

/// Bytes of a GGUF file, version 3.
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, MetadataValue)>,
    tensors: Vec<(String, DType, Vec<usize>, Vec<u8>)>,
}

/// A metadata value to write.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum MetadataValue {
    U16(u16),
    U32(u32),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

impl GgufWriter {
    /// Adds a metadata entry.
    pub fn set(&mut self, key: impl Into<String>, value: MetadataValue) {
        self.metadata.push((key.into(), value));
    }

    /// Sets a metadata entry that may be there already.
    pub fn replace(&mut self, key: &str, value: MetadataValue) {
        self.metadata.retain(|(known, _)| known != key);
        self.set(key, value);
    }

    /// Adds a tensor: its GGUF name, dtype, shape (the slowest dimension first) and bytes.
    pub fn add(&mut self, name: impl Into<String>, dtype: DType, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.push((name.into(), dtype, shape.to_vec(), bytes));
    }

    /// The same in several files, tensors by turns, as llama.cpp splits a model: all but the first have no other metadata
    /// than which of them they are.
    pub fn split(&self, num_files: u16) -> Vec<Self> {
        let num_tensors = self.tensors.len() as u32;
        let file = |number: u16| {
            let metadata = if number == 0 { self.metadata.clone() } else { Vec::new() };
            let tensors = self.tensors.iter().skip(number.into()).step_by(num_files.into());
            let mut file = Self { metadata, tensors: tensors.cloned().collect() };
            file.set("split.no", MetadataValue::U16(number));
            file.set("split.count", MetadataValue::U16(num_files));
            file.set("split.tensors.count", MetadataValue::U32(num_tensors));
            file
        };
        (0..num_files).map(file).collect()
    }

    /// The file.
    ///
    /// # Panics
    /// If a dtype is none that GGUF has.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            push_string(&mut file, key);
            value.push(&mut file);
        }
        let mut offset = 0;
        for (name, dtype, shape, bytes) in &self.tensors {
            push_string(&mut file, name);
            file.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|&dim| file.extend((dim as u64).to_le_bytes()));
            file.extend(type_id(*dtype).expect("the dtype exists in GGUF").to_le_bytes());
            file.extend((offset as u64).to_le_bytes());
            offset = (offset + bytes.len()).next_multiple_of(ALIGNMENT);
        }
        for (.., bytes) in &self.tensors {
            file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
            file.extend(bytes);
        }
        file
    }
}

impl MetadataValue {
    fn push(&self, file: &mut Vec<u8>) {
        let kind = |file: &mut Vec<u8>, id: u32| file.extend(id.to_le_bytes());
        match self {
            Self::U16(value) => {
                kind(file, 2);
                file.extend(value.to_le_bytes());
            }
            Self::U32(value) => {
                kind(file, 4);
                file.extend(value.to_le_bytes());
            }
            Self::F32(value) => {
                kind(file, 6);
                file.extend(value.to_le_bytes());
            }
            Self::Bool(value) => {
                kind(file, 7);
                file.push(u8::from(*value));
            }
            Self::String(value) => {
                kind(file, 8);
                push_string(file, value);
            }
            Self::Strings(values) => {
                kind(file, 9);
                kind(file, 8);
                file.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| push_string(file, value));
            }
            Self::F32s(values) => {
                kind(file, 9);
                kind(file, 6);
                file.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| file.extend(value.to_le_bytes()));
            }
            Self::I32s(values) => {
                kind(file, 9);
                kind(file, 5);
                file.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| file.extend(value.to_le_bytes()));
            }
        }
    }
}

impl TinyModel {
    /// Writes the model as a GGUF file, tokenizer and chat template included.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write_gguf(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.to_gguf().to_bytes())
    }

    /// The model as a GGUF file that can still be changed.
    pub fn to_gguf(&self) -> GgufWriter {
        let mut file = GgufWriter::default();
        self.set_config(&mut file);
        set_tokenizer(&mut file);
        let names = GgufNames::of(self.architecture);
        for tensor in self.tensors() {
            let place = names.place(&tensor.name).expect("every tensor has a name in GGUF");
            let values = self.stored_rows(&tensor);
            file.add(place.tensor, tensor.dtype, &tensor.shape, quant::encode(tensor.dtype, &values));
        }
        file
    }

    fn set_config(&self, file: &mut GgufWriter) {
        use MetadataValue::{F32, String, U32};
        let arch = if self.architecture == "LlamaForCausalLM" { "llama" } else { "qwen2" };
        file.set("general.architecture", String(arch.to_owned()));
        for (key, value) in [
            ("block_count", self.num_layers),
            ("context_length", self.max_position_embeddings),
            ("embedding_length", self.hidden_size),
            ("feed_forward_length", self.intermediate_size),
            ("attention.head_count", self.num_heads),
            ("attention.head_count_kv", self.num_kv_heads),
            ("attention.key_length", self.head_dim),
        ] {
            file.set(format!("{arch}.{key}"), U32(value as u32));
        }
        file.set(format!("{arch}.attention.layer_norm_rms_epsilon"), F32(1e-5));
        file.set(format!("{arch}.rope.freq_base"), F32(10_000.0));
    }

    /// The values in the order of the file: q and k of a Llama have the two elements that rotate together
    /// side by side.
    fn stored_rows(&self, tensor: &TinyTensor) -> Vec<f32> {
        let is_rotated = tensor.name.contains(".q_proj.") || tensor.name.contains(".k_proj.");
        if self.architecture != "LlamaForCausalLM" || !is_rotated {
            return tensor.values.clone();
        }
        let row_len = tensor.values.len() / tensor.shape[0];
        let heads = tensor.values.chunks(row_len * self.head_dim);
        let rows = heads.flat_map(|head| {
            let row = move |at: usize| &head[at * row_len..(at + 1) * row_len];
            (0..self.head_dim).flat_map(move |at| row(at / 2 + at % 2 * (self.head_dim / 2)))
        });
        rows.copied().collect()
    }
}

fn set_tokenizer(file: &mut GgufWriter) {
    use MetadataValue::{Bool, I32s, String, Strings, U32};
    let tokens = TinyTokenizer::tokens();
    let kinds = (0..tokens.len()).map(|id| if id < TinyTokenizer::SPECIAL.len() { 3 } else { 1 });
    file.set("tokenizer.ggml.model", String("gpt2".to_owned()));
    file.set("tokenizer.ggml.pre", String("gpt-2".to_owned()));
    file.set("tokenizer.ggml.token_type", I32s(kinds.collect()));
    file.set("tokenizer.ggml.tokens", Strings(tokens));
    file.set("tokenizer.ggml.merges", Strings(TinyTokenizer::merges().map(str::to_owned).to_vec()));
    file.set("tokenizer.ggml.bos_token_id", U32(TinyTokenizer::BOS));
    file.set("tokenizer.ggml.eos_token_id", U32(TinyTokenizer::EOS));
    file.set("tokenizer.ggml.add_bos_token", Bool(false));
    file.set("tokenizer.chat_template", String(TinyTokenizer::CHAT_TEMPLATE.to_owned()));
}

fn push_string(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}
