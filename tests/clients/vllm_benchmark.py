"""vLLM's own serving benchmark: VLLM_WHEEL=FILE python vllm_benchmark.py URL [ARGUMENTS].

FILE is one of vLLM's wheels (`pip download --no-deps --only-binary :all: vllm==0.9.2`, 383 MB), of which `vllm/benchmarks` is used
alone: torch and the rest of vLLM stay out, and what these files import of them is made up here. Tokens are counted by the server,
with `/tokenize`. ARGUMENTS are those of `vllm bench serve`; without any, both of its ways to ask are tried with a few requests.
Needs `pip install aiohttp numpy pillow tqdm`.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import types
import urllib.error
import urllib.request
import zipfile

URL, WHEEL, ARGUMENTS = sys.argv[1].rstrip("/"), os.environ["VLLM_WHEEL"], sys.argv[2:]
FILES = ["__init__", "datasets", "endpoint_request_func", "serve", "utils"]
NUM_PROMPTS, INPUT_LEN, OUTPUT_LEN = 8, 24, 12


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Tokenizer:
    """What the benchmark asks of a tokenizer."""

    @property
    def vocab_size(self):
        size = 64
        try:
            while True:
                ask("/detokenize", {"tokens": [2 * size - 1]})
                size *= 2
        except urllib.error.HTTPError:
            return size

    def num_special_tokens_to_add(self):
        return 0

    def encode(self, text, add_special_tokens=True):
        return ask("/tokenize", {"prompt": text, "add_special_tokens": add_special_tokens})["tokens"]

    def decode(self, tokens, **_):
        return ask("/detokenize", {"tokens": [int(token) for token in tokens]})["prompt"]

    def __call__(self, text, add_special_tokens=True):
        return types.SimpleNamespace(input_ids=self.encode(text, add_special_tokens))


class Missing:
    """A package that other data sets than those of random tokens need."""

    def __init__(self, *_):
        pass

    def placeholder_attr(self, _):
        return self


def make_up():
    """The modules that the benchmark's files import."""
    tokenizer = Tokenizer()
    modules = {
        "transformers": {"PreTrainedTokenizerBase": Tokenizer},
        "vllm": {"__path__": []},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": Missing},
        "vllm.lora.utils": {"get_adapter_absolute_path": str},
        "vllm.multimodal": {"MultiModalDataDict": dict},
        "vllm.multimodal.image": {"convert_image_mode": None},
        "vllm.transformers_utils": {},
        "vllm.transformers_utils.tokenizer": {
            "AnyTokenizer": Tokenizer, "get_lora_tokenizer": None, "get_tokenizer": lambda *_, **__: tokenizer,
        },
        "vllm.utils": {"PlaceholderModule": Missing, "FlexibleArgumentParser": argparse.ArgumentParser},
    }
    for name, members in modules.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(members)


def run(serve, arguments):
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    done = serve.main(parser.parse_args(arguments))
    return asyncio.run(done) if asyncio.iscoroutine(done) else done


def run_both(serve, folder):
    model = ask("/v1/models")["data"][0]["id"]
    for backend, path in [("vllm", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]:
        words = f"--backend {backend} --endpoint-type {backend} --base-url {URL} --endpoint {path} --model {model}"
        sizes = f"--dataset-name random --ignore-eos --num-prompts {NUM_PROMPTS} --random-input-len {INPUT_LEN} --random-output-len {OUTPUT_LEN}"
        result = f"--save-result --result-dir {folder} --result-filename {backend}.json"
        run(serve, f"{words} {sizes} {result}".split())
        with open(f"{folder}/{backend}.json") as file:
            result = json.load(file)
        assert result["completed"] == NUM_PROMPTS, result
        # Those of the usage that the streams end with.
        assert result["total_output_tokens"] == NUM_PROMPTS * OUTPUT_LEN, result
        print(f"ok {backend}: {result['completed']} of {NUM_PROMPTS}, {result['total_output_tokens']} tokens")


def main():
    make_up()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(WHEEL) as files:
            files.extractall(folder, [f"vllm/benchmarks/{name}.py" for name in FILES])
        sys.modules["vllm"].__path__.append(f"{folder}/vllm")
        from vllm.benchmarks import serve

        run(serve, ARGUMENTS) if ARGUMENTS else run_both(serve, folder)


main()
