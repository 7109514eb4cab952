//! Where tokens stand in the texts of completions.

use axum::http::StatusCode;
use quire_models::testing::TinyTokenizer;
use serde_json::{Value, json};

use super::rig::{Parts, Rig};

const PATH: &str = "/v1/completions";

/// The text of an answer and where its tokens stand in it, whole or in pieces.
async fn answered(rig: &Rig, mut body: Value, streams: bool) -> (String, Vec<usize>) {
    body["stream"] = streams.into();
    let events = if streams {
        rig.stream(PATH, body).await
    } else {
        let (status, answer) = rig.post(PATH, body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        vec![answer]
    };
    let choices: Vec<_> = events.iter().map(|event| &event["choices"][0]).collect();
    let text = choices.iter().map(|choice| choice["text"].as_str().expect("a text")).collect();
    let offsets = choices.iter().filter_map(|choice| choice["logprobs"]["text_offset"].as_array()).flatten();
    (text, offsets.map(|offset| offset.as_u64().expect("a number") as usize).collect())
}

/// The place of the character of each byte in the text of all bytes: the last one of the text up to it.
fn characters(bytes: &[u8]) -> Vec<usize> {
    (1..=bytes.len()).map(|end| String::from_utf8_lossy(&bytes[..end]).chars().count() - 1).collect()
}

fn ids(bytes: &[u8]) -> Vec<u32> {
    bytes.iter().map(|&byte| TinyTokenizer::byte(byte)).collect()
}

#[tokio::test]
async fn tokens_stand_where_their_first_character_does() {
    let rig = Parts::parrot().start();
    let body = |bytes: &[u8], max_tokens: usize, echo: bool| json!({"prompt": ids(bytes), "max_tokens": max_tokens, "echo": echo, "temperature": 0, "logprobs": 0});
    let cut = answered(&rig, body(b"\x99\x82\xF0\x9F", 5, false), false).await;
    assert_eq!(cut, ("🙂\u{FFFD}".to_owned(), vec![0, 0, 1, 1, 1]));
    let mut state = 7_u32;
    let mut random = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % below
    };
    for _ in 0..40 {
        let prompt: Vec<u8> =
            (0..1 + random(7)).map(|_| b"\xF0\x9F\x99\x82T\xC3\xA9\xFF"[random(8)]).collect();
        let all: Vec<u8> = prompt.iter().copied().cycle().take(prompt.len() + 8).collect();
        let (text, places) = (String::from_utf8_lossy(&all), characters(&all));
        for streams in [false, true] {
            let echoed = answered(&rig, body(&prompt, 8, true), streams).await;
            assert_eq!(echoed, (text.to_string(), places.clone()), "{prompt:x?}, streamed {streams}");
            let (end, alone) = answered(&rig, body(&prompt, 8, false), streams).await;
            let num_before = text.chars().count() - end.chars().count();
            let expected: Vec<_> = places[prompt.len()..].iter().map(|place| place - num_before).collect();
            assert!(text.ends_with(&end) && alone == expected, "{prompt:x?}: {end:?} {alone:?} {expected:?}");
        }
    }
    rig.idle().await;
}
