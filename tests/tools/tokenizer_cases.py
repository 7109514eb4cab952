"""Random strings and the ids that the reference library gives them, beside a GGUF file of the same vocabulary.

    pip install tokenizers gguf sentencepiece protobuf transformers
    python tests/tools/tokenizer_cases.py OUT NAME=FOLDER[:PRE] ...

FOLDER holds a tokenizer.json (and, where there is one, a tokenizer.model). For each NAME it writes OUT/NAME/: a copy of
tokenizer.json, vocabulary.gguf as llama.cpp's converter writes it (PRE is the name of its pre-tokenizer; without one the
vocabulary is SentencePiece), and cases.jsonl, 10,000 lines [text, ids] with special tokens added. Then

    QUIRE_TOKENIZER_CASES=OUT cargo test -p quire-models --test tokenizers

compares. The committed sample is written by `--tiny tests/golden/tokenizers`: vocabularies that sentencepiece trains on the
words below, with the ids that sentencepiece itself gives.
"""

import json
import pathlib
import random
import shutil
import sys

import gguf
from tokenizers import Tokenizer

WORDS = (
    "the of and to in is was he for it with as his on be at by had not are but from or have an they which one you were all her she "
    "Café naïve über straße Ελληνικά Привет мир 你好世界 こんにちは 안녕하세요 مرحبا שלום हिन्दी ไทย 1234 3.14159 0xFF 2024-01-01 "
    "I'm don't we'll THEY'RE it's 's 'LL foo_bar fooBar __init__ print(x) return; {} [] () <> <s> </s> <|im_start|> <|endoftext|> "
    "<bos> <|begin_of_text|> http://example.com/?q=1&b=2 a@b.c #tag $100 50% e\u0301 \ufb01 \u200b \u00a0 👍 👨‍👩‍👧 🇩🇪 𝒳 ﷽ ½ ² ① ..."
).split(" ")
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", "    ", "\n \n", "", ""]
BLOCKS = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0x2000, 0x206F), (0x2190, 0x27BF),
          (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF), (0x1F300, 0x1FAFF), (0x10000, 0x10FFF), (0x300, 0x36F)]


def text(rng):
    kind = rng.random()
    if kind < 0.5:
        parts = [rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randrange(12))]
        return rng.choice(SPACES) + "".join(parts)
    if kind < 0.8:
        low, high = rng.choice(BLOCKS)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(24)))
    if kind < 0.9:
        return "".join(rng.choice("0123456789abcXYZ .,;'\"!?-_\n\t") for _ in range(rng.randrange(40)))
    return "".join(chr(rng.randint(*rng.choice(BLOCKS))) for _ in range(rng.randrange(20)))


FIXED = ["", " ", "Café", "<s>G", "<|im_start|>user", "  two leading spaces", "12345", "👍", "\n", "a  b", "e\u0301"]


def special_tokens(folder):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    content = lambda value: value.get("content") if isinstance(value, dict) else value
    return {role: content(config.get(f"{role}_token")) for role in ("bos", "eos", "unk", "pad")}


