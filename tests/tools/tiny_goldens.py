"""Logits of tiny random models of every architecture, by `transformers` in float32 with eager attention.

    pip install torch transformers numpy safetensors
    python tests/tools/tiny_goldens.py [NAME ...]

Writes tests/golden/tiny/NAME.json: the configuration as `transformers` saves it, the tensors' names and shapes, a prompt, the
logits at some places of prompt and continuation, the greedy continuation, cosines and sines of some positions. The weights are not stored: both sides make
them from the seed, with the integer hash and the two float32 operations below (`quire_models::testing` has the same).
"""

import copy
import json
import pathlib
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

try:
    import torch
    import transformers
except (ImportError, OSError, ValueError):
    pass  # Other scripts need no more than the tensors.

OUT = pathlib.Path(__file__).resolve().parents[1] / "golden" / "tiny"
PROMPT, GREEDY = 100, 12
PLACES = [0, 1, 31, 32, 33, 63, 64, 65, 99, PROMPT + GREEDY - 1]
# A place where the best two logits lie closer than this would make the greedy continuation a matter of rounding.
LEAST_GAP = 5e-3

BASE = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=128,
    max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False,
)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
SHORT = [1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0]
LONG = [1.1, 1.3, 1.8, 2.6, 4.0, 6.5, 9.0, 12.0]
LONGROPE = dict(rope_type="longrope", short_factor=SHORT, long_factor=LONG)
ALTERNATING = ["sliding_attention", "full_attention"] * 2


def rope(theta=10000.0, **scaling):
    return dict(rope_parameters={"rope_theta": theta, **(scaling or {"rope_type": "default"})})


# name: (class of the configuration, its fields beside BASE, how it is run)
CASES = {
    "llama": ("LlamaConfig", dict(tie_word_embeddings=True), {}),
    "llama-biased": ("LlamaConfig", dict(attention_bias=True, mlp_bias=True, head_dim=32, **rope(5e5)), {}),
    "llama-linear": ("LlamaConfig", rope(rope_type="linear", factor=4.0), {}),
    "llama-dynamic": ("LlamaConfig", dict(max_position_embeddings=64, **rope(rope_type="dynamic", factor=2.0)), dict(cached=32)),
    "llama-yarn": ("LlamaConfig", rope(**YARN), {}),
    "llama-yarn-mscale": (
        "LlamaConfig",
        rope(**YARN, beta_fast=16.0, beta_slow=2.0, mscale=0.8, mscale_all_dim=0.5, truncate=False),
        {},
    ),
    "llama-llama3": ("LlamaConfig", rope(5e5, **LLAMA3), {}),
    "deepseek-llm": ("LlamaConfig", dict(num_key_value_heads=4, rms_norm_eps=1e-6), {}),
    "mistral": ("MistralConfig", dict(sliding_window=32, head_dim=32), {}),
    "mistral-full": ("MistralConfig", dict(sliding_window=None), {}),
    "qwen2": ("Qwen2Config", dict(use_sliding_window=True, sliding_window=32, max_window_layers=1), {}),
    "qwen2-full": (
        "Qwen2Config",
        dict(use_sliding_window=True, sliding_window=32, layer_types=["full_attention"] * 2, tie_word_embeddings=True),
        {},
    ),
    "qwen3": ("Qwen3Config", dict(head_dim=32, **rope(1e6)), {}),
    "gemma2": (
        "Gemma2Config",
        dict(
            num_hidden_layers=4, head_dim=32, sliding_window=32, query_pre_attn_scalar=24, attn_logit_softcapping=3.0,
            final_logit_softcapping=1.0, tie_word_embeddings=True, layer_types=ALTERNATING,
        ),
        {},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        dict(
            num_hidden_layers=4, head_dim=32, sliding_window=32, query_pre_attn_scalar=24, tie_word_embeddings=True,
            layer_types=["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        ),
        {},
    ),
    "phi3": ("Phi3Config", dict(sliding_window=32), {}),
    "phi3-longrope": (
        "Phi3Config",
        dict(original_max_position_embeddings=64, max_position_embeddings=256, sliding_window=None, **rope(**LONGROPE)),
        {},
    ),
    "phi3-longrope-short": (
        "Phi3Config",
        dict(original_max_position_embeddings=128, max_position_embeddings=512, sliding_window=None, **rope(**LONGROPE)),
        {},
    ),
    "phi4-mini": (
        "Phi3Config",
        dict(
            original_max_position_embeddings=64, max_position_embeddings=256, sliding_window=262144, tie_word_embeddings=True,
            rope_parameters=dict(
                rope_theta=10000.0, partial_rotary_factor=0.75, rope_type="longrope", short_factor=SHORT[:6], long_factor=LONG[:6]
            ),
        ),
        {},
    ),
    "olmo2": ("Olmo2Config", dict(**rope(5e5)), {}),
    "granite": (
        "GraniteConfig",
        dict(
            embedding_multiplier=12.0, residual_multiplier=1.3, attention_multiplier=0.15, logits_scaling=0.25,
            tie_word_embeddings=True,
        ),
        {},
    ),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        dict(
            num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48, norm_topk_prob=False,
            num_hidden_layers=3, mlp_only_layers=[1],
        ),
        {},
    ),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True, head_dim=32, decoder_sparse_step=1),
        {},
    ),
    "mixtral": ("MixtralConfig", dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=48, sliding_window=None), {}),
}


