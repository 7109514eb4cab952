//! Printing that outlives its reader: `| head` ends what is printed, not the work.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Prints a line to standard output.
macro_rules! out {
    ($($arg:tt)*) => { $crate::print::to_stdout(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Prints a line to standard error.
macro_rules! note {
    ($($arg:tt)*) => { $crate::print::to_stderr(format_args!("{}\n", format_args!($($arg)*))) };
}

pub(crate) use {note, out};

/// Prints a text; a reader that is gone is none the less served. Other failures, a full disk say, end the program.
pub(crate) fn to_stdout(text: fmt::Arguments<'_>) {
    if cfg!(test) {
        return captured(text);
    }
    match io::stdout().write_fmt(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            note!("error: standard output cannot be written: {error}");
            std::process::exit(1);
        }
        _ => {}
    }
}

/// Prints a text. Where that fails there is nobody to tell.
pub(crate) fn to_stderr(text: fmt::Arguments<'_>) {
    if cfg!(test) {
        return captured(text);
    }
    let _ = io::stderr().write_fmt(text);
}

/// What tests print is shown where they fail; libtest catches it from this macro alone.
#[allow(clippy::print_stdout)]
fn captured(text: fmt::Arguments<'_>) {
    print!("{text}");
}
