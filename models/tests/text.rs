//! Text of random tokens and bytes: a stream says what the batch says, and what the reference library says where that is
//! right (BR-28, BR-29).

use std::path::Path;

use quire_models::testing::TinyTokenizer;
use quire_models::{EncodeOptions, TextOptions, TextStream, Tokenizer};
use serde_json::{Value, json};

/// A small generator of numbers, the same everywhere (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Bytes of which about half make characters.
    fn bytes(&mut self) -> Vec<u8> {
        const TEXT: &[char] = &['a', ' ', 'é', '你', '🙂', '\u{FFFD}', '\n', '▁', '\u{10FFFF}', 'ß'];
        let mut bytes = Vec::new();
        for _ in 0..self.below(12) {
            match self.below(4) {
                0 => bytes.push(self.next() as u8),
                1 => bytes.extend(&[0xF0, 0x9F, 0x99][..1 + self.below(3)]),
                _ => bytes.extend(TEXT[self.below(TEXT.len())].to_string().bytes()),
            }
        }
        bytes
    }
}

/// The pieces of a text, with its end.
fn pieces(tokenizer: &Tokenizer, ids: &[u32], options: TextOptions) -> Vec<String> {
    let mut stream = TextStream::new(options);
    let push = |&id: &u32| {
        let mut piece = String::new();
        stream.push(tokenizer, id, &mut piece);
        piece
    };
    let mut pieces: Vec<String> = ids.iter().map(push).collect();
    let mut last = String::new();
    stream.flush(tokenizer, &mut last);
    pieces.push(last);
    pieces
}

/// The laws of a stream: joined it is the batch; what a piece has shown, no later token takes back; U+FFFD comes only where
/// the batch has one at the same place.
fn check_stream(tokenizer: &Tokenizer, ids: &[u32], options: TextOptions) -> String {
    let pieces = pieces(tokenizer, ids, options);
    let batch = tokenizer.decode_with(ids, options);
    assert_eq!(pieces.concat(), batch, "{ids:?}");
    batch
}

/// The token of each byte that has one, where nearly all have: some vocabularies lack bytes that no text has.
fn byte_tokens(tokenizer: &Tokenizer) -> Option<Vec<Option<u32>>> {
    let mut found = vec![None; 256];
    for id in 0..tokenizer.num_ids() as u32 {
        // `<0x41>` is one byte beside the letter: the later of two is taken in vain where they are the same.
        if let Some(&[byte]) = tokenizer.token_bytes(id) {
            let token = tokenizer.inner().id_to_token(id)?;
            let is_added =
                tokenizer.inner().get_added_vocabulary().get_added_tokens_decoder().contains_key(&id);
            if !is_added && (found[usize::from(byte)].is_none() || token.starts_with("<0x")) {
                found[usize::from(byte)] = Some(id);
            }
        }
    }
    (found.iter().flatten().count() > 230).then_some(found)
}

/// Strings of bytes, each byte a token: the text is that of all bytes at once, and no U+FFFD comes before its time.
fn check_bytes(tokenizer: &Tokenizer, count: usize) -> usize {
    let Some(tokens) = byte_tokens(tokenizer) else { return 0 };
    let mut random = Random(1);
    for _ in 0..count {
        let (ids, bytes): (Vec<u32>, Vec<u8>) =
            random.bytes().into_iter().filter_map(|byte| Some((tokens[usize::from(byte)]?, byte))).unzip();
        let text = check_stream(tokenizer, &ids, TextOptions::default());
        let whole = String::from_utf8_lossy(&bytes);
        // Some vocabularies strip the space that a text begins with.
        assert!(text == whole || Some(text.as_str()) == whole.strip_prefix(' '), "{bytes:x?}: {text:?}");
        let stripped = whole.chars().count() - text.chars().count();
        let mut num_shown = 0;
        for (num_bytes, piece) in (1..).zip(pieces(tokenizer, &ids, TextOptions::default())) {
            num_shown += piece.chars().count();
            let certain = certain_chars(&bytes[..bytes.len().min(num_bytes)]);
            assert!(
                num_bytes > bytes.len() || num_shown + stripped.min(certain) == certain,
                "{bytes:x?} at {num_bytes}"
            );
        }
    }
    count
}

/// Characters that no further byte can change.
fn certain_chars(bytes: &[u8]) -> usize {
    let unfinished = (1..=bytes.len().min(3)).find(|&n| {
        let tail = &bytes[bytes.len() - n..];
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    });
    String::from_utf8_lossy(&bytes[..bytes.len() - unfinished.unwrap_or(0)]).chars().count()
}

