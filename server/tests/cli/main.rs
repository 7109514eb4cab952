//! The program from outside: standard output, standard error and exit codes, on a tiny model.

mod chat;
mod models;
mod output;
#[path = "../common/program.rs"]
mod program;
mod refusals;
mod start;

use program::{Ran, Tiny, run};

impl Tiny {
    /// `quire COMMAND MODEL WORDS...`
    fn run(&self, command: &str, words: &[&str]) -> Ran {
        run(&[&[command, &self.path()], words].concat(), "")
    }

    fn generate(&self, words: &[&str]) -> Ran {
        self.run("generate", &[&["--prompt", "hello", "--temperature", "0", "--ignore-eos"], words].concat())
    }
}
