//! Structural tags: free text in which some parts have a form.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::params::refuse;
use super::special::SpecialTokens;
use crate::ParamError;

/// What stands between tags, and what tags begin with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StructuralTags {
    structures: Vec<Structure>,
    /// Once one of them is written, the tag that begins with it must follow.
    triggers: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Structure {
    begin: String,
    schema: Value,
    end: String,
}

impl StructuralTags {
    /// Checks what a user gave: an object, or its text.
    pub(super) fn check(given: Option<&Value>) -> Result<Self, ParamError> {
        let text = match given {
            Some(Value::String(text)) => text.clone(),
            given => given.map(ToString::to_string).unwrap_or_default(),
        };
        let tags = Self::from_text(&text).map_err(|rule| refuse("structural_tag".to_owned(), &rule))?;
        let rule = |rule: &str| Err(refuse("structural_tag".to_owned(), rule));
        if tags.structures.is_empty() || tags.triggers.iter().any(String::is_empty) {
            return rule("at least one structure, and no empty trigger");
        }
        let triggered = |structure: &Structure| tags.trigger_of(structure).is_some();
        match tags.structures.iter().all(triggered) {
            true => Ok(tags),
            false => rule("each begin to start with a trigger"),
        }
    }

    /// Reads the text of an object.
    pub(super) fn from_text(text: &str) -> Result<Self, String> {
        serde_json::from_str(text)
            .map_err(|error| format!("an object of structures (begin, schema, end) and triggers: {error}"))
    }

    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("strings and JSON become JSON")
    }

    /// A grammar: `text`, up to a trigger; then a tag that begins with it; and so on. `prepare` is applied to the schemas.
    ///
    /// # Errors
    ///
    /// Of a trigger that holds a special token and begins with something else; of `prepare`.
    pub(super) fn to_lark(
        &self,
        special: &SpecialTokens,
        text: &str,
        prepare: impl Fn(Value) -> Result<Value, String>,
    ) -> Result<String, String> {
        let mut rules = format!("start: tagged* TEXT\nTEXT: {text}\n");
        let mut triggered = Vec::new();
        for (t, trigger) in self.triggers.iter().enumerate() {
            let begins = |structure: &&Structure| self.trigger_of(structure) == Some(trigger);
            let tag = |structure: &Structure| {
                let rest = special.write(&structure.begin[trigger.len()..]);
                let json = prepare(structure.schema.clone())?;
                Ok(format!("({rest} %json {json} {})", special.write(&structure.end)))
            };
            let tags = self.structures.iter().filter(begins).map(tag).collect::<Result<Vec<_>, String>>()?;
            if tags.is_empty() {
                continue;
            }
            triggered.push(format!("trigger_{t} tag_{t}"));
            let _ = match special.first_in(trigger) {
                // As text it is one lexeme, which ends as soon as it can.
                None => writeln!(rules, "trigger_{t}[lazy]: TEXT {}", special.write(trigger)),
                Some((0, ..)) => writeln!(rules, "trigger_{t}: TEXT? {}", special.write(trigger)),
                Some((_, token, _)) => {
                    return Err(format!(
                        "trigger {trigger:?}: expected the special token {token} at its beginning"
                    ));
                }
            };
            let _ = writeln!(rules, "tag_{t}: {}", tags.join("\n  | "));
        }
        let _ = writeln!(rules, "tagged: {}", triggered.join(" | "));
        Ok(rules)
    }

    /// The trigger that a tag begins with: the longest, if several do.
    fn trigger_of(&self, structure: &Structure) -> Option<&String> {
        let begins = |trigger: &&String| structure.begin.starts_with(trigger.as_str());
        self.triggers.iter().filter(begins).max_by_key(|trigger| trigger.len())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str = "/(?s:.*)/";

    #[test]
    fn tags_share_a_trigger_or_have_their_own() {
        let given = json!({
            "type": "structural_tag",
            "structures": [
                {"begin": "<f=a>", "schema": {}, "end": "</f>"},
                {"begin": "<f=b>", "schema": true, "end": ""},
                {"begin": "[", "schema": {}, "end": "]"},
            ],
            "triggers": ["<f=", "[", "never"],
        });
        let tags = StructuralTags::check(Some(&given)).unwrap();
        assert_eq!(StructuralTags::check(Some(&given.to_string().into())).unwrap(), tags);
        let expected = "start: tagged* TEXT\nTEXT: /(?s:.*)/\ntrigger_0[lazy]: TEXT \"<f=\"\n\
            tag_0: (\"a>\" %json {} \"</f>\")\n  | (\"b>\" %json true )\n\
            trigger_1[lazy]: TEXT \"[\"\ntag_1: ( %json {} \"]\")\n\
            tagged: trigger_0 tag_0 | trigger_1 tag_1\n";
        assert_eq!(tags.to_lark(&SpecialTokens::default(), TEXT, Ok).unwrap(), expected);
    }

    #[test]
    fn special_tokens_are_tokens_and_no_text() {
        let special = SpecialTokens::new([("<|tool|>".to_owned(), 9), ("<|end|>".to_owned(), 4)]);
        let tags = |trigger: &str| StructuralTags {
            structures: vec![Structure {
                begin: "<|tool|>f:".to_owned(),
                schema: json!({}),
                end: ".<|end|>".to_owned(),
            }],
            triggers: vec![trigger.to_owned()],
        };
        let expected = "start: tagged* TEXT\nTEXT: /(?s:.*)/\ntrigger_0: TEXT? <[9]>\n\
            tag_0: (\"f:\" %json {} \".\" <[4]>)\ntagged: trigger_0 tag_0\n";
        assert_eq!(tags("<|tool|>").to_lark(&special, TEXT, Ok).unwrap(), expected);
        let mut late = tags("a<|tool|>");
        late.structures[0].begin.insert(0, 'a');
        let error = late.to_lark(&special, TEXT, Ok).unwrap_err();
        assert_eq!(error, "trigger \"a<|tool|>\": expected the special token <|tool|> at its beginning");
    }

    #[test]
    fn a_tag_that_nothing_triggers_is_refused() {
        let given = json!({"structures": [{"begin": "a", "schema": {}, "end": "b"}], "triggers": ["c"]});
        let error = StructuralTags::check(Some(&given)).unwrap_err();
        assert!(error.to_string().contains("each begin to start with a trigger"));
        assert!(StructuralTags::check(Some(&json!({"format": {}}))).is_err());
    }
}
