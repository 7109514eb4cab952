//! Developer commands of the Quire repository.
fn main() {}
