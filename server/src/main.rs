//! The command `quire`.

use std::panic;
use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A seventh of a server's processor time under load was glibc's allocator in excess of this one.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    silence_caught_panics();
    quire::App::new().run()
}

/// A panic that is told as an error of a file needs no trace beside it.
fn silence_caught_panics() {
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !quire_models::panics_are_caught() {
            told(panic);
        }
    }));
}
