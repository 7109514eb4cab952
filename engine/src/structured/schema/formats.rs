//! Formats that the compiler takes less exactly than they are: days that no month has, seconds that no minute has.

use serde_json::{Map, Value, json};

use super::walk;

/// Days of the calendar: 29 February in leap years alone.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
/// A leap second is the last one of a day in Greenwich.
const TIME: &str = concat!(
    "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    "|23:59:60(?:\\.[0-9]+)?(?:[zZ]|[+-]00:00))",
);

/// Writes exact patterns in place of formats.
pub(super) fn write_out(schema: &mut Value) {
    walk::each_mut(schema, &mut |words| {
        if let Some(pattern) = words.get("format").and_then(Value::as_str).and_then(pattern) {
            words.remove("format");
            require(words, pattern);
        }
    });
}

fn pattern(format: &str) -> Option<String> {
    match format {
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}[tT]{TIME}$")),
        _ => None,
    }
}

fn require(words: &mut Map<String, Value>, pattern: String) {
    if !words.contains_key("pattern") {
        words.insert("pattern".to_owned(), pattern.into());
    } else if let Value::Array(all) = words.entry("allOf").or_insert_with(|| json!([])) {
        all.push(json!({ "pattern": pattern }));
    }
}
