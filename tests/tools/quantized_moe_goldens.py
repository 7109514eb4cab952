"""Tiny random mixtures of experts in quantized forms, with the logits of their dequantized weights in float64.

    pip install numpy safetensors ml_dtypes
    python tests/tools/quantized_moe_goldens.py

Writes tests/golden/quantized/NAME/ as `quantized_goldens.py` does, which has the packing. The decoder is written out below
with numpy, so that it depends on nothing; before anything is written it is compared with the logits that `transformers`
gave for the models tests/golden/tiny/qwen3-moe.json and mixtral.json.
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

import quantized_goldens as packing
import tiny_goldens

OUT = packing.OUT
TINY = pathlib.Path(__file__).resolve().parents[1] / "golden" / "tiny"
GREEDY = 8
# A token whose last expert is chosen by less than this would go elsewhere by rounding.
LEAST_GAP = 1e-3

BASE = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
    bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", torch_dtype="float16",
)
QWEN3 = dict(
    BASE, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", head_dim=16, num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=32, intermediate_size=96, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1],
)
MIXTRAL = dict(
    BASE, architectures=["MixtralForCausalLM"], model_type="mixtral", num_local_experts=4, num_experts_per_tok=2,
    intermediate_size=32, sliding_window=None,
)


# ---- The decoder ----------------------------------------------------------------------------------------------


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rotate(x, theta):
    """x [tokens, heads, head_dim]."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


