//! Names that are counted.
//!
//! The grammar of an object does not remember which names have come. Those that are listed come once; one that only a
//! pattern speaks of, or nothing, may come twice, and is one property then. So `minProperties` can be held to as long as
//! one such name is enough for it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::walk;

/// # Errors
///
/// What `minProperties` asks for and cannot be counted.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut refusal = Ok(());
    walk::each(schema, &mut |words| {
        if let Some(least) = least(words).filter(|least| *least > num_required(words) + 1) {
            refusal = Err(format!(
                "minProperties is {least}, {} names are required beside it, and at most one more can be counted: a name \
                 may come twice",
                num_required(words)
            ));
        }
    });
    refusal
}

fn least(words: &Map<String, Value>) -> Option<u64> {
    let least = words.get("minProperties")?;
    least.as_u64().or_else(|| least.as_f64().map(|least| least.max(0.0) as u64))
}

fn num_required(words: &Map<String, Value>) -> u64 {
    let names = words.get("required").and_then(Value::as_array).into_iter().flatten();
    names.filter_map(Value::as_str).collect::<BTreeSet<_>>().len() as u64
}
