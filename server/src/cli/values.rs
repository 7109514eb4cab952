//! Values of flags, and what is said of wrong ones.

use quire_engine::Bytes;

/// A number of bytes, with or without a unit.
pub(super) fn bytes(text: &str) -> Result<u64, &'static str> {
    let expected = "expected an amount of memory, such as 2GiB, 512M, 1TiB or 1000000";
    text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|_| expected)
}

/// The same, above zero.
pub(super) fn some_bytes(text: &str) -> Result<u64, &'static str> {
    bytes(text).and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("expected at least 1 byte") })
}

/// A number that counts something.
pub(super) fn count(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 0 or more and below 2^64")
}

/// The same, above zero.
pub(super) fn some(text: &str) -> Result<u64, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("expected a whole number, at least 1 and below 2^64")
}

/// A number of seconds.
pub(super) fn seconds(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "expected a whole number of seconds, 0 or more")
}

/// The same, above zero.
pub(super) fn some_seconds(text: &str) -> Result<u64, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("expected a whole number of seconds, at least 1")
}
