//! The schemas of a public test suite: what is generated for them parses and conforms, or they are refused with a reason.

use std::collections::BTreeMap;

use quire_engine::{ErrorKind, FinishReason, SamplingParams, StructuredOutputs};
use serde_json::Value;

use crate::rig::{FIRST_LONGER, RigSpec, VOCAB_SIZE, byte_tokens, noise, tokenizer_with};

/// Tokens of more than a byte, some of which cross the borders of what a schema speaks of.
const LONGER: [&str; 12] =
    ["{\"", "\":", "\",\"", "\"}", "},", "[[", "]]", "true", "null", "12", "e\":\"", " \""];

/// The schemas, with their names.
fn schemas() -> Vec<(String, Value)> {
    let text = include_str!("../../../tests/golden/json_schemas.jsonl");
    let lines = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| (line["name"].as_str().unwrap().to_owned(), line["schema"].clone())).collect()
}

/// A model that has no idea: any token at any place, those that JSON is made of more often than others.
fn no_idea(prompt: &[u32], position: usize) -> u32 {
    let frequent = byte_tokens("\"\"\"\"{}[]:,,}}]]0159.-tnfao");
    let draw = noise(prompt, position) as usize;
    match draw % 4 {
        0 => FIRST_LONGER + (draw / 4 % LONGER.len()) as u32,
        1 => noise(prompt, 7 * position + 1) % VOCAB_SIZE as u32,
        _ => frequent[draw / 4 % frequent.len()],
    }
}

/// JSON bounds no number, a parser does: 1e308 in place of those beyond f64, which is on the same side of all bounds that a
/// schema has.
fn bounded(json: &str) -> String {
    let (mut bounded, mut rest) = (String::new(), json);
    while let Some(start) = rest.find(['"', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) {
        let (before, literal) = rest.split_at(start);
        let len = if literal.starts_with('"') { text_len(literal) } else { number_len(literal) };
        let (literal, after) = literal.split_at(len);
        bounded += before;
        match literal.parse::<f64>() {
            Ok(number) if number.is_infinite() => bounded += if number > 0.0 { "1e308" } else { "-1e308" },
            _ => bounded += literal,
        }
        rest = after;
    }
    bounded + rest
}

/// The length of the text that JSON begins with, with its quotes.
fn text_len(json: &str) -> usize {
    let mut is_escaped = false;
    let end = json.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(json.len(), |end| end + 2)
}

fn number_len(json: &str) -> usize {
    json.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')).unwrap_or(json.len())
}

#[test]
fn numbers_beyond_f64_are_bounded_and_nothing_else_is_touched() {
    let json = r#"[1e999, -2.5E+400, 1e5, {"1e999": "\\\"1e999"}, 12]"#;
    let values: Value = serde_json::from_str(&bounded(json)).unwrap();
    assert_eq!(values, serde_json::json!([1e308, -1e308, 1e5, {"1e999": "\\\"1e999"}, 12]));
}

#[test]
fn what_is_generated_for_a_schema_conforms_or_the_schema_is_refused_with_a_reason() {
    let spec = RigSpec { tokenizer: tokenizer_with(&LONGER), ..RigSpec::with_pool(400, 16) };
    let rig = spec.start(no_idea);
    let schemas = schemas();
    assert_eq!(schemas.len(), 500);
    let (mut requests, mut refused) = (Vec::new(), BTreeMap::new());
    for (i, (name, schema)) in schemas.iter().enumerate() {
        let params = SamplingParams {
            structured_outputs: Some(StructuredOutputs::json(schema.clone())),
            ..SamplingParams::greedy(250)
        };
        for run in 0..2 {
            let prompt = vec![3 + (i % 250) as u32, 3 + (i / 250) as u32, 40 + run];
            match rig
                .llm
                .generate([prompt.clone()], &SamplingParams { max_tokens: Some(1), ..params.clone() })
            {
                Ok(_) => requests.push((i, prompt, params.clone())),
                Err(error) => {
                    let cause =
                        std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    let is_refusal = error.kind() == ErrorKind::BadRequest && cause.len() > 40;
                    assert!(is_refusal, "{name}: {error:?}");
                    refused.insert(name, cause);
                }
            }
        }
    }
    let inputs = requests.iter().map(|(_, prompt, params)| (prompt.clone(), params.clone()));
    let outputs = rig.llm.generate_with(inputs).unwrap();
    let (mut num_conforming, mut num_cut, mut num_beyond) = (0, 0, 0);
    for ((i, ..), output) in requests.iter().zip(&outputs) {
        let ((name, schema), output) = (&schemas[*i], &output.outputs[0]);
        if output.finish_reason == FinishReason::Length {
            num_cut += 1;
            continue;
        }
        let text = bounded(&output.text);
        num_beyond += usize::from(text != output.text);
        let value: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{name}: {:?} is no JSON: {error}", output.text));
        let validator = jsonschema::options().should_validate_formats(true).build(schema);
        let validator = validator.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(validator.is_valid(&value), "{name}: {} does not conform to {schema}", output.text);
        num_conforming += 1;
    }
    println!(
        "of {} schemas {} refused; of {} outputs {num_conforming} complete and conforming, {num_cut} cut, \
        {num_beyond} of them with numbers beyond f64",
        schemas.len(),
        refused.len(),
        outputs.len(),
    );
    assert!(num_conforming > 2 * num_cut, "{num_conforming} outputs came to an end, {num_cut} did not");
    assert!(refused.len() < 155, "{} schemas were refused", refused.len());
    rig.check_alive();
    rig.check_idle();
}
