//! Runs step batches on a device: worker, model runner, row state and sampling.
