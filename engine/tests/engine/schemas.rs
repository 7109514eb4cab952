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
        let value: Value = match serde_json::from_str(&output.text) {
            Ok(value) => value,
            // JSON bounds no number, a parser does.
            Err(error) if error.to_string().starts_with("number out of range") => {
                num_beyond += 1;
                continue;
            }
            Err(error) => panic!("{name}: {:?} is no JSON: {error}", output.text),
        };
        let validator = jsonschema::options().should_validate_formats(true).build(schema);
        let validator = validator.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(validator.is_valid(&value), "{name}: {} does not conform to {schema}", output.text);
        num_conforming += 1;
    }
    println!(
        "of {} schemas {} refused; of {} outputs {num_conforming} complete and conforming, {num_cut} cut, \
        {num_beyond} with numbers beyond f64",
        schemas.len(),
        refused.len(),
        outputs.len(),
    );
    assert!(num_conforming > 2 * num_cut, "{num_conforming} outputs came to an end, {num_cut} did not");
    assert!(refused.len() < 270, "{} schemas were refused", refused.len());
    rig.check_alive();
    rig.check_idle();
}
