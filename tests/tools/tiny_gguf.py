"""Headers of GGUF files of the tiny models in tests/golden/tiny, written by the `gguf` package.

    pip install gguf numpy
    python tests/tools/tiny_gguf.py [NAME ...]

Writes tests/golden/tiny-gguf/NAME.json: the bytes of the file up to its tensor data (hexadecimal), the fields of `config.json`
that were changed to what a GGUF file can say, and for each tensor how its data follows from the folder's tensors, with a sum
over that data. The data itself is made from the seed on both sides.

The conversion is written by hand after what llama.cpp's converter does with each architecture.
"""

import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np

import tiny_goldens

TINY = tiny_goldens.OUT
OUT = TINY.parent / "tiny-gguf"
ARCH = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "phi3": "phi3", "olmo2": "olmo2", "granite": "granite", "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
# The golden's fields that a GGUF file has no place for, set to what is understood there.
CASES = {
    "llama": {}, "llama-llama3": {}, "llama-linear": {}, "llama-yarn": {}, "mistral-full": {}, "qwen2-full": {}, "qwen3": {},
    "gemma2": dict(query_pre_attn_scalar=32), "gemma3": dict(query_pre_attn_scalar=32),
    "phi3": {}, "phi3-longrope": {}, "phi4-mini": dict(sliding_window=None), "olmo2": {}, "granite": {}, "qwen2-moe": {},
    "qwen3-moe": {}, "mixtral": {},
}
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
EXPERTS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps", "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}


def place(arch, name):
    """The file's tensor for a tensor of the folder, and the number of the expert it holds there."""
    stem, kind = name.rsplit(".", 1)
    layer = ""
    if stem.startswith("model.layers."):
        number, stem = stem.removeprefix("model.layers.").split(".", 1)
        layer = f"blk.{number}."
    if ".experts." in stem:
        number, part = stem.split(".experts.")[1].split(".")
        return f"{layer}{EXPERTS[part]}.{kind}", int(number)
    if stem == "post_attention_layernorm":
        return layer + ("post_attention_norm" if arch in ("gemma2", "gemma3", "olmo2") else "ffn_norm") + "." + kind, None
    return f"{layer}{NAMES[stem]}.{kind}", None


def permuted(values, heads):
    """The two elements of a head that rotate together, half a head apart, become neighbours."""
    shape = values.shape
    return values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def transform(arch, name, config):
    if arch in ("llama", "granite") and (".q_proj." in name or ".k_proj." in name):
        return ["permute", config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]]
    if arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
        return ["plus_one"]
    return ["copy"]


def convert(kind, values, argument=None):
    if kind == "permute":
        return permuted(values, argument)
    return values + np.float32(1) if kind == "plus_one" else values


def checksum(values):
    words = np.frombuffer(values.tobytes(), np.uint32).astype(np.uint64)
    return int((words * (2 * np.arange(len(words), dtype=np.uint64) + np.uint64(1))).sum(dtype=np.uint64))


def set_rope(writer, config, head_dim):
    """What the converter works out of the rotary parameters; gives tensors to add."""
    rope = config["rope_parameters"]
    if "full_attention" in rope:
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope.get("rope_type", "default")
    dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if config["model_type"] not in ("gemma2", "gemma3_text"):
        writer.add_rope_dimension_count(dim)
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        return {"rope_freqs.weight": llama3_factors(rope, dim)}
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))
        return {
            "rope_factors_long.weight": np.array(rope["long_factor"], np.float32),
            "rope_factors_short.weight": np.array(rope["short_factor"], np.float32),
        }
    return {}


def llama3_factors(rope, dim):
    frequencies = rope["rope_theta"] ** -(np.arange(0, dim, 2) / dim)
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for wavelength in 2 * np.pi / frequencies:
        smooth = (original / wavelength - low) / (high - low)
        if wavelength < original / high:
            factors.append(1)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def set_config(writer, arch, config, head_dim):
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    experts = config.get("num_local_experts", config.get("num_experts"))
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if arch in ("gemma2", "gemma3", "phi3") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if arch == "gemma3":
        writer.add_sliding_window_pattern(config["layer_types"].index("full_attention") + 1)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def run(name):
    golden = json.loads((TINY / f"{name}.json").read_text())
    config = {**golden["config"], **CASES[name]}
    arch = ARCH[config["model_type"]]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_type(gguf.GGUFType.MODEL)
        set_config(writer, arch, config, head_dim)
        extra = set_rope(writer, config, head_dim)
        parts = {}
        for tensor, shape, center, spread in golden["tensors"]:
            where, expert = place(arch, tensor)
            kind = transform(arch, tensor, config)
            values = convert(kind[0], tiny_goldens.tensor(golden["seed"], tensor, shape, center, spread), *kind[1:])
            parts.setdefault(where, []).append((-1 if expert is None else expert, tensor, kind, values))
        tensors = []
        for where, group in parts.items():
            group.sort(key=lambda part: part[0])
            values = np.stack([part[3] for part in group]) if group[0][0] >= 0 else group[0][3]
            writer.add_tensor(where, values)
            tensors.append([where, [part[1] for part in group], *group[0][2][:1], *(group[0][2][1:] or [0]), checksum(values), []])
        for where, values in extra.items():
            writer.add_tensor(where, values)
            tensors.append([where, [], "values", 0, checksum(values), [float(value) for value in values]])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        reader = gguf.GGUFReader(path)
        order = [tensor.name for tensor in reader.tensors]
        header = path.read_bytes()[: reader.data_offset]
    tensors.sort(key=lambda tensor: order.index(tensor[0]))
    result = dict(source="gguf 0.19.0", config=CASES[name], header=header.hex(), tensors=tensors)
    lines = ",\n".join(f'"{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in result.items())
    (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    print(f"{name}: {len(header)} bytes of header, {len(tensors)} tensors", flush=True)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or CASES:
        run(name)
