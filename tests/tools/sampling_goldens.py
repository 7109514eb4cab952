"""Tokens, log-probabilities and beams of a tiny random model, by `transformers` in float32 with eager attention.

    pip install torch transformers numpy safetensors
    python tests/tools/sampling_goldens.py

Writes tests/golden/sampling.json. The model is tests/golden/tiny/llama.json, made by tiny_goldens.py from its seed.

`generate` of transformers has no presence and frequency penalties; they are the class below, by the formula of OpenAI's
API. It applies min-p behind top-p where vLLM applies it in front, so filters are compared one at a time.
"""

import json
import pathlib
import tempfile

import torch
import transformers
from transformers import LogitsProcessor, LogitsProcessorList

from tiny_goldens import OUT, build

FOLDER = OUT.parent
NUM_NEW = 16
# Two scores that lie closer than this would make the result a matter of rounding.
LEAST_GAP = 2e-3


class CountPenalties(LogitsProcessor):
    """`frequency` for each time, `presence` once for a token that was generated."""

    def __init__(self, num_prompt, presence, frequency):
        self.num_prompt, self.presence, self.frequency = num_prompt, presence, frequency

    def __call__(self, ids, scores):
        counts = torch.zeros_like(scores).scatter_add_(1, ids[:, self.num_prompt :], torch.ones_like(scores)[:, : ids.shape[1] - self.num_prompt])
        return scores - self.frequency * counts - self.presence * (counts > 0)


class Gaps(LogitsProcessor):
    """Sees how far the best two scores lie apart."""

    def __init__(self):
        self.least = float("inf")

    def __call__(self, ids, scores):
        best = scores.topk(2).values
        self.least = min(self.least, float((best[:, 0] - best[:, 1]).min()))
        return scores


def greedy(model, prompt, params, **how):
    """A greedy continuation with the parameters of one request, in `transformers`' words."""
    gaps = Gaps()
    penalties = CountPenalties(len(prompt), params.get("presence_penalty", 0.0), params.get("frequency_penalty", 0.0))
    output = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=NUM_NEW, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
        logits_processor=LogitsProcessorList([penalties, gaps]), **{"eos_token_id": None, **how},
    )
    return output.sequences[0, len(prompt) :].tolist(), torch.stack(output.logits)[:, 0], gaps.least


def told(logits, tokens, num_top):
    """Of each token: its log-probability, its rank, and the best ones."""
    entries = []
    for row, token in zip(torch.log_softmax(logits, -1), tokens):
        top = row.topk(num_top)
        entries.append([
            token, round(float(row[token]), 5), int((row >= row[token]).sum()),
            [[int(id), round(float(value), 5)] for id, value in zip(top.indices, top.values)],
        ])
    return entries


CASES = [
    (dict(), dict()),
    (dict(repetition_penalty=1.7), dict(repetition_penalty=1.7)),
    (dict(presence_penalty=0.9), dict()),
    (dict(frequency_penalty=0.6, presence_penalty=-0.2), dict()),
    (dict(repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.3), dict(repetition_penalty=1.2)),
    (dict(logit_bias={"40": 1.5, "41": -3.0, "90": 0.7}), dict(sequence_bias=[[[40], 1.5], [[41], -3.0], [[90], 0.7]])),
]


def greedy_cases(model, prompt):
    plain, _, _ = greedy(model, prompt, {})
    # A word of one byte is one token of the tests' tokenizer: its byte and 3.
    word = next(token for token in plain if 3 + 33 <= token < 3 + 127)
    end = plain[3]
    cases = CASES + [
        (dict(bad_words=[chr(word - 3)]), dict(bad_words_ids=[[word]])),
        (dict(stop_token_ids=[end], min_tokens=9), dict(eos_token_id=end, min_new_tokens=9)),
        (dict(stop_token_ids=[end]), dict(eos_token_id=end)),
    ]
    for params, how in cases:
        tokens, logits, gap = greedy(model, prompt, params, **how)
        yield dict(params=params, tokens=tokens, logprobs=told(logits, tokens, 3)), gap


FILTERS = [
    dict(temperature=0.6), dict(temperature=1.5), dict(temperature=1.0, top_k=9), dict(temperature=0.8, top_p=0.7),
    dict(temperature=1.2, min_p=0.3),
]


def filtered(model, prompt):
    """The log-probabilities that the token after the prompt is drawn by; null for what is not drawn."""
    logits = model(torch.tensor([prompt])).logits[:, -1]
    for params in FILTERS:
        config = transformers.GenerationConfig(do_sample=True, top_k=params.get("top_k", 0), **{k: v for k, v in params.items() if k != "top_k"})
        warpers = model._get_logits_processor(config, input_ids_seq_length=len(prompt))
        row = torch.log_softmax(warpers(torch.tensor([prompt]), logits.clone()), -1)[0]
        yield dict(params=params, logprobs=[None if value == -torch.inf else round(float(value), 5) for value in row])


def beams(model, prompt, width, max_tokens):
    """The best texts without an end token, with the sums of their log-probabilities."""
    output = model.generate(
        torch.tensor([prompt]), do_sample=False, num_beams=width, num_return_sequences=width, max_new_tokens=max_tokens, length_penalty=0.0,
        eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, output_scores=True,
    )
    texts = [ids[len(prompt) :].tolist() for ids in output.sequences]
    scores = [float(score) for score in output.sequences_scores]
    gap = min(a - b for a, b in zip(scores, scores[1:]))
    return dict(beam_width=width, max_tokens=max_tokens, texts=texts, logprobs=[round(score, 5) for score in scores]), gap


def run(model, seed):
    prompt = [int(3 + (at * at * 5 + at * 17 + seed * 29) % 125) for at in range(24)]
    cases = list(greedy_cases(model, prompt))
    searches = [beams(model, prompt[:num_prompt], width, 8) for num_prompt in (24, 11) for width in (2, 3, 6)]
    gap = min(gap for _, gap in cases + searches)
    logits = model(torch.tensor([prompt])).logits[0]
    return gap, dict(
        prompt=prompt, greedy=[case for case, _ in cases], prompt_logprobs=told(logits[:-1], prompt[1:], 2),
        filtered=list(filtered(model, prompt)), beams=[search for search, _ in searches],
    )


def main():
    tiny = json.loads((OUT / "llama.json").read_text())
    config = transformers.LlamaConfig(**tiny["config"])
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model, tensors = build(config, tiny["seed"], pathlib.Path(folder))
        assert json.loads(json.dumps(tensors)) == tiny["tensors"], "the weights are those of the golden model"
        for field in ("eos_token_id", "bos_token_id"):
            setattr(model.generation_config, field, None)
        for seed in range(1, 200):
            gap, golden = run(model, seed)
            if gap > LEAST_GAP:
                break
    source = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, eager attention"
    golden = dict(source=source, **golden)
    lines = ",\n".join(f'"{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in golden.items())
    (FOLDER / "sampling.json").write_text("{\n" + lines + "\n}\n")
    print(f"seed {seed}, no two scores closer than {gap:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    main()
