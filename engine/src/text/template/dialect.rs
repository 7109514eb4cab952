//! Jinja as `transformers` sets it up.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};

use super::json::tojson;
use super::methods::call_method;
use super::{budget, filters, made, python};

/// An environment with what templates of the hub use: Python's methods and ways to write values, `raise_exception`, a
/// `tojson` that writes what `json.dumps` does. `strftime_now` is a variable, since it needs the time.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(write_value);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", |value: &Value, kwargs| tojson(value, kwargs));
    environment.add_filter("string", |value: &Value| python::to_str(value));
    filters::add_to(&mut environment);
    made::add_to(&mut environment);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_iterable);
    environment
}

/// A template with one kind of line breaks, as Jinja reads it.
pub(super) fn with_plain_line_breaks(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// A template with the blocks that `transformers` adds to the language, which mark what an assistant has generated and write
/// nothing, as blocks that everybody knows.
pub(super) fn without_generation_blocks(source: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{%") {
        let (before, from) = rest.split_at(start);
        text.push_str(before);
        let end = from.find("%}").map_or(from.len(), |end| end + 2);
        let (block, after) = from.split_at(end);
        match block.trim_matches(|c: char| "{%}+-".contains(c) || c.is_whitespace()) {
            "generation" => text.push_str(&block.replacen("generation", "if true", 1)),
            "endgeneration" => text.push_str(&block.replacen("endgeneration", "endif", 1)),
            _ => text.push_str(block),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

/// Whether Python goes through a value: also through texts, and through what is undefined, but not through none.
fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Bytes, Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Bytes | Iterable | Map | Seq | String | Undefined)
}

/// Marks errors that a template raised by itself.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Raised;

pub(super) fn is_raised(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Raised>())
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
}

/// What the template said itself, or what is wrong with it and where.
pub(super) fn describe(error: &Error) -> String {
    match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "the template takes more steps than a prompt can need".to_owned(),
        (ErrorKind::InvalidOperation, Some(detail)) if error.line().is_none_or(|_| is_raised(error)) => error
            .line()
            .map_or_else(|| detail.to_owned(), |line| format!("{detail} (line {line} of the template)")),
        _ => {
            let mut text = error.to_string();
            if let Some(source) = std::error::Error::source(error) {
                let _ = write!(text, ": {source}");
            }
            text
        }
    }
}