def mix(x):
    """SplitMix64's finalizer, of an array of uint64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return np.uint64(value)


def uniform(seed, name, count):
    """`count` float32 in [-1, 1), exact multiples of 2^-23."""
    key = mix(np.array([seed], np.uint64)) ^ fnv(name)
    bits = mix(key ^ np.arange(count, dtype=np.uint64)) >> np.uint64(40)
    return bits.astype(np.float32) / np.float32(2**23) - np.float32(1)


def tensor(seed, name, shape, center, spread):
    values = np.float32(center) + np.float32(spread) * uniform(seed, name, int(np.prod(shape)))
    return values.reshape(shape)


def range_of(config, name, shape):
    """Center and spread for which activations keep their size from layer to layer."""
    if len(shape) == 1:
        adds_one = config.model_type.startswith("gemma")
        return (1.0 if name.endswith("norm.weight") and not adds_one else 0.0), 0.25
    # An embedding that is scaled up and is the head too would have every token predict itself.
    is_scaled = config.model_type.startswith(("gemma", "granite")) and name.endswith("embed_tokens.weight")
    return 0.0, float(np.float32(np.sqrt(6 / shape[-1]) / (4 if is_scaled else 1)))


def saved_tensors(folder):
    return {name: list(value.shape) for name, value in load_file(folder / "model.safetensors").items()}


def build(config, seed, folder):
    """A model of these weights, and the list of them as a checkpoint has it."""
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    shapes = saved_tensors(folder)
    tensors = [[name, shape, *range_of(config, name, shape)] for name, shape in sorted(shapes.items())]
    save_file({name: tensor(seed, name, *rest) for name, *rest in tensors}, folder / "model.safetensors", {"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), tensors


def forward(model, ids, cached):
    """The logits after every token: of one pass, or token by token from `cached` on."""
    ids = torch.tensor([ids])
    if not cached:
        return model(ids, use_cache=False).logits[0]
    output = model(ids[:, :cached], use_cache=True)
    logits = [output.logits[0]]
    for at in range(cached, ids.shape[1]):
        output = model(ids[:, at : at + 1], past_key_values=output.past_key_values, use_cache=True)
        logits.append(output.logits[0])
    return torch.cat(logits)


def rope_rows(model, layer_type, is_dynamic):
    """Cosines and sines of some positions; dynamic frequencies as for a text that ends with the position."""
    end = PROMPT + GREEDY
    kind = {} if layer_type is None else {"layer_type": layer_type}
    rows = []
    for position in [0, 31, 32, 63, 64, end - 1]:
        rotary = copy.deepcopy(model.model.rotary_emb)
        places = torch.arange(position + 1 if is_dynamic else end)[None]
        cos, sin = rotary(torch.zeros(1), places, **kind)
        half = cos.shape[-1] // 2
        rows.append([position, [float(value) for part in (cos, sin) for value in part[0, position, :half]]])
    return rows


def ropes(model, config):
    """Those of layers that see everything and, where they have their own, of layers with a window."""
    parameters = config.rope_parameters
    if "full_attention" in parameters:
        return [rope_rows(model, kind, False) for kind in ("full_attention", "sliding_attention")]
    return [rope_rows(model, None, parameters.get("rope_type") == "dynamic")]


def run(name):
    kind, fields, how = CASES[name]
    config = getattr(transformers, kind)(**{**BASE, **fields})
    for seed in range(1, 100):
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            folder = pathlib.Path(folder)
            model, tensors = build(config, seed, folder)
            saved = json.loads((folder / "config.json").read_text())
            rope = ropes(model, config)
            prompt = [int(3 + (at * at * 7 + at * 13 + seed * 31) % 125) for at in range(PROMPT)]
            ids = list(prompt)
            for _ in range(GREEDY):
                ids.append(int(forward(model, ids, how.get("cached"))[-1].argmax()))
            logits = forward(model, ids, how.get("cached"))
            best = logits[PROMPT - 1 :].topk(2).values
            if float((best[:, 0] - best[:, 1]).min()) > LEAST_GAP and len(set(ids[PROMPT:])) > 2:
                break
    spread = float(logits.std())
    for field in ["transformers_version", "_name_or_path"]:
        saved.pop(field, None)
    golden = dict(
        source=f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, eager attention",
        seed=seed, config=saved, tensors=tensors, prompt=prompt, greedy=ids[PROMPT:], rope=rope,
        logits=[[at, [round(float(value), 5) for value in logits[at]]] for at in PLACES],
    )
    lines = ",\n".join(f'"{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in golden.items())
    (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    print(f"{name}: seed {seed}, {sum(int(np.prod(t[1])) for t in tensors)} weights, logits' spread {spread:.2f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or CASES:
        run(name)