def attention(w, name, x, config):
    heads, kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    part = lambda which, n: (x @ w[f"{name}.{which}_proj.weight"].T).reshape(len(x), n, -1)
    q, k, v = part("q", heads), part("k", kv_heads), part("v", kv_heads)
    if f"{name}.q_norm.weight" in w:
        q, k = rms_norm(q, w[f"{name}.q_norm.weight"], eps), rms_norm(k, w[f"{name}.k_norm.weight"], eps)
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    q, k = rotate(q, theta), rotate(k, theta)
    k, v = (np.repeat(t, heads // kv_heads, 1) for t in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    return np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(len(x), -1) @ w[f"{name}.o_proj.weight"].T


def gated(w, x, gate, up, down):
    return (silu(x @ w[f"{gate}.weight"].T) * (x @ w[f"{up}.weight"].T)) @ w[f"{down}.weight"].T


def expert_names(config):
    is_mixtral = config["model_type"] == "mixtral"
    return ("block_sparse_moe", "w1", "w3", "w2") if is_mixtral else ("mlp", "gate_proj", "up_proj", "down_proj")


def mlp(w, layer, x, config, gaps):
    module, *parts = expert_names(config)
    name = f"{layer}.{module}"
    if f"{name}.gate.weight" not in w:
        return gated(w, x, *(f"{layer}.mlp.{part}" for part in parts))
    shares = softmax(x @ w[f"{name}.gate.weight"].T)
    top = config["num_experts_per_tok"]
    out = np.zeros_like(x)
    for token, of in enumerate(shares):
        chosen = np.argsort(-of)
        gaps.append(of[chosen[top - 1]] - of[chosen[top]])
        chosen = chosen[:top]
        weights = of[chosen]
        if config.get("norm_topk_prob", True):
            weights = weights / weights.sum()
        for expert, weight in zip(chosen, weights):
            out[token] += weight * gated(w, x[token], *(f"{name}.experts.{expert}.{part}" for part in parts))
    return out


def forward(w, config, ids):
    """The logits after every token, and the smallest gap between an expert that was chosen and one that was not."""
    eps, gaps = config["rms_norm_eps"], []
    x = w["model.embed_tokens.weight"][ids]
    for idx in range(config["num_hidden_layers"]):
        layer = f"model.layers.{idx}"
        x = x + attention(w, f"{layer}.self_attn", rms_norm(x, w[f"{layer}.input_layernorm.weight"], eps), config)
        x = x + mlp(w, layer, rms_norm(x, w[f"{layer}.post_attention_layernorm.weight"], eps), config, gaps)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ head.T, min(gaps)


def check_decoder(name):
    golden = json.loads((TINY / f"{name}.json").read_text())
    w = {tensor: tiny_goldens.tensor(golden["seed"], tensor, *rest).astype(np.float64) for tensor, *rest in golden["tensors"]}
    logits, _ = forward(w, golden["config"], golden["prompt"] + golden["greedy"])
    worst = max(np.abs(logits[place] - np.array(expected)).max() for place, expected in golden["logits"])
    assert worst < 5e-5, (name, worst)
    print(f"{name}: {worst:.1e} from transformers")


# ---- The checkpoints ------------------------------------------------------------------------------------------


def linears(config):
    """Name and shape of all that is quantized: not the routers."""
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = hidden // heads
    module, gate, up, down = expert_names(config)
    for idx in range(config["num_hidden_layers"]):
        layer = f"model.layers.{idx}"
        for part, rows, columns in [("q", heads, 1), ("k", kv_heads, 1), ("v", kv_heads, 1)]:
            yield f"{layer}.self_attn.{part}_proj", (rows * head_dim, hidden)
        yield f"{layer}.self_attn.o_proj", (hidden, heads * head_dim)
        is_dense = idx in config.get("mlp_only_layers", [])
        width = config["intermediate_size"] if is_dense else config.get("moe_intermediate_size", config["intermediate_size"])
        num_experts = config.get("num_experts") or config["num_local_experts"]
        for name in [f"{layer}.mlp"] if is_dense else [f"{layer}.{module}.experts.{expert}" for expert in range(num_experts)]:
            yield f"{name}.{gate}", (width, hidden)
            yield f"{name}.{up}", (width, hidden)
            yield f"{name}.{down}", (hidden, width)


def dense_tensors(config, normal):
    hidden = config["hidden_size"]
    yield "model.embed_tokens", normal(config["vocab_size"], hidden)
    yield "model.norm", 1 + 0.1 * normal(hidden)
    for idx in range(config["num_hidden_layers"]):
        layer = f"model.layers.{idx}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}", 1 + 0.1 * normal(hidden)
        if config["model_type"] == "qwen3_moe":
            for norm in ("q_norm", "k_norm"):
                yield f"{layer}.self_attn.{norm}", 1 + 0.1 * normal(config["head_dim"])
        if idx not in config.get("mlp_only_layers", []):
            num_experts = config.get("num_experts") or config["num_local_experts"]
            yield f"{layer}.{expert_names(config)[0]}.gate", normal(num_experts, hidden) * (2.0 / np.sqrt(hidden))


def make(name, base, method):
    quantize, quantization = packing.CASES[method]
    for seed in range(100, 200):
        rng = np.random.default_rng(seed)
        normal = lambda *shape: rng.normal(size=shape)
        stored = {f"{tensor}.weight": value.astype(np.float16) for tensor, value in dense_tensors(base, normal)}
        w = {tensor: value.astype(np.float64) for tensor, value in stored.items()}
        for module, (rows, columns) in linears(base):
            value, tensors = quantize(rng, normal(rows, columns) * (2.0 / np.sqrt(columns)) + 0.01)
            w[f"{module}.weight"] = value
            stored |= {f"{module}.{part}": tensor for part, tensor in tensors.items()}
        prompt = [int(token) for token in rng.integers(3, 64, 20)]
        ids = list(prompt)
        for _ in range(GREEDY):
            ids.append(int(forward(w, base, ids)[0][-1].argmax()))
        logits, gap = forward(w, base, ids)
        best = np.sort(logits[len(prompt) - 1 : -1])
        if gap > LEAST_GAP and (best[:, -1] - best[:, -2]).min() > 5e-3:
            break
    config = dict(base, quantization_config=quantization)
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    stored = {key: np.ascontiguousarray(value).reshape(np.shape(value)) for key, value in stored.items()}
    save_file(stored, folder / "model.safetensors")
    golden = {
        "source": f"numpy {np.__version__}, float64", "prompt": prompt, "greedy": ids[len(prompt) :],
        "logits": [[place, [round(float(v), 6) for v in logits[place]]] for place in [0, 18, 19, 26]],
    }
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{name}: seed {seed}, smallest gap {gap:.1e}")


if __name__ == "__main__":
    for model in ("qwen3-moe", "mixtral"):
        check_decoder(model)
    for method in ["gptq-act-order", "awq", "fp8-static", "fp8-block", "ct-w4a16", "ct-w8a8", "ct-fp8-channel"]:
        make(f"qwen3-moe-{method}", QWEN3, method)
    for method in ["gptq", "awq", "fp8-static", "ct-w4a16-asym"]:
        make(f"mixtral-{method}", MIXTRAL, method)
