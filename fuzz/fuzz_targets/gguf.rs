//! `cargo fuzz run gguf`: the same body that the property tests of `quire-models` drive.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quire_models::gguf::fuzz(data));