/// What `{{ value }}` writes.
fn write_value(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if matches!(value.kind(), ValueKind::Invalid) {
        return minijinja::escape_formatter(out, state, value);
    }
    budget::spend_for_all(state, std::slice::from_ref(value))?;
    python::write_str(out, value).map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(template: &str, expected: &str) {
        let mut environment = environment();
        environment.add_template("t", template).unwrap();
        let value = minijinja::context!(x => serde_json::json!({"b": [1, 2.0, null], "a": "é\n\u{7F}<", "e": [], "o": {}}));
        assert_eq!(environment.get_template("t").unwrap().render(value).unwrap(), expected, "{template}");
    }

    #[test]
    fn values_are_pythons() {
        check("{{ none }} {{ true }} {{ x.b }} {{ x.zzz }}.", "None True [1, 2.0, None] .");
        check("{{ x | string }}", "{'b': [1, 2.0, None], 'a': 'é\\n\\x7f<', 'e': [], 'o': {}}");
    }

    #[test]
    fn tojson_is_json_dumps() {
        check("{{ x | tojson }}", "{\"b\": [1, 2.0, null], \"a\": \"é\\n\u{7F}<\", \"e\": [], \"o\": {}}");
        check(
            "{{ x | tojson(indent=2) }}",
            "{\n  \"b\": [\n    1,\n    2.0,\n    null\n  ],\n  \"a\": \"é\\n\u{7F}<\",\n  \"e\": [],\n  \"o\": {}\n}",
        );
        check(
            "{{ x | tojson(sort_keys=true, separators=(',', ':')) }}",
            "{\"a\":\"é\\n\u{7F}<\",\"b\":[1,2.0,null],\"e\":[],\"o\":{}}",
        );
        check("{{ 'é🙂' | tojson(ensure_ascii=true) }}", "\"\\u00e9\\ud83d\\ude42\"");
        check("{{ ['\\b\\u001f'] | tojson(indent=0) }}", "[\n\"\\b\\u001f\"\n]");
    }

    #[test]
    fn none_is_not_iterable() {
        check(
            "{{ none is iterable }} {{ x is sequence }} {{ 'a' is iterable }} {{ y is iterable }}",
            "False True True True",
        );
    }

    #[test]
    fn what_cannot_be_computed_is_an_error() {
        for template in [
            "{{ 1 / 0 }}",
            "{{ 1 // 0 }}",
            "{{ 1 % 0 }}",
            "{% set a = 0 %}{{ 1.5 / a }}",
            "{{ x.b[0] // (1 - 1) }}",
        ] {
            let value = minijinja::context!(x => serde_json::json!({"b": [1]}));
            let mut environment = environment();
            environment.set_fuel(Some(1000));
            let program = super::super::guard::Program::compile("t", template).unwrap();
            let budget =
                budget::Budget::new(1 << 20, std::time::Instant::now() + std::time::Duration::from_secs(60));
            let error =
                program.render(&environment, vec![("x".to_owned(), value.get_attr("x").unwrap())], budget);
            assert!(error.unwrap_err().to_string().contains("zero"), "{template}");
        }
    }

    #[test]
    fn methods_are_pythons() {
        check("{{ 'a-b-c'.rsplit('-', 1) }}", "['a-b', 'c']");
        check(
            "{{ 'a-b-c'.partition('-') }} {{ 'abc'.rpartition('-') }}",
            "['a', '-', 'b-c'] ['', '', 'abc']",
        );
        check(
            "{{ 'éabc'.removeprefix('é').removesuffix('c') }} {{ 'éab'.index('b') }} {{ 'aB'.swapcase() }}",
            "ab 2 Ab",
        );
        check("{{ ' a '.strip() + 'b'.upper() + 'x'.join(['1', '2']) }}", "aB1x2");
        check("{{ 'x'.rjust(3) }}|{{ 'x'.ljust(3, '.') }}|{{ 'x'.center(3) }}", "  x|x..| x ");
        check("{{ {'a': 1}.items() | list }}", "[('a', 1)]");
        check("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}", "a1");
    }

    #[test]
    fn filters_are_jinjas() {
        check("{{ 'x' | center(5) }}|{{ 7 | center(4) }}", "  x  | 7  ");
        check(
            "{{ 'é a/b?' | urlencode }} {{ {'a b': 1, 'c': '/'} | urlencode }}",
            "%C3%A9%20a/b%3F a+b=1&c=%2F",
        );
        check("{{ [['k', 'v w']] | urlencode }}", "k=v+w");
        check(
            "{{ 'foo bar baz qux' | truncate(9) }}|{{ 'foo bar baz qux' | truncate(9, true) }}",
            "foo...|foo ba...",
        );
        check(
            "{{ 'foo bar baz qux' | truncate(11) }}|{{ 'foo bar baz qux' | truncate(11, leeway=0, end='') }}",
            "foo bar baz qux|foo bar",
        );
        check(
            "{{ '<a>x</a> y' | striptags }} {{ '<' | forceescape }} {{ 1500 | filesizeformat }}",
            "x y &lt; 1.5 kB",
        );
        check("{{ 'a b' | wordcount }} {{ range is callable }} {{ x is callable }}", "2 True False");
        check(
            "{{ 'b' in ('a', 'b') }} {% for a, b in (('x', 1), ('y', 2)) %}{{ a ~ b }}{% endfor %}",
            "True x1y2",
        );
    }

    #[test]
    fn a_filter_that_there_is_not_is_named() {
        let mut environment = environment();
        environment.add_template("t", "{{ 'a' | wordwrap(3) }}").unwrap();
        let error = environment.get_template("t").unwrap().render(()).unwrap_err();
        assert!(describe(&error).contains("wordwrap"), "{}", describe(&error));
    }

    #[test]
    fn generation_blocks_write_nothing() {
        let source = "{%- for a in [1] -%}a {%- generation %} b{% endgeneration -%} c{% endfor %}{{ 'generation' }} {% x";
        let expected =
            "{%- for a in [1] -%}a {%- if true %} b{% endif -%} c{% endfor %}{{ 'generation' }} {% x";
        assert_eq!(without_generation_blocks(source), expected);
    }
}
