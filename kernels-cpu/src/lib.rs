//! The CPU kernel backend of Quire: SIMD chosen at run time, many threads.
#![allow(unsafe_code)]

mod access;
mod buffer;
mod device;
mod isa;
mod machine;
mod pool;

pub use isa::Isa;
