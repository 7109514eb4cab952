// Gated activations.
//
// silu_mul  (bf16, f16)
//   gate_up: [rows, 2 * features], the gate and then the up projection; out: [rows, features]; row strides in
//   elements. out = gate / (1 + exp(-gate)) * up. 256 threads, 8 elements each;
//   grid = ceil(rows * ceil(features / 8) / 256)

// hot: silu_mul_*
// hot: silu_mul_*
#include "common.cuh"

namespace quire {

struct SiluMulParams {
    uint64_t gate_up, out;
    int64_t gate_up_stride, out_stride;
    uint32_t rows, features, is_vector, unused;
};

// exp overflows to infinity for gates below -88.7, where the quotient is 0 to the last bit of the dtype.
__device__ __forceinline__ float silu(float gate) { return gate * __frcp_rn(1.0f + __expf(-gate)); }

template <typename T> __device__ __forceinline__ void silu_mul(const SiluMulParams& p) {
    let_next_start();
    wait_for_previous();
    const uint32_t per_row = (p.features + 8 - 1) / 8;
    const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x, row = index / per_row;
    if (row >= p.rows) return;
    const uint32_t at = (index - row * per_row) * 8;
    const T* gate = reinterpret_cast<const T*>(p.gate_up) + row * p.gate_up_stride + at;
    const T* up = gate + p.features;
    T* out = reinterpret_cast<T*>(p.out) + row * p.out_stride + at;
    if (p.is_vector) {
        float g[8], u[8];
        load8(gate, g);
        load8(up, u);
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = silu(g[i]) * u[i];
        store8(out, g);
        return;
    }
    for (uint32_t i = 0; i < min((uint32_t)8, p.features - at); i++) {
        out[i] = from_f32<T>(silu(to_f32(gate[i])) * to_f32(up[i]));
    }
}

}  // namespace quire

using namespace quire;

extern "C" __global__ void __launch_bounds__(256) silu_mul_bf16(const __grid_constant__ SiluMulParams p) {
    silu_mul<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(256) silu_mul_f16(const __grid_constant__ SiluMulParams p) {
    silu_mul<f16>(p);
}
