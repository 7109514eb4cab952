//! Continuous batching: sequences, queues, a token budget and pluggable policies.
