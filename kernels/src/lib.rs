//! Tensors, dtypes and the traits of a Quire kernel backend, with a plain reference and a conformance suite.
