//! Request life cycle: tokens and text, stop conditions, the engine loop, Llm and AsyncLlm.
