//! What is compiled.

use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use super::error::GrammarError;
use super::lark;
use super::pattern;
use super::schema;
use super::special::SpecialTokens;
use super::tags::StructuralTags;
use super::thought::Thought;

/// Longer texts are not compiled.
const MAX_BYTES: usize = 512 << 10;
/// Parts that a compiler follows one inside the other, at worst: nested ones and references.
const MAX_PARTS: usize = 5000;

/// White space between the tokens of JSON: a space or two, or a line break and up to 12 blanks.
const WHITESPACE: &str = r"\x20{1,2}|\r?\n[\x20\t]{0,12}";

/// The kinds of grammars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GrammarKind {
    Json,
    Regex,
    Choice,
    Lark,
    JsonObject,
    StructuralTag,
}

impl GrammarKind {
    /// The field of `structured_outputs` that asks for it.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Regex => "regex",
            Self::Choice => "choice",
            Self::Lark => "grammar",
            Self::JsonObject => "json_object",
            Self::StructuralTag => "structural_tag",
        }
    }

    pub(crate) fn holds_json(self) -> bool {
        matches!(self, Self::Json | Self::JsonObject | Self::StructuralTag)
    }
}

/// A grammar before it is compiled. Equal ones are compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GrammarSource {
    pub(crate) kind: GrammarKind,
    pub(crate) text: String,
    /// What may stand between the tokens of JSON, where it was said.
    pub(crate) whitespace: Option<String>,
    /// What may come before it.
    pub(crate) thought: Thought,
}

impl GrammarSource {
    pub(crate) fn field(&self) -> &'static str {
        self.kind.field()
    }

    /// The same form behind something else.
    pub(crate) fn after(&self, thought: Thought) -> Self {
        Self { thought, ..self.clone() }
    }

    /// Whether nobody but the compiler knows how its texts begin.
    pub(super) fn may_begin_with_a_mark(&self) -> bool {
        matches!(self.kind, GrammarKind::Regex | GrammarKind::Choice | GrammarKind::Lark)
    }

    /// Refuses what a compiler would only find out about slowly, or at the end of its stack. Cheap.
    ///
    /// # Errors
    ///
    /// [`GrammarError::TooLong`], [`GrammarError::TooManyParts`].
    pub(crate) fn check_size(&self) -> Result<(), GrammarError> {
        let (field, num_bytes) = (self.field(), self.text.len());
        if num_bytes > MAX_BYTES {
            return Err(GrammarError::TooLong { field, num_bytes, max_bytes: MAX_BYTES });
        }
        let (what, given) = match self.kind {
            GrammarKind::Json | GrammarKind::JsonObject | GrammarKind::StructuralTag => {
                ("references", self.text.matches("$ref").count())
            }
            GrammarKind::Choice => return Ok(()),
            GrammarKind::Regex | GrammarKind::Lark => {
                ("brackets and rules", self.text.matches(['(', '[', '{', ':']).count())
            }
        };
        match given > MAX_PARTS {
            true => Err(GrammarError::TooManyParts { field, what, given, max: MAX_PARTS }),
            false => Ok(()),
        }
    }

    /// The form in which the compiler takes it.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Invalid`].
    pub(super) fn to_grammar(&self, special: &SpecialTokens) -> Result<TopLevelGrammar, GrammarError> {
        if let Some(reason) = self.whitespace.as_deref().and_then(pattern::syntax_fault) {
            let reason = on_one_line(&reason);
            return Err(GrammarError::Invalid { field: "whitespace_pattern", reason });
        }
        let form = match self.kind {
            GrammarKind::Json | GrammarKind::JsonObject => {
                let schema = serde_json::from_str(&self.text)
                    .map_err(|error| self.invalid(format!("it is no JSON: {error}")))?;
                TopLevelGrammar::from_json_schema(
                    self.prepared(schema).map_err(|reason| self.invalid(reason))?,
                )
            }
            GrammarKind::Regex => {
                let regex = without_anchors(&self.text);
                pattern::fault(regex).map_or(Ok(()), |reason| Err(self.invalid(reason)))?;
                TopLevelGrammar::from_regex(regex)
            }
            GrammarKind::Choice => TopLevelGrammar::from_lark(self.text.clone()),
            GrammarKind::Lark => {
                let lark = lark::with_schemas(&self.text, |schema| self.prepared(schema));
                TopLevelGrammar::from_lark(lark.map_err(|reason| self.invalid(reason))?)
            }
            GrammarKind::StructuralTag => {
                let tags = StructuralTags::from_text(&self.text).map_err(|reason| self.invalid(reason))?;
                let text = self.thought.text_behind();
                let lark = tags.to_lark(special, text, |schema| self.prepared(schema));
                TopLevelGrammar::from_lark(lark.map_err(|reason| self.invalid(reason))?)
            }
        };
        Ok(self.thought.before(form, special))
    }

    /// A JSON schema in other words, as the compiler takes them; none where there are no others.
    pub(super) fn in_other_words(&self, special: &SpecialTokens) -> Vec<TopLevelGrammar> {
        let schema = Some(&self.text).filter(|_| self.kind == GrammarKind::Json);
        let Some(schema) = schema.and_then(|text| serde_json::from_str(text).ok()) else { return Vec::new() };
        let others = schema::rewordings(&schema).into_iter();
        let others = others.filter_map(|schema| self.prepared(schema).ok());
        others.map(|schema| self.thought.before(TopLevelGrammar::from_json_schema(schema), special)).collect()
    }

    /// That it cannot be used, for a reason of the compiler's: on one line, and no longer than one reads.
    pub(super) fn invalid(&self, reason: impl AsRef<str>) -> GrammarError {
        GrammarError::Invalid { field: self.field(), reason: on_one_line(reason.as_ref()) }
    }

    /// The schema as the compiler holds outputs to it, with what this engine says on the form of JSON. `true` and `false`
    /// are schemas too.
    ///
    /// # Errors
    ///
    /// Why outputs cannot be held to it.
    fn prepared(&self, schema: Value) -> Result<Value, String> {
        let schema = match schema {
            Value::Bool(true) => Value::Object(serde_json::Map::new()),
            schema => schema,
        };
        let mut schema = schema::exact(schema)?;
        if schema.is_object() {
            let escapes = schema::escapes(&schema)?.to_owned();
            let options = JsonCompileOptions { json_allowed_escapes: Some(escapes), ..self.options(&schema) };
            options.apply_to(&mut schema);
        }
        Ok(schema)
    }

    /// How JSON is written. A schema within a grammar may say so itself, in the compiler's way.
    fn options(&self, schema: &Value) -> JsonCompileOptions {
        let given = schema.get("x-guidance").filter(|_| self.kind == GrammarKind::Lark);
        let mut options: JsonCompileOptions =
            given.and_then(|given| serde_json::from_value(given.clone()).ok()).unwrap_or_default();
        if options.whitespace_flexible && options.whitespace_pattern.is_none() {
            options.whitespace_pattern =
                Some(self.whitespace.clone().unwrap_or_else(|| WHITESPACE.to_owned()));
        }
        options
    }
}

