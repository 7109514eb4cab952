//! llama.cpp's logits of the same texts from the same file, by `tests/tools/llama_cpp_logits.c`.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Names the built program; `cargo xtask golden --against llama.cpp` sets it.
const PROGRAM: &str = "QUIRE_TEST_LLAMA_CPP_LOGITS";

/// The running program.
pub(crate) struct Peer {
    child: Child,
}

impl Peer {
    /// Starts the program, where one is named.
    pub(crate) fn start(model: &Path, max_tokens: usize) -> Option<Self> {
        let program = std::env::var_os(PROGRAM)?;
        let mut command = Command::new(program);
        // One thread: several that wait for each other stand still where a core is shared.
        command.arg(model).args(["1".to_owned(), max_tokens.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Some(Self { child: child.expect("the peer starts") })
    }

    /// `[texts.len()][tokens][vocab_size]`, a text at a time.
    pub(crate) fn logits(
        mut self,
        texts: &[Vec<u32>],
        vocab_size: usize,
    ) -> impl Iterator<Item = Vec<Vec<f32>>> {
        texts.iter().map(move |ids| {
            self.send(ids);
            ids.iter().map(|_| self.read_row(vocab_size)).collect()
        })
    }

    fn send(&mut self, ids: &[u32]) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        let words = [&[ids.len() as u32], ids].concat();
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        input.write_all(&bytes).and_then(|()| input.flush()).expect("the peer reads");
    }

    fn read_row(&mut self, vocab_size: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * vocab_size];
        let output = self.child.stdout.as_mut().expect("it is piped");
        output.read_exact(&mut bytes).expect("the peer writes the logits of each token");
        bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().expect("four bytes"))).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Without input it ends by itself.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
