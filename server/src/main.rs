//! The command `quire`.

use std::process::ExitCode;

fn main() -> ExitCode {
    quire::App::new().run()
}
