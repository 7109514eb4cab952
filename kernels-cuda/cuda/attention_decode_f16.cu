// Decode attention over activations of f16; see attention_decode.cuh.

#include "attention_decode.cuh"

ATTENTION_DECODE_HEADS(f16_f16, __half, __half)
ATTENTION_DECODE_HEADS(f16_fp8_e4m3, __half, attention::E4M3)
ATTENTION_DECODE_HEADS(f16_fp8_e5m2, __half, attention::E5M2)
