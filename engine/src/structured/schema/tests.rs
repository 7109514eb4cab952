//! Other words mean the same: a value is allowed by both or by neither.

use serde_json::{Value, json};

use super::rewordings;

/// Values of all types, and objects and lists that the schemas of the test suite speak of.
fn values() -> Vec<Value> {
    let scalars = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(5),
        json!(-7),
        json!(10),
        json!(0.5),
        json!(1e9),
        json!(""),
        json!("a"),
        json!("aa"),
        json!("foo"),
        json!("bar"),
        json!("other"),
        json!("yes"),
        json!("then"),
        json!("else"),
        json!("long enough to be long"),
        json!("/a~0b"),
    ];
    let names = ["a", "foo", "bar", "baz", "quux", "x1", "longer name"];
    let mut values = scalars.to_vec();
    for (i, first) in scalars.iter().enumerate() {
        let second = &scalars[(i * 7 + 3) % scalars.len()];
        let third = &scalars[(i * 5 + 1) % scalars.len()];
        values.push(json!([first]));
        values.push(json!([first, second]));
        values.push(json!([first, second, third]));
        let name = |j: usize| names[(i + j) % names.len()];
        values.push(json!({ name(0): first }));
        values.push(json!({ name(0): first, name(1): second }));
        values.push(json!({ name(0): first, name(2): second, name(3): third }));
        values.push(json!({ "foo": first, "bar": second }));
        values.push(json!({ name(0): { name(1): first } }));
        values.push(json!([{ "foo": first }, [second]]));
    }
    values.extend([json!([]), json!({}), json!([[]]), json!({ "foo": [] }), json!({ "kind": "a", "n": 1 })]);
    values
}

/// Checks all rewordings of a schema against it; how many there are. One whose references lead nowhere is none: the
/// compiler does not take it.
#[track_caller]
fn check(name: &str, schema: &Value) -> usize {
    let Ok(plain) = jsonschema::validator_for(schema) else { return 0 };
    let mut num_checked = 0;
    for other in rewordings(schema) {
        let Ok(reworded) = jsonschema::validator_for(&other) else { continue };
        for value in values() {
            let (given, expected) = (reworded.is_valid(&value), plain.is_valid(&value));
            assert_eq!(given, expected, "{name}: {value} by {schema} and {other}");
        }
        num_checked += 1;
    }
    num_checked
}

#[test]
fn each_word_has_other_words_that_mean_the_same() {
    let kind = |kind: &str, then: Value| json!({"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": then});
    let schemas = [
        json!({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": ["number", "object"]}}),
        json!({"if": {"exclusiveMaximum": 2}, "then": {"minimum": -1}}),
        json!({"if": {"maxItems": 1}, "else": {"prefixItems": [{"type": "number"}]}}),
        json!({"type": "object", "allOf": [kind("a", json!({"required": ["n"]})), kind("b", json!({"required": ["m"]}))]}),
        json!({"then": false, "type": "string"}),
        json!({"not": {"type": ["string", "object"]}}),
        json!({"not": {"enum": ["a", "foo", null, true, 1, 5]}}),
        json!({"not": {"required": ["foo"]}}),
        json!({"not": {"properties": {"foo": {"type": "string", "minLength": 2}}}}),
        json!({"not": {"not": {"pattern": "^a"}}}),
        json!({"not": {"anyOf": [{"minimum": 2}, {"maxLength": 1}]}}),
        json!({"not": {"allOf": [{"minProperties": 1}, {"required": ["foo"]}]}}),
        json!({"not": {}}),
        json!({"not": false}),
        json!({"dependentRequired": {"foo": ["bar", "baz"], "a": []}}),
        json!({"dependentSchemas": {"foo": {"minProperties": 2}, "bar": true, "baz": false}}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"foo": ["bar"], "a": {"maxProperties": 1}}}),
        json!({"propertyNames": {"maxLength": 3}}),
        json!({"propertyNames": {"pattern": "^[a-f]", "minLength": 2}}),
        json!({"propertyNames": {"enum": ["foo", "bar"]}, "properties": {"foo": {"type": "string"}}}),
        json!({"propertyNames": false}),
        json!({"oneOf": [{"type": "number", "minimum": 2}, {"type": "number", "maximum": 5}]}),
        json!({"oneOf": [{"required": ["foo"]}, {"required": ["bar"]}, {"type": "null"}]}),
        json!({"properties": {"foo": true}, "unevaluatedProperties": {"type": "string"}}),
        json!({"allOf": [{"properties": {"foo": {"type": "string"}}}, {"$ref": "#/$defs/b"}], "unevaluatedProperties": false,
            "$defs": {"b": {"patternProperties": {"^b": {"type": "number"}}}}}),
        json!({"allOf": [{"additionalProperties": true}], "unevaluatedProperties": false}),
        json!({"prefixItems": [{"type": "string"}], "unevaluatedItems": {"type": "null"}}),
        json!({"allOf": [{"prefixItems": [true, {"type": "string"}]}], "unevaluatedItems": false}),
        json!({"$schema": "https://json-schema.org/draft/2019-09/schema", "items": [{"type": "string"}], "unevaluatedItems": false}),
        json!({"minContains": 2, "maxContains": 1}),
        json!({"contains": {"type": "string"}, "minContains": 0}),
        json!({"uniqueItems": true, "maxItems": 1}),
        json!({"minLength": 2.0, "maxProperties": 1.0}),
        json!({"properties": {"foo": {"$recursiveRef": "#"}}, "$schema": "https://json-schema.org/draft/2019-09/schema",
            "unevaluatedProperties": false}),
    ];
    for schema in schemas {
        assert!(check("", &schema) > 0, "{schema} has no other words");
    }
}

#[test]
fn what_has_no_other_words_stays() {
    for schema in [
        json!({"uniqueItems": true}),
        json!({"contains": {"type": "string"}}),
        json!({"not": {"pattern": "a"}}),
        json!({"if": {"type": "integer"}, "then": {"minimum": 2}}),
        json!({"anyOf": [{"properties": {"foo": true}}], "unevaluatedProperties": false}),
        json!({"type": "string", "$ref": "#/$defs/a", "$defs": {"a": {"format": "date"}}}),
    ] {
        assert!(rewordings(&schema).is_empty(), "{schema}");
    }
}

/// Those with `dependencies` apart, which today's drafts pass over and some validators with them.
#[test]
fn the_schemas_of_the_test_suite_mean_what_they_meant() {
    let text = include_str!("../../../../tests/golden/json_schemas.jsonl");
    let lines = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let num_reworded: usize = lines
        .filter(|line| !line["schema"].to_string().contains("\"dependencies\""))
        .filter(|line| check(line["name"].as_str().unwrap(), &line["schema"]) > 0)
        .count();
    assert!(num_reworded > 100, "{num_reworded}");
}