/// The whole text is matched anyway.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    let body = regex.strip_suffix('$').unwrap_or(regex);
    let num_escapes = body.bytes().rev().take_while(|&byte| byte == b'\\').count();
    if num_escapes % 2 == 0 { body } else { regex }
}

/// What the compiler says, without the parts of its messages that are meant for its own developers.
pub(super) fn on_one_line(reason: &str) -> String {
    const MAX_CHARS: usize = 400;
    let reason = reason.split("<non-verbose/>").next().unwrap_or_default();
    let reason = reason.split("<backtrace>").next().unwrap_or_default();
    let mut words = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(MAX_CHARS) {
        words.truncate(end);
        words.push_str("...");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_at_the_ends_are_taken_off() {
        for (regex, expected) in
            [("^a$", "a"), ("a", "a"), (r"a\$", r"a\$"), (r"a\\$", r"a\\"), ("^", ""), ("$", "")]
        {
            assert_eq!(without_anchors(regex), expected);
        }
    }

    #[test]
    fn reasons_are_short() {
        assert_eq!(on_one_line("a\n  b\n<non-verbose/>"), "a b");
        assert_eq!(on_one_line(&"é".repeat(1000)).chars().count(), 403);
    }

    #[test]
    fn what_is_too_much_is_not_even_tried() {
        let source =
            |kind, text: String| GrammarSource { kind, text, whitespace: None, thought: Thought::None };
        let long = source(GrammarKind::Json, " ".repeat(1 << 20));
        assert!(matches!(long.check_size(), Err(GrammarError::TooLong { num_bytes: 1_048_576, .. })));
        let deep = source(GrammarKind::Lark, format!("start: {}", "(".repeat(6000)));
        assert!(matches!(deep.check_size(), Err(GrammarError::TooManyParts { given: 6001, .. })));
    }
}
