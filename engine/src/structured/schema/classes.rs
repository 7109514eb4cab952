//! Classes of characters in patterns.
//!
//! Of a class that takes all control characters the compiler believes that it takes the quote and the backslash too, as
//! `.` does, and lets `\"` through where a pattern says `[^"]`. So no class takes all of them: those that leave characters
//! out, and ranges, leave out the one with the number 0.

use serde_json::{Map, Value};

use super::walk;

/// The character with the number 0, as patterns write it.
const NULS: [&str; 4] = [r"\x00", r"\u0000", r"\x{0}", "\0"];
/// Classes with names that take all control characters and not all others.
const NAMED: [&str; 5] = [r"\P", r"\p{C", r"\pC", "[:cntrl", "[:^"];

/// Writes the patterns of a schema in that way.
///
/// # Errors
///
/// Of a pattern with a class that has a name and takes all control characters.
pub(super) fn write_out(schema: &mut Value) -> Result<(), String> {
    let mut refusal = Ok(());
    walk::each_mut(schema, &mut |words| {
        let is_refused = |pattern: &str| NAMED.iter().any(|name| pattern.contains(name));
        if let Some(Value::String(pattern)) = words.get_mut("pattern") {
            *pattern = without_nul(pattern);
        }
        if let Some(Value::Object(patterns)) = words.get_mut("patternProperties") {
            rename(patterns);
        }
        let pattern = words.get("pattern").and_then(Value::as_str);
        let names = words.get("patternProperties").and_then(Value::as_object);
        let names = names.into_iter().flat_map(Map::keys).map(String::as_str);
        if let Some(pattern) = pattern.into_iter().chain(names).find(|pattern| is_refused(pattern)) {
            refusal = Err(format!(
                "the pattern {pattern:?} has a class that cannot be told from others in JSON's spelling"
            ));
        }
    });
    refusal
}

/// Patterns that would be the same stay what they are.
fn rename(patterns: &mut Map<String, Value>) {
    let renamed: Map<String, Value> =
        patterns.iter().map(|(pattern, schema)| (without_nul(pattern), schema.clone())).collect();
    if renamed.len() == patterns.len() {
        *patterns = renamed;
    }
}

fn without_nul(pattern: &str) -> String {
    let mut written = String::with_capacity(pattern.len());
    let (mut is_escaped, mut is_in_class) = (false, false);
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        if let Some(range) = range_after_nul(rest).filter(|_| is_in_class && !is_escaped) {
            written.push_str(r"\x01");
            rest = range;
            continue;
        }
        let begins_class = c == '[' && !is_escaped && !is_in_class;
        let ends_class = c == ']' && !is_escaped;
        is_in_class = (is_in_class || begins_class) && !ends_class;
        is_escaped = c == '\\' && !is_escaped;
        written.push(c);
        rest = &rest[c.len_utf8()..];
        // Behind [^ a bracket stands for itself.
        if begins_class && rest.starts_with('^') && !rest.starts_with("^]") {
            written.push_str(r"^\x00");
            rest = &rest[1..];
        }
    }
    written
}

/// What follows the first character of a range that begins with the number 0.
fn range_after_nul(text: &str) -> Option<&str> {
    let rest = NULS.iter().find_map(|nul| text.strip_prefix(nul))?;
    Some(rest).filter(|rest| rest.starts_with('-') && !rest.starts_with("-]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_leave_out_leave_out_one_more() {
        for (pattern, expected) in [
            (r#"^[^"]*$"#, r#"^[^\x00"]*$"#),
            (r"[^a-z\]]\[^x][y[^]|[^]]", r"[^\x00a-z\]]\[^x][y[^]|[^]]"),
            (r"\\[^é]", r"\\[^\x00é]"),
            (r"[\x00-!#-~]\x00-[\\x00-9]", r"[\x01-!#-~]\x00-[\\x00-9]"),
            (r"[^\u0000-\x1f\x00-]", r"[^\x00\x01-\x1f\x00-]"),
            ("", ""),
        ] {
            assert_eq!(without_nul(pattern), expected);
        }
    }
}
