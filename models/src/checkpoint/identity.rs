//! What tells a model from others, without reading all of it.

use std::path::Path;

use super::{Checkpoint, TensorSpec};
use crate::file;
use crate::tokenizer::{Tokenizer, template_files};

/// Files beside the weights that decide what a model computes or how it is asked.
const SETTINGS: [&str; 3] = ["config.json", "generation_config.json", "model.safetensors.index.json"];

impl Checkpoint {
    /// Gives `add` the names and lengths of the files that weights lie in.
    pub fn identify_files(&self, add: &mut dyn FnMut(&[u8])) {
        for (path, num_bytes) in self.files() {
            add(path.file_name().unwrap_or_default().as_encoded_bytes());
            add(&num_bytes.to_le_bytes());
        }
    }

    /// Gives `add`, always in the same order and pieces, what tells the content of a model's files from that of others:
    /// configuration, tokenizer and templates whole, the headers of weights whole, and of each tensor the beginning and the
    /// end. A weight that was changed between those is not seen; training changes all of them.
    pub fn identify_content(&self, add: &mut dyn FnMut(&[u8])) {
        self.identify_files(add);
        self.source.headers().iter().for_each(|header| add(header));
        if self.gguf().is_none() {
            SETTINGS.iter().for_each(|name| add_file(&self.path.join(name), add));
            identify_tokenizer(&self.path, add);
            template_files(&self.path).unwrap_or_default().iter().for_each(|path| add_file(path, add));
        }
        for name in self.source.names() {
            for part in self.source.parts(&TensorSpec::new(name, &[])) {
                let samples = part.samples();
                for place in [samples.first(), samples.last()].into_iter().flatten() {
                    add(part.elements(place));
                }
            }
        }
    }
}

/// Gives `add` the files of the tokenizer at `path`, named as for [`Tokenizer::open`]; of a GGUF file the header.
pub fn identify_tokenizer(path: &Path, add: &mut dyn FnMut(&[u8])) {
    match Tokenizer::files_of(path) {
        Some(files) => files.iter().for_each(|path| add_file(path, add)),
        None => {
            let opened = crate::gguf::Gguf::open(path);
            opened.iter().flat_map(|file| file.headers()).for_each(|header| add(&header));
        }
    }
}

/// A file's name and content; nothing of what is not there, and of what cannot be read, which loading it tells.
fn add_file(path: &Path, add: &mut dyn FnMut(&[u8])) {
    if let Ok(content) = file::read(path) {
        add(path.file_name().unwrap_or_default().as_encoded_bytes());
        add(&content);
    }
}