/// Strings of tokens, ids outside of the vocabulary among them: the stream is the batch, and that is the reference's
/// where all its bytes make characters.
fn check_tokens(tokenizer: &Tokenizer, count: usize) -> (usize, usize) {
    let (mut random, num_ids) = (Random(2), tokenizer.num_ids());
    let bytes: Vec<u32> = byte_tokens(tokenizer).into_iter().flatten().flatten().collect();
    let mut num_compared = 0;
    for _ in 0..count {
        let token = |random: &mut Random| match random.below(8) {
            0 if !bytes.is_empty() => bytes[random.below(bytes.len())],
            1 => random.below(num_ids.min(300)) as u32,
            2 => (num_ids + random.below(300)) as u32,
            _ => random.below(num_ids) as u32,
        };
        let ids: Vec<u32> = (0..random.below(16)).map(|_| token(&mut random)).collect();
        for skip_special_tokens in [false, true] {
            let text =
                check_stream(tokenizer, &ids, TextOptions { skip_special_tokens, ..TextOptions::default() });
            let known: Vec<u32> =
                ids.iter().copied().filter(|&id| tokenizer.inner().id_to_token(id).is_some()).collect();
            let reference = tokenizer.inner().decode(&known, skip_special_tokens).unwrap();
            if !reference.contains(char::REPLACEMENT_CHARACTER) {
                assert_eq!(text, reference, "{known:?}");
                num_compared += 1;
            }
            let set_on = TextOptions { skip_special_tokens, spaces_between_special_tokens: false };
            check_stream(tokenizer, &ids, set_on);
        }
    }
    (2 * count, num_compared)
}

fn check(name: &str, tokenizer: &Tokenizer, count: usize) {
    let num_bytes = check_bytes(tokenizer, count);
    let (num_tokens, num_compared) = check_tokens(tokenizer, count);
    println!(
        "{name}: {num_bytes} of bytes, {num_tokens} of tokens, {num_compared} compared with the reference"
    );
    assert!(num_compared > num_tokens / 10, "{name}: {num_compared} of {num_tokens}");
}

fn open(json: &Value) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, json.to_string()).unwrap();
    Tokenizer::open(&path).unwrap()
}

/// A vocabulary of words with a decoder of one's own; `<s>` and `</s>` are special, `é` is added.
fn words(decoder: &Value) -> Tokenizer {
    let words = ["<s>", "</s>", "é", "▁Hello", "▁world", "▁!", "▁", "a", "##b", ".", "▁▁"].map(str::to_owned);
    let tokens = words.into_iter().chain((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let vocab: serde_json::Map<String, Value> =
        tokens.zip(0..).map(|(token, id)| (token, id.into())).collect();
    let added = [(0, "<s>", true), (1, "</s>", true), (2, "é", false)].map(|(id, content, special)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special})
    });
    open(&json!({
        "version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null, "added_tokens": added,
        "decoder": decoder, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<s>"},
    }))
}

fn llama() -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]})
}

#[test]
fn br28_br29_streams_of_every_kind_of_decoder_say_what_the_batch_says() {
    check("byte level", &open(&TinyTokenizer::json()), 2000);
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let regex = json!({"type": "Replace", "pattern": {"Regex": "▁+"}, "content": "_"});
    let decoders = [
        ("llama", llama()),
        (
            "gemma",
            json!({"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            ]}),
        ),
        ("metaspace", metaspace.clone()),
        (
            "bytes, then metaspace",
            json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]}),
        ),
        ("word piece", json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
        ("a regular expression", regex),
        ("none", Value::Null),
        // Looks at the end of the text, so that it is decoded in a window.
        ("window", json!({"type": "BPEDecoder", "suffix": "▁"})),
    ];
    for (name, decoder) in decoders {
        if name == "window" {
            window_says_what_the_batch_says(&words(&decoder));
        } else {
            check(name, &words(&decoder), 500);
        }
    }
}

/// Within what a window can know: the suffix of the last token is not shown before the next one.
fn window_says_what_the_batch_says(tokenizer: &Tokenizer) {
    let ids = [3, 7, 2, 4, 300, 5];
    assert!(tokenizer.token_bytes(3).is_none());
    let streamed = pieces(tokenizer, &ids, TextOptions::default());
    assert_eq!(streamed.concat(), tokenizer.decode(&ids));
}

/// The library panics where both ends of a space are to be taken away; of a longer text they are.
#[test]
fn a_decoder_that_strips_both_ends_strips_those_of_a_short_text_too() {
    let tokenizer = words(&json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 1},
    ]}));
    for ids in [&[6][..], &[6, 3], &[6, 4, 6, 6], &[10, 6, 5]] {
        let streamed = pieces(&tokenizer, ids, TextOptions::default());
        assert_eq!(streamed.concat(), tokenizer.decode(ids), "{ids:?}");
    }
    assert_eq!(tokenizer.decode(&[6]), "");
    assert_eq!(tokenizer.decode(&[6, 3]), tokenizer.inner().decode(&[6, 3], false).unwrap());
}

