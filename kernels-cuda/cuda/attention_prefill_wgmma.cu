// Prefill attention by wgmma, over a cache of the type of the activations; see attention_prefill_wgmma.cuh. Empty on
// devices other than Hopper.

#include "attention_prefill_wgmma.cuh"

ATTENTION_PREFILL_WGMMA(bf16_bf16, __nv_bfloat16, 64)
ATTENTION_PREFILL_WGMMA(bf16_bf16, __nv_bfloat16, 128)
ATTENTION_PREFILL_WGMMA(f16_f16, __half, 64)
ATTENTION_PREFILL_WGMMA(f16_f16, __half, 128)
