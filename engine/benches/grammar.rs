//! The mask of a JSON schema of 20 fields over a vocabulary of 150,000 tokens.
//!
//! Each token of a document is taken once and the mask after it made once, as it is when a text is generated; a state is
//! not asked twice, since it would remember. `QUIRE_BENCH_TOKENIZER` names a model whose tokenizer is taken instead of a
//! made-up vocabulary.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quire_engine::chat::ReasoningFormat;
use quire_engine::{Grammar, GrammarCompiler, StructuredOutputs};
use quire_models::Tokenizer;
use quire_models::testing::TinyTokenizer;
use serde_json::{Map, Value, json};

const VOCAB_SIZE: usize = 150_000;

fn tokenizer() -> Tokenizer {
    match std::env::var_os("QUIRE_BENCH_TOKENIZER") {
        Some(path) => Tokenizer::open(Path::new(&path)).expect("a tokenizer"),
        None => made_up(),
    }
}

/// Words of syllables as a byte-level vocabulary has them: at the beginning of a word and within one, capital and not;
/// numbers; and what JSON is made of.
fn made_up() -> Tokenizer {
    let mut json = TinyTokenizer::json();
    let vocab = json["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let mut tokens: BTreeSet<String> = BTreeSet::new();
    for punctuation in
        ["{\"", "\":", "\",", "\":\"", "\",\"", "\"}", "},", "[{", "}]", "Ġ\"", ":Ġ", "\",Ġ\"", "ĊĠĠ"]
    {
        tokens.insert(punctuation.to_owned());
    }
    tokens.extend((0..1000).map(|n| n.to_string()));
    let consonants = ["", "b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "st", "t", "v"];
    let vowels = ["a", "e", "i", "o", "u", "y"];
    let syllables: Vec<String> =
        consonants.iter().flat_map(|c| vowels.iter().map(move |v| format!("{c}{v}"))).collect();
    'full: for first in &syllables {
        for second in &syllables {
            for third in [""].into_iter().chain(syllables.iter().map(String::as_str)) {
                for word in [format!("{first}{second}{third}"), format!("Ġ{first}{second}{third}")] {
                    tokens.insert(word);
                    if tokens.len() + vocab.len() + 600 > VOCAB_SIZE {
                        break 'full;
                    }
                }
            }
        }
    }
    let first = vocab.len();
    vocab.extend(tokens.into_iter().zip(first..).map(|(token, id)| (token, Value::from(id))));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, json.to_string()).expect("a file");
    Tokenizer::open(&path).expect("a tokenizer")
}

/// Twenty fields: texts, some of them bounded or of a pattern, numbers, choices, lists, an object.
fn schema(name: &str) -> Value {
    let kinds = [
        json!({"type": "string"}),
        json!({"type": "integer", "minimum": 0, "maximum": 5000}),
        json!({"type": "number"}),
        json!({"enum": ["small", "medium", "large", "very large"]}),
        json!({"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 5}),
        json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}),
        json!({"type": "boolean"}),
        json!({"type": ["string", "null"], "minLength": 3, "maxLength": 60}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "object", "properties": {"x": {"type": "number"}, "note": {"type": "string"}},
            "required": ["x"], "additionalProperties": false}),
    ];
    let fields: Map<String, Value> =
        (0..20).map(|i| (format!("{name}_{i}"), kinds[i % kinds.len()].clone())).collect();
    let required: Vec<&String> = fields.keys().collect();
    json!({"type": "object", "properties": fields, "required": required, "additionalProperties": false})
}

fn document(name: &str) -> String {
    let values = [
        json!("a sentence of some length, as one writes it"),
        json!(4711),
        json!(-3.25),
        json!("very large"),
        json!(["one item", "another one"]),
        json!("QR-2024"),
        json!(true),
        json!("perhaps not null"),
        json!("2026-11-30"),
        json!({"x": 1.5, "note": "an inner text"}),
    ];
    let fields: Map<String, Value> =
        (0..20).map(|i| (format!("{name}_{i}"), values[i % values.len()].clone())).collect();
    serde_json::to_string_pretty(&fields).expect("JSON")
}

/// The time of each mask of a document.
fn masks(grammar: &Grammar, document: &[u32]) -> Vec<Duration> {
    let mut state = grammar.start();
    let mut times = Vec::with_capacity(document.len());
    for &token in document {
        let started = Instant::now();
        let mask = state.mask([2]).expect("a mask");
        times.push(started.elapsed());
        assert!(mask.allows(token), "{} tokens taken, {token} does not follow", times.len() - 1);
        state.take(token).expect("it was allowed");
    }
    times
}

