"""Writes quant.json: random blocks of every format, and what their reference implementations make of them.

    pip install gguf==0.19.0 numpy ml_dtypes==0.5.4 && python quant.py

GGUF formats: the package gguf. 8-bit floats: ml_dtypes, the types behind JAX and PyTorch checkpoints.
Bytes are hexadecimal; values are the hexadecimal bits of their f32, so that equal means equal.
"""
import json
import pathlib

import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as T

rng = np.random.default_rng(20240613)
# Where the half-precision scales of a block lie.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
          T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
          T.IQ4_NL: [0], T.IQ4_XS: [0]}


def bits(values):
    return np.ascontiguousarray(values, dtype=np.float32).tobytes().hex()


def random_blocks(kind, count):
    length, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for block in blocks:
        for at in SCALES[kind]:
            block[at:at + 2] = np.array([rng.normal() * 0.05], np.float16).view(np.uint8)
    return blocks


def decoded(kind):
    blocks = random_blocks(kind, 2 if gguf.GGML_QUANT_SIZES[kind][0] == 256 else 4)
    values = gguf.quants.dequantize(blocks, kind)
    return {"bytes": blocks.tobytes().hex(), "values": bits(values)}


def encoded(kind):
    values = rng.normal(size=(4, 32)).astype(np.float32)
    return {"values": bits(values), "bytes": gguf.quants.quantize(values, kind).tobytes().hex()}


def float8(dtype):
    codes = np.arange(256, dtype=np.uint8)
    # Inside the finite range: beyond it ml_dtypes gives NaN or infinity, and Quire saturates.
    values = (rng.normal(size=256) * np.exp2(rng.uniform(-18, 6, 256))).astype(np.float32)
    return {"decode": {"bytes": codes.tobytes().hex(), "values": bits(codes.view(dtype).astype(np.float32))},
            "encode": {"values": bits(values), "bytes": values.astype(dtype).view(np.uint8).tobytes().hex()}}


golden = {"decode": {k.name.lower(): decoded(k) for k in SCALES},
          "encode": {k.name.lower(): encoded(k) for k in SCALES
                     if gguf.GGML_QUANT_SIZES[k][0] == 32 and k != T.IQ4_NL}}
halves = rng.integers(0, 0x7c00, 128).astype(np.uint16) | (rng.integers(0, 2, 128).astype(np.uint16) << 15)
golden["decode"]["f16"] = {"bytes": halves.tobytes().hex(), "values": bits(halves.view(np.float16))}
golden["decode"]["bf16"] = {"bytes": halves.tobytes().hex(),
                            "values": bits(halves.view(ml_dtypes.bfloat16).astype(np.float32))}
for name, dtype in (("fp8_e4m3", ml_dtypes.float8_e4m3fn), ("fp8_e5m2", ml_dtypes.float8_e5m2)):
    both = float8(dtype)
    golden["decode"][name], golden["encode"][name] = both["decode"], both["encode"]
pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps(golden, indent=1) + "\n")
