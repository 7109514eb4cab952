// Prefill attention over activations of f16; see attention_prefill.cuh.

#include "attention_prefill.cuh"

ATTENTION_PREFILL_HEADS(f16_f16, __half, __half)
ATTENTION_PREFILL_HEADS(f16_fp8_e4m3, __half, attention::E4M3)
ATTENTION_PREFILL_HEADS(f16_fp8_e5m2, __half, attention::E5M2)