const NUM_ROWS: usize = 64;

/// A gated row of a step.
struct Row {
    grammar: Grammar,
    document: Vec<u32>,
}

impl Row {
    fn new(grammar: Grammar, document: Vec<u32>) -> Self {
        Self { grammar, document }
    }
}

/// The masks of steps in which each row stands at a place of its own in its document, on so many threads.
fn steps(what: &str, rows: &[Row], num_threads: usize) {
    let mut states: Vec<_> = rows.iter().map(|row| (row.grammar.start(), row)).collect();
    for (i, (state, row)) in states.iter_mut().enumerate() {
        for &token in &row.document[..i] {
            state.take(token).expect("it was allowed");
        }
    }
    let num_steps = states.iter().map(|(_, row)| row.document.len()).min().unwrap_or(0) - NUM_ROWS;
    let mut times = Vec::with_capacity(num_steps);
    for step in 0..num_steps {
        let started = Instant::now();
        std::thread::scope(|scope| {
            let share = NUM_ROWS.div_ceil(num_threads);
            let mut shares = states.chunks_mut(share);
            let first = shares.next();
            for states in shares {
                scope.spawn(move || {
                    states.iter_mut().for_each(|(state, _)| drop(state.mask([2]).expect("a mask")))
                });
            }
            first.into_iter().flatten().for_each(|(state, _)| drop(state.mask([2]).expect("a mask")));
        });
        times.push(started.elapsed());
        for (i, (state, row)) in states.iter_mut().enumerate() {
            state.take(row.document[i + step]).expect("it was allowed");
        }
    }
    show(&format!("64 rows of {what}, {num_threads} threads, a step"), times);
}

fn bench(c: &mut Criterion) {
    let tokenizer = Arc::new(tokenizer());
    let vocab_size = tokenizer.num_ids().max(VOCAB_SIZE);
    let compiler = GrammarCompiler::new(Some(Arc::clone(&tokenizer)), vocab_size);
    let compile = |schema: Value| compiler.compile(&StructuredOutputs::json(schema)).expect("it compiles");
    let started = Instant::now();
    compile(json!({"type": "null"}));
    println!("the tree of {vocab_size} tokens: {:?}", started.elapsed());
    let started = Instant::now();
    let grammar = compile(schema("field"));
    println!("the schema: {:?}", started.elapsed());
    let document = tokenizer.encode(&document("field"), Default::default()).expect("tokens");

    let first = masks(&grammar, &document);
    show("the first document", first);
    let later: Vec<Duration> = (0..20).flat_map(|_| masks(&grammar, &document)).collect();
    show("later ones", later);

    let form = StructuredOutputs {
        reasoning: Some(ReasoningFormat::Qwen3),
        ..StructuredOutputs::json(schema("field"))
    };
    let thoughtful = compiler.compile(&form).expect("it compiles");
    let thought = format!(
        "<think>\n{}</think>",
        "So the first field is a sentence, and \"the next\" {one} is 4711.\n".repeat(20)
    );
    let thought = tokenizer.encode(&thought, Default::default()).expect("tokens");
    masks(&thoughtful, &thought);
    show("reasoning before it", masks(&thoughtful, &thought));

    let same: Vec<Row> = (0..NUM_ROWS).map(|_| Row::new(grammar.clone(), document.clone())).collect();
    let different = (0..NUM_ROWS).map(|i| {
        let name = format!("field{i}");
        let document = tokenizer.encode(&self::document(&name), Default::default()).expect("tokens");
        Row::new(compile(schema(&name)), document)
    });
    let different: Vec<Row> = different.collect();
    for (what, rows) in [("one schema", same), ("64 schemas", different)] {
        // Each has met its document once.
        rows.iter().for_each(|row| drop(masks(&row.grammar, &row.document)));
        for num_threads in [1, 2] {
            steps(what, &rows, num_threads);
        }
    }

    let mut group = c.benchmark_group("grammar");
    group.throughput(Throughput::Elements(document.len() as u64));
    group.bench_function("mask and take, a document", |b| b.iter(|| masks(&grammar, &document).len()));
    group.finish();
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "{what}: {} masks, median {:?}, 90 % {:?}, 99 % {:?}, most {:?}",
        times.len(),
        at(50),
        at(90),
        at(99),
        at(100)
    );
}

criterion_group!(benches, bench);
criterion_main!(benches);
