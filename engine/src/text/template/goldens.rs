//! Templates of known models against what `transformers` makes of the same conversations.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::*;

#[derive(Deserialize)]
struct Goldens {
    now: u64,
    cases: BTreeMap<String, Case>,
    rendered: BTreeMap<String, BTreeMap<String, Rendered>>,
}

#[derive(Clone, Deserialize)]
struct Case {
    messages: Vec<ChatMessage>,
    tools: Option<Value>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    kwargs: Map<String, Value>,
}

/// A text, or the words in which the template refused; neither where it failed.
#[derive(Deserialize)]
struct Rendered {
    text: Option<String>,
    error: Option<String>,
}

impl Case {
    fn prompt(self) -> ChatPrompt {
        let mut template_variables = self.kwargs;
        template_variables.extend(self.tools.map(|tools| ("tools".to_owned(), tools)));
        ChatPrompt {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            continue_final_message: self.continue_final_message,
            template_variables,
            ..ChatPrompt::new(self.messages)
        }
    }
}

/// Compares all texts of a folder; those that differ, and how many there are.
fn compare(folder: &Path) -> (Vec<String>, usize) {
    let goldens = std::fs::read_to_string(folder.join("goldens.json")).unwrap();
    let goldens: Goldens = serde_json::from_str(&goldens).unwrap();
    let now = UNIX_EPOCH + Duration::from_secs(goldens.now);
    let (mut wrong, mut num_compared) = (Vec::new(), 0);
    for (name, rendered) in &goldens.rendered {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let tokens =
            NamedTokens { bos: Some("<s>".into()), eos: Some("</s>".into()), ..NamedTokens::default() };
        let template = match ChatTemplate::at_start(&source, tokens) {
            Ok(template) => template,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (case, expected) in rendered {
            num_compared += 1;
            let given = template.render(&goldens.cases[case].clone().prompt(), now);
            let is_right = match (&given, expected) {
                (Ok(given), Rendered { text: Some(text), .. }) if given == text => true,
                // To a template that takes no parts the reference hands them all the same: it writes a list, or nothing.
                (Ok(given), _) if case == "parts" && given.contains("one\ntwo") => true,
                (Err(error), Rendered { error: Some(said), .. }) => error.to_string().contains(said),
                // Where the reference fails, as for content that is null, this may say more.
                (_, Rendered { text: None, error: None }) => true,
                _ => false,
            };
            if !is_right {
                wrong.push(difference(name, case, &given, expected));
            }
        }
    }
    (wrong, num_compared)
}

fn difference(name: &str, case: &str, given: &Result<String, PromptError>, expected: &Rendered) -> String {
    let (Ok(given), Some(text)) = (given, &expected.text) else {
        return format!("{name}, {case}: {given:?}, expected {:?}", expected.error);
    };
    let same = given.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
    let shown = |text: &str| {
        let start = text.floor_char_boundary(same.saturating_sub(40));
        let end = text.floor_char_boundary((same + 60).min(text.len()));
        text[start..end].to_owned()
    };
    format!("{name}, {case}: {:?}, expected {:?}", shown(given), shown(text))
}

#[test]
fn templates_of_known_models_write_what_transformers_writes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/chat");
    let (wrong, num_compared) = compare(&folder);
    assert!(wrong.is_empty(), "{} of {num_compared} texts:\n{}", wrong.len(), wrong.join("\n"));
    assert!(num_compared >= 12 * 15);
}

#[test]
fn templates_of_a_folder_write_what_transformers_writes() {
    let Some(folder) = std::env::var_os("QUIRE_CHAT_TEMPLATES") else {
        eprintln!("skipped: QUIRE_CHAT_TEMPLATES names no folder of tests/tools/chat_goldens.py");
        return;
    };
    let (wrong, num_compared) = compare(Path::new(&folder));
    println!("{} of {num_compared} texts differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(wrong.is_empty());
}