#[test]
fn br28_committed_vocabularies_stream_what_they_decode() {
    for name in ["spm-prefixed", "spm-plain", "word-piece"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tokenizers").join(name);
        check(name, &Tokenizer::open(&folder.join("vocabulary.gguf")).unwrap(), 1000);
    }
}

#[test]
fn br28_large_vocabularies_stream_what_they_decode() {
    let Some(folder) = std::env::var_os("QUIRE_TOKENIZER_CASES") else {
        eprintln!("skipped: QUIRE_TOKENIZER_CASES names no folder of tests/tools/tokenizer_cases.py");
        return;
    };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let files = ["tokenizer.json", "vocabulary.gguf"].map(|file| path.join(file));
        for file in files.iter().filter(|file| file.exists()) {
            check(&file.display().to_string(), &Tokenizer::open(file).unwrap(), 10_000);
        }
    }
}

#[test]
fn br28_a_bad_byte_is_one_replacement_character_and_the_stream_goes_on() {
    let tokenizer = words(&llama());
    let byte = |byte: u8| 11 + u32::from(byte);
    let said = |ids: &[u32]| pieces(&tokenizer, ids, TextOptions::default());
    // The reference library replaces all the bytes of such a run.
    assert_eq!(said(&[byte(b'a'), byte(0xFF), byte(b'b')]), ["a", "\u{FFFD}", "b", ""]);
    assert_eq!(said(&[byte(0xF0), byte(0x9F), byte(b'x')]), ["", "", "\u{FFFD}x", ""]);
    assert_eq!(said(&[byte(0xF0), byte(0x9F)]), ["", "", "\u{FFFD}"]);
    // A replacement character of the text is a character.
    assert_eq!(said(&"\u{FFFD}".bytes().map(byte).collect::<Vec<_>>()), ["", "", "\u{FFFD}", ""]);
    let many: Vec<u32> = [byte(0xE4); 40].to_vec();
    assert_eq!(said(&many).concat(), "\u{FFFD}".repeat(40));
}

#[test]
fn added_tokens_in_the_byte_alphabet_are_text() {
    let mut json = TinyTokenizer::json();
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false})
    };
    // The last two are bytes of the vocabulary as well: one that occurs in characters, and one that does not.
    let (e, y) = (TinyTokenizer::byte(0xE9), TinyTokenizer::byte(0xFF));
    let all = [added(267, "éé"), added(e, "é"), added(y, "ÿ")];
    json["added_tokens"].as_array_mut().unwrap().extend(all);
    let tokenizer = open(&json);
    let ids = tokenizer.encode("aéébÿ", EncodeOptions::default()).unwrap();
    assert_eq!(ids[1..], [267, TinyTokenizer::byte(b'b'), y]);
    assert_eq!(tokenizer.decode(&ids), "aéébÿ");
    assert_eq!(pieces(&tokenizer, &ids, TextOptions::default()), ["a", "éé", "b", "ÿ", ""]);
    let bytes: Vec<u32> = "驚".bytes().map(TinyTokenizer::byte).collect();
    assert_eq!(bytes[0], e);
    assert_eq!(tokenizer.decode(&bytes), "驚");
}

#[test]
fn spaces_between_special_tokens_are_left_out_on_request() {
    let tokenizer = words(&Value::Null);
    let say = |spaces_between_special_tokens, ids: &[u32]| {
        let options = TextOptions { skip_special_tokens: false, spaces_between_special_tokens };
        check_stream(&tokenizer, ids, options)
    };
    assert_eq!(say(true, &[0, 1, 7, 0, 0]), "<s> </s> a <s> <s>");
    assert_eq!(say(false, &[0, 1, 7, 0, 0]), "<s></s> a <s><s>");
}

#[test]
fn br29_a_special_token_in_the_middle_does_not_part_what_belongs_together() {
    let tokenizer = words(&llama());
    let byte = |byte: u8| 11 + u32::from(byte);
    let ids = [3, 4, byte(0xE4), 0, byte(0xBD), byte(0xA0), 5];
    let plain = TextOptions { skip_special_tokens: true, ..TextOptions::default() };
    assert_eq!(pieces(&tokenizer, &ids, plain), ["Hello", " world", "", "", "", "你", " !", ""]);
    assert_eq!(check_stream(&tokenizer, &[3, 0, 4], TextOptions::default()), "Hello<s> world");
}
