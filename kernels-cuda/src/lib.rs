//! The CUDA kernel backend of Quire.
