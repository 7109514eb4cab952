//! `cargo fuzz run safetensors`: the same body that the property tests of `quire-models` drive.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quire_models::safetensors::fuzz(data));
