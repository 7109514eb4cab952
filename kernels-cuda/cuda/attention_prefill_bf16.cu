// Prefill attention over activations of bf16; see attention_prefill.cuh.

#include "attention_prefill.cuh"

ATTENTION_PREFILL_HEADS(bf16_bf16, __nv_bfloat16, __nv_bfloat16)
ATTENTION_PREFILL_HEADS(bf16_fp8_e4m3, __nv_bfloat16, attention::E4M3)
ATTENTION_PREFILL_HEADS(bf16_fp8_e5m2, __nv_bfloat16, attention::E5M2)
