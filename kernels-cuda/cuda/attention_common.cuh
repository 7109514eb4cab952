// What the attention kernels share: element types, tensor core products, asynchronous copies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math_constants.h>
#include <stdint.h>

#include "overlap.cuh"

namespace attention {

using quire::let_next_start;
using quire::wait_for_previous;

// Shared memory that a block may have on the devices that this is compiled for.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900 || (__CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200)
constexpr int SHARED_LIMIT = 227 << 10;
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
constexpr int SHARED_LIMIT = 163 << 10;
#else
constexpr int SHARED_LIMIT = 99 << 10;
#endif

// ---- Element types -------------------------------------------------------------------------------------------

// A 16-bit type of activations and of operands of a product.
template <typename T>
struct Half;

template <>
struct Half<__half> {
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
    static __device__ __forceinline__ float2 unpack(uint32_t pair) {
        return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
    }
    // c += a b, 16 x 8 += 16 x 16 times 16 x 8.
    static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

template <>
struct Half<__nv_bfloat16> {
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
    static __device__ __forceinline__ float2 unpack(uint32_t pair) {
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    }
    static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct E4M3 {
    uint8_t bits;
};
struct E5M2 {
    uint8_t bits;
};

// Two bytes of an 8-bit float as two halves: exact, in both formats.
template <typename S>
__device__ __forceinline__ uint32_t fp8x2_to_half2(uint32_t two);

template <>
__device__ __forceinline__ uint32_t fp8x2_to_half2<E5M2>(uint32_t two) {
    return __byte_perm(two, 0, 0x1404);  // The upper byte of a half with the same exponent.
}

template <>
__device__ __forceinline__ uint32_t fp8x2_to_half2<E4M3>(uint32_t two) {
#if __CUDA_ARCH__ >= 890
    uint32_t halves;
    asm("{ .reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t; }" : "=r"(halves) : "r"(two & 0xffffu));
    return halves;
#else
    // Moving the bits gives the value over 256, for subnormal numbers too.
    const uint32_t spread = __byte_perm(two, 0, 0x1404);
    const uint32_t shifted = (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 1);
    const __half2 scaled = __hmul2(*reinterpret_cast<const __half2 *>(&shifted), __float2half2_rn(256.0f));
    return *reinterpret_cast<const uint32_t *>(&scaled);
#endif
}

// The type of the operands of products: an 8-bit cache is read as halves, whatever the activations are, since those
// hold it exactly and with one instruction; a cache of 16 bits as it is.
template <typename T, typename S>
struct Operand {
    using Type = S;
};
template <typename T>
struct Operand<T, E4M3> {
    using Type = __half;
};
template <typename T>
struct Operand<T, E5M2> {
    using Type = __half;
};

// Two activations as two operands.
template <typename From, typename To>
__device__ __forceinline__ uint32_t convert2(uint32_t pair) {
    const float2 wide = Half<From>::unpack(pair);
    return Half<To>::pack(wide.x, wide.y);
}
template <>
__device__ __forceinline__ uint32_t convert2<__half, __half>(uint32_t pair) {
    return pair;
}
template <>
__device__ __forceinline__ uint32_t convert2<__nv_bfloat16, __nv_bfloat16>(uint32_t pair) {
    return pair;
}

__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- Shared memory -------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes, or zeroes them.
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool is_valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

}  // namespace attention
