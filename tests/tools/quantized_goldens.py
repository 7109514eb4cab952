"""Tiny random Llamas in every quantized form, with the logits of their dequantized weights by `transformers`.

    pip install torch transformers numpy safetensors ml_dtypes
    pip install compressed-tensors                  # optional: its packing is then compared with the one written here
    python tests/tools/quantized_goldens.py [NAME ...]

Writes tests/golden/quantized/NAME/: config.json and model.safetensors as a quantizer would, and golden.json with a prompt, the
logits at its last places and the greedy continuation. Packing is written out by hand from the layouts that the libraries
document: AutoGPTQ `qlinear_cuda_old` (zero points less one), AutoAWQ `WQLinear_GEMM`, compressed-tensors `pack_to_int32`.
The logits are computed in float64 from the dequantized weights, so that what is left is the rounding of the other side.
"""

import json
import pathlib
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).resolve().parents[1] / "golden" / "quantized"
GROUP = 32
CONFIG = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, vocab_size=64, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    tie_word_embeddings=True, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", torch_dtype="float16",
)
LINEARS = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
}
F8 = ml_dtypes.float8_e4m3fn
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(integers, bits, axis):
    """Neighbours along the axis in one 32-bit word, the first in the lowest bits."""
    integers = np.moveaxis(integers.astype(np.uint64), axis, -1)
    per_word = 32 // bits
    fill = -integers.shape[-1] % per_word
    integers = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, fill)])
    lanes = integers.reshape(*integers.shape[:-1], -1, per_word) << (bits * np.arange(per_word, dtype=np.uint64))
    return np.ascontiguousarray(np.moveaxis(lanes.sum(-1).astype(np.uint32).view(np.int32), -1, axis))


def grouped(rng, weight, bits, group, symmetric, order=None):
    """Integers, scales [rows, groups] in float16, zero points [rows, groups]; `order` gives each column its group."""
    rows, columns = weight.shape
    group = columns if group == -1 else group
    order = np.arange(columns) // group if order is None else order
    top = 2**bits - 1
    scales, zeros = np.zeros((2, rows, order.max() + 1))
    for g in range(order.max() + 1):
        block = weight[:, order == g]
        if symmetric:
            scales[:, g] = np.abs(block).max(1) * 2 / top
            zeros[:, g] = (top + 1) / 2
        else:
            low, high = np.minimum(block.min(1), 0), np.maximum(block.max(1), 0)
            scales[:, g] = (high - low) / top
            zeros[:, g] = np.round(-low / scales[:, g])
    # A zero point of 0 is what the first version of GPTQ stores with all bits set.
    scales, zeros = scales.astype(np.float16), np.clip(zeros, 0, top)
    spread_scales, spread_zeros = scales.astype(np.float64)[:, order], zeros[:, order]
    integers = np.clip(np.round(weight / spread_scales) + spread_zeros, 0, top)
    return integers.astype(int), scales, zeros.astype(int), (integers - spread_zeros) * spread_scales


