//! `cargo fuzz run request`: the parser of input lines, the same body that the property tests of `quire-llm` drive.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quire::fuzz_request(data));
