// Decode attention over activations of bf16; see attention_decode.cuh.

#include "attention_decode.cuh"

ATTENTION_DECODE_HEADS(bf16_bf16, __nv_bfloat16, __nv_bfloat16)
ATTENTION_DECODE_HEADS(bf16_fp8_e4m3, __nv_bfloat16, attention::E4M3)
ATTENTION_DECODE_HEADS(bf16_fp8_e5m2, __nv_bfloat16, attention::E5M2)
