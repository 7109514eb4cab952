//! The CPU kernel backend of Quire: SIMD chosen at run time, many threads.
