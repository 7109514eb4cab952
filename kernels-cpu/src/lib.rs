//! The CPU kernel backend of Quire: SIMD chosen at run time, many threads.
#![allow(unsafe_code)]

mod access;
mod activation;
mod attention;
mod buffer;
mod device;
mod isa;
mod lanes;
mod linear;
mod machine;
mod norm;
mod pool;
mod rope;
#[cfg(test)]
mod testing;

pub use isa::Isa;
