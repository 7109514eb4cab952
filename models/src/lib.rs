//! Model configurations, checkpoints (safetensors, GGUF), tokenizer files and architectures written over kernel traits.