def write_gguf(path, folder, pre):
    spec = json.loads((folder / "tokenizer.json").read_text())
    model, added = spec["model"], {token["id"]: token for token in spec["added_tokens"]}
    by_id = {id: token for token, id in model["vocab"].items()} | {id: token["content"] for id, token in added.items()}
    tokens = [by_id.get(id, f"[PAD{id}]") for id in range(max(by_id) + 1)]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    for id in range(len(tokens)):
        if id not in by_id:
            types[id] = gguf.TokenType.UNUSED
    for id, token in added.items():
        types[id] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    writer = gguf.GGUFWriter(path, "llama")
    if pre:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        writer.add_token_list(tokens)
        writer.add_token_merges(merges)
    else:
        writer.add_tokenizer_model("llama")
        scores = spm_scores(folder, tokens, model)
        for id, token in enumerate(tokens):
            if len(token) == 6 and token.startswith("<0x"):
                types[id] = gguf.TokenType.BYTE
        if model.get("unk_token") in model["vocab"]:
            types[model["vocab"][model["unk_token"]]] = gguf.TokenType.UNKNOWN
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_add_space_prefix("Prepend" in json.dumps(spec["normalizer"]) or "Metaspace" in json.dumps(spec["pre_tokenizer"]))
    writer.add_token_types(types)
    ids = {token: id for id, token in enumerate(tokens)}
    named = special_tokens(folder)
    for role, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id), ("unk", writer.add_unk_token_id)):
        if named[role] in ids:
            add(ids[named[role]])
    begins = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("x", add_special_tokens=True).ids[0]
    writer.add_add_bos_token(named["bos"] in ids and begins == ids[named["bos"]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def spm_scores(folder, tokens, model):
    """Those of tokenizer.model; where only tokenizer.json is there, the places of the merges that first make a token."""
    if (folder / "tokenizer.model").exists():
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
        size = pieces.get_piece_size()
        return [pieces.get_score(id) if id < size else -1000.0 for id in range(len(tokens))]
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    first = {}
    for rank, (left, right) in enumerate(merges):
        first.setdefault(left + right, rank)
    # Runs of one space character are the user's own pieces: they all have the same score, the best or the worst.
    runs = [rank for token, rank in first.items() if len(token) > 1 and len(set(token)) == 1 and token[0] in "\u2581\n\t"]
    same = 0.0 if runs and min(runs) == 0 else -1e9
    is_run = lambda token: len(token) > 1 and len(set(token)) == 1 and token[0] in "\u2581\n\t"
    return [same if is_run(token) else -1.0 - first.get(token, len(merges)) for token in tokens]


def make(out, name, folder, pre, count):
    out = out / name
    out.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / file).exists():
            shutil.copy(folder / file, out / file)
    write_gguf(out / "vocabulary.gguf", folder, pre)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(20240613)
    texts = FIXED + [text(rng) for _ in range(count - len(FIXED))]
    with open(out / "cases.jsonl", "w") as file:
        for sample in texts:
            ids = tokenizer.encode(sample, add_special_tokens=True).ids
            file.write(json.dumps([sample, ids], ensure_ascii=False) + "\n")
    print(name, len(texts), "texts")


def make_tiny(out, name, prefix):
    import io

    import sentencepiece

    rng, model = random.Random(1), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(rng.choices(WORDS, k=12)) for _ in range(2000)]), model_writer=model, model_type="bpe", vocab_size=700,
        byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=prefix, num_threads=1, allow_whitespace_only_pieces=True, minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    out = out / name
    out.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out / "vocabulary.gguf", "llama")
    writer.add_tokenizer_model("llama")
    ids = range(pieces.get_piece_size())
    writer.add_token_list([pieces.id_to_piece(id) for id in ids])
    writer.add_token_scores([pieces.get_score(id) for id in ids])
    kind = lambda id: (
        gguf.TokenType.UNKNOWN if pieces.is_unknown(id) else gguf.TokenType.CONTROL if pieces.is_control(id)
        else gguf.TokenType.BYTE if pieces.is_byte(id) else gguf.TokenType.NORMAL
    )
    writer.add_token_types([kind(id) for id in ids])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_unk_token_id(pieces.unk_id())
    writer.add_add_space_prefix(prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # Control tokens in a text are characters to sentencepiece, which is what the other library is not asked to do here.
    texts = [sample for sample in FIXED + [text(rng) for _ in range(240)] if "<s>" not in sample and "</s>" not in sample]
    with open(out / "cases.jsonl", "w") as file:
        for sample in texts:
            file.write(json.dumps([sample, [pieces.bos_id()] + pieces.encode(sample)], ensure_ascii=False) + "\n")


def main(arguments):
    if arguments[0] == "--tiny":
        make_tiny(pathlib.Path(arguments[1]), "spm-prefixed", True)
        make_tiny(pathlib.Path(arguments[1]), "spm-plain", False)
        return
    out = pathlib.Path(arguments[0])
    for argument in arguments[1:]:
        name, _, rest = argument.partition("=")
        folder, _, pre = rest.partition(":")
        make(out, name, pathlib.Path(folder), pre, 10_000)


main(sys.argv[1:])