def random_order(rng, columns):
    return rng.permutation(np.arange(columns) // GROUP)


def gptq(rng, weight, bits=4, group=GROUP, symmetric=True, desc_act=False, less_one=1):
    order = random_order(rng, weight.shape[1]) if desc_act else None
    q, scales, zeros, value = grouped(rng, weight, bits, group, symmetric, order)
    columns = weight.shape[1]
    order = np.arange(columns) // (columns if group == -1 else group) if order is None else order
    stored_zeros = (zeros - less_one) % 2**bits
    return value, {
        "qweight": words(q.T, bits, 0), "qzeros": words(stored_zeros.T, bits, 1),
        "scales": np.ascontiguousarray(scales.T), "g_idx": order.astype(np.int32),
    }


def awq(rng, weight):
    q, scales, zeros, value = grouped(rng, weight, 4, GROUP, False)

    def pack(integers):
        in_order = integers.reshape(integers.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(integers.shape)
        return words(in_order, 4, 1)

    return value, {"qweight": pack(q.T), "qzeros": pack(zeros.T), "scales": np.ascontiguousarray(scales.T)}


def packed(rng, weight, bits=4, symmetric=True, actorder=False):
    order = random_order(rng, weight.shape[1]) if actorder else None
    q, scales, zeros, value = grouped(rng, weight, bits, GROUP, symmetric, order)
    tensors = {
        "weight_packed": words(q, bits, 1), "weight_scale": scales.astype(ml_dtypes.bfloat16).astype(np.float32),
        "weight_shape": np.array(weight.shape, np.int64),
    }
    cross_check(q, zeros, bits)
    # The scales are rounded to bfloat16 once more, as such files store them.
    spread = (np.arange(weight.shape[1]) // GROUP) if order is None else order
    value = (q - zeros[:, spread]) * tensors["weight_scale"].astype(np.float64)[:, spread]
    tensors["weight_scale"] = tensors["weight_scale"].astype(ml_dtypes.bfloat16)
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros, bits, 0)
    if actorder:
        tensors["weight_g_idx"] = order.astype(np.int32)
    return value, tensors


def cross_check(q, zeros, bits):
    try:
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    except ImportError:
        try:
            from compressed_tensors.compressors.quantized_compressors.pack_quantized import pack_to_int32
        except ImportError:
            return
    import torch

    signed = lambda integers: torch.tensor(integers - 2 ** (bits - 1), dtype=torch.int8)
    assert (pack_to_int32(signed(q), bits).numpy() == words(q, bits, 1)).all()
    assert (pack_to_int32(signed(zeros), bits, packed_dim=0).numpy() == words(zeros, bits, 0)).all()
    cross_check.count += 1


cross_check.count = 0


def int8(rng, weight, symmetric=True):
    rows = weight.shape[0]
    if symmetric:
        scales = (np.abs(weight).max(1, keepdims=True) / 127).astype(ml_dtypes.bfloat16)
        zeros = np.zeros((rows, 1), np.int8)
    else:
        low, high = weight.min(1, keepdims=True), weight.max(1, keepdims=True)
        scales = ((high - low) / 255).astype(ml_dtypes.bfloat16)
        zeros = np.clip(np.round(-128 - low / scales.astype(np.float64)), -128, 127).astype(np.int8)
    spread = scales.astype(np.float64)
    q = np.clip(np.round(weight / spread) + zeros, -128, 127).astype(np.int8)
    tensors = {"weight": q, "weight_scale": scales}
    if not symmetric:
        tensors["weight_zero_point"] = zeros
    return (q.astype(int) - zeros) * spread, tensors


def fp8(rng, weight, block=None, name="weight_scale", static=False):
    rows, columns = weight.shape
    height, width = block or (1, columns)
    shape = (-(-rows // height), -(-columns // width))
    spread = lambda scales: np.repeat(np.repeat(scales, height, 0)[:rows], width, 1)[:, :columns]
    scales = np.zeros(shape, np.float32)
    for r in range(shape[0]):
        for c in range(shape[1]):
            part = weight[r * height : (r + 1) * height, c * width : (c + 1) * width]
            scales[r, c] = np.abs(part).max() / 448
    q = (weight / spread(scales)).astype(np.float32).astype(F8)
    value = q.astype(np.float64) * spread(scales).astype(np.float64)
    tensors = {"weight": q, name: scales}
    if static:
        tensors[name] = scales.reshape(())
        tensors["input_scale"] = np.array(0.02, np.float32)
    return value, tensors


def compressed(format, **weights):
    scheme = {"targets": ["Linear"], "weights": dict(symmetric=True, **weights), "input_activations": None, "output_activations": None}
    return dict(
        quant_method="compressed-tensors", format=format, quantization_status="compressed", ignore=["lm_head"],
        config_groups={"group_0": scheme}, kv_cache_scheme=None,
    )


def method(quant_method, **fields):
    return dict(quant_method=quant_method, **fields)


# name: (how a weight is quantized, quantization_config)
CASES = {
    "gptq": (gptq, method("gptq", bits=4, group_size=GROUP, desc_act=False, sym=True)),
    "gptq-act-order": (
        lambda rng, w: gptq(rng, w, symmetric=False, desc_act=True),
        method("gptq", bits=4, group_size=GROUP, desc_act=True, sym=False, checkpoint_format="gptq"),
    ),
    "gptq-8": (lambda rng, w: gptq(rng, w, bits=8, symmetric=False), method("gptq", bits=8, group_size=GROUP, sym=False)),
    "gptq-channel": (lambda rng, w: gptq(rng, w, group=-1), method("gptq", bits=4, group_size=-1, desc_act=False, sym=True)),
    "gptq-v2": (
        lambda rng, w: gptq(rng, w, symmetric=False, less_one=0),
        method("gptq", bits=4, group_size=GROUP, sym=False, checkpoint_format="gptq_v2"),
    ),
    "awq": (awq, method("awq", bits=4, group_size=GROUP, zero_point=True, version="gemm")),
    "fp8-static": (
        lambda rng, w: fp8(rng, w, block=w.shape, static=True),
        method("fp8", activation_scheme="static", ignored_layers=["lm_head"], kv_cache_scheme="static"),
    ),
    "fp8-block": (
        lambda rng, w: fp8(rng, w, block=(48, 32), name="weight_scale_inv"),
        method("fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[48, 32]),
    ),
    "ct-fp8-channel": (
        fp8,
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
    ),
    "ct-w4a16": (packed, compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP)),
    "ct-w4a16-asym": (
        lambda rng, w: packed(rng, w, symmetric=False, actorder=True),
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP, actorder="group"),
    ),
    "ct-w8a16": (
        lambda rng, w: packed(rng, w, bits=8),
        compressed("pack-quantized", num_bits=8, type="int", strategy="group", group_size=GROUP),
    ),
    "ct-w8a8": (int8, compressed("int-quantized", num_bits=8, type="int", strategy="channel")),
    "ct-w8a8-asym": (
        lambda rng, w: int8(rng, w, symmetric=False),
        compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
    ),
}


def make(name, seed):
    quantize, quantization = CASES[name]
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape)
    dense = {"model.embed_tokens.weight": normal(64, 64).astype(np.float16), "model.norm.weight": (1 + 0.1 * normal(64)).astype(np.float16)}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        dense[f"model.layers.0.{norm}.weight"] = (1 + 0.1 * normal(64)).astype(np.float16)
    stored, values = dict(dense), {key: value.astype(np.float64) for key, value in dense.items()}
    for module, (rows, columns) in LINEARS.items():
        value, tensors = quantize(rng, normal(rows, columns) * (2.0 / np.sqrt(columns)) + 0.01)
        values[f"model.layers.0.{module}.weight"] = value
        stored |= {f"model.layers.0.{module}.{part}": tensor for part, tensor in tensors.items()}
    if name == "fp8-static":
        stored["model.layers.0.self_attn.k_scale"] = np.array(0.25, np.float32)
        stored["model.layers.0.self_attn.v_scale"] = np.array(0.5, np.float32)
    config = dict(CONFIG, quantization_config=quantization)
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({key: np.ascontiguousarray(value).reshape(np.shape(value)) for key, value in stored.items()}, folder / "model.safetensors")
    (folder / "golden.json").write_text(json.dumps(golden(values, rng)) + "\n")


def golden(values, rng):
    import torch
    import transformers

    torch.set_default_dtype(torch.float64)
    fields = {key: value for key, value in CONFIG.items() if key not in ("architectures", "torch_dtype", "rope_theta")}
    config = transformers.LlamaConfig(**fields, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    model = transformers.LlamaForCausalLM(config).eval()
    missing = model.load_state_dict({key: torch.tensor(value) for key, value in values.items()}, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys, missing
    model.tie_weights()
    ids = [int(token) for token in rng.integers(3, 64, 20)]
    prompt = list(ids)
    with torch.no_grad():
        for _ in range(8):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        logits = model(torch.tensor([ids])).logits[0]
    places = [0, 18, 19, 26]
    return {
        "source": f"transformers {transformers.__version__}, float64",
        "prompt": prompt, "greedy": ids[20:],
        "logits": [[place, [round(float(v), 6) for v in logits[place]]] for place in places],
    }


if __name__ == "__main__":
    for seed, name in enumerate(CASES):
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(name, seed)
    print(f"{cross_check.count} tensors packed as compressed-tensors packs them")
