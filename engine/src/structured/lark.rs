//! JSON schemas within Lark grammars.

use serde_json::{Deserializer, Value};

const JSON: &str = "%json";

/// A grammar with its schemas (`%json {...}`) as `prepare` has them. What is no JSON stays, for the compiler to refuse.
///
/// # Errors
///
/// Those of `prepare`.
pub(super) fn with_schemas(
    grammar: &str,
    prepare: impl Fn(Value) -> Result<Value, String>,
) -> Result<String, String> {
    let (mut written, mut rest) = (String::with_capacity(grammar.len()), grammar);
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => quoted_len(rest, '"'),
            '#' => line_len(rest),
            '/' if rest.starts_with("//") => line_len(rest),
            '/' => quoted_len(rest, '/'),
            '%' if rest.starts_with(JSON) => match schema_after(&rest[JSON.len()..]) {
                Some((schema, len)) => {
                    written += &format!("{JSON} {}", prepare(schema)?);
                    rest = &rest[JSON.len() + len..];
                    continue;
                }
                None => JSON.len(),
            },
            other => other.len_utf8(),
        };
        let (part, after) = rest.split_at(len);
        written += part;
        rest = after;
    }
    Ok(written)
}

/// The length of a text or an expression with its quotes; all there is, where it has no end.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |(at, quote)| at + quote.len_utf8())
}

fn line_len(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// The schema that a text begins with, and where it ends.
fn schema_after(text: &str) -> Option<(Value, usize)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    let schema = values.next()?.ok()?;
    Some((schema, values.byte_offset()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_are_prepared_and_nothing_else_is() {
        let grammar = r#"start: "%json {}" X %json {"a": "}\""} // %json {}
X: /\/%json {}/ "\"%json" %json
 true # %json 1"#;
        let expected = r#"start: "%json {}" X %json ["}\""] // %json {}
X: /\/%json {}/ "\"%json" %json [null] # %json 1"#;
        assert_eq!(with_schemas(grammar, |schema| Ok(json!([schema["a"]]))).unwrap(), expected);
        for broken in ["start: %json {\"a\": ", "start: \"%json {}", "/%json {}", "%json"] {
            assert_eq!(with_schemas(broken, |_| Err("not called".to_owned())).unwrap(), broken);
        }
        assert_eq!(with_schemas("a: %json 1", |_| Err("no".to_owned())), Err("no".to_owned()));
    }
}
