//! A byte-level BPE tokenizer of a few hundred tokens.

use serde_json::{Value, json};

/// Three special tokens, the 256 bytes, and a few merges over GPT-2's splitting. Every text can be encoded,
/// and nearly every byte is a token.
#[derive(Debug, Clone, Copy)]
pub struct TinyTokenizer;

const MERGES: [&str; 8] = ["Ġ t", "h e", "Ġt he", "i n", "e r", "o n", "Ġ a", "l l"];

impl TinyTokenizer {
    /// `<|endoftext|>`, which begins a text where asked for.
    pub const BOS: u32 = 0;
    /// `<|im_start|>`.
    pub const IM_START: u32 = 1;
    /// `<|im_end|>`, which ends a text.
    pub const EOS: u32 = 2;
    /// The special tokens, by id.
    pub const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    /// A ChatML template.
    pub const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n\
        {{ message['content'] }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    /// The id of a byte.
    pub fn byte(byte: u8) -> u32 {
        Self::SPECIAL.len() as u32 + u32::from(byte)
    }

    /// Every token, by id.
    pub fn tokens() -> Vec<String> {
        let special = Self::SPECIAL.iter().map(|token| (*token).to_owned());
        let bytes = (0..=255).map(|byte| byte_char(byte).to_string());
        let merged = MERGES.iter().map(|merge| merge.replace(' ', ""));
        special.chain(bytes).chain(merged).collect()
    }

    /// The merges, best first.
    pub fn merges() -> [&'static str; 8] {
        MERGES
    }

    /// Its `tokenizer.json`.
    pub fn json() -> Value {
        let tokens = Self::tokens();
        let vocab: serde_json::Map<String, Value> =
            tokens.into_iter().zip(0..).map(|(token, id)| (token, Value::from(id))).collect();
        let added = Self::SPECIAL.iter().enumerate().map(|(id, content)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        });
        let byte_level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "added_tokens": added.collect::<Vec<_>>(),
            "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": false, "vocab": vocab, "merges": MERGES,
            },
        })
    }

    /// Its `tokenizer_config.json`.
    pub fn config_json() -> Value {
        json!({
            "bos_token": Self::SPECIAL[Self::BOS as usize],
            "eos_token": Self::SPECIAL[Self::EOS as usize],
            "chat_template": Self::CHAT_TEMPLATE,
        })
    }
}

/// The character that GPT-2's byte-level alphabet has for a byte: printable ones stand for themselves, the
/// others are moved up behind the first 256 in their order.
fn byte_char(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let moved_before = (0..byte).filter(|&earlier| !is_printable(earlier)).count() as u32;
    char::from_u32(256 + moved_before).expect("every number near 256 is a character")
}
