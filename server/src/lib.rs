//! Quire: facade, command line and server; the only crate that names kernel backends.
