//! Block allocator, block tables and prefix cache of a paged KV cache: bookkeeping only, no device memory.
