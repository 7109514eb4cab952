//! Comma-separated values under a header.

use super::row::{ARRIVAL_S, Builder, COLUMNS, OUTPUT_TOKENS, PROMPT_TOKENS, Row, lines};
use super::{Trace, TraceError};

struct Fields<'a> {
    line: usize,
    header: &'a [String],
    values: Vec<String>,
}

impl Row for Fields<'_> {
    fn line(&self) -> usize {
        self.line
    }

    fn get(&self, column: &'static str) -> Option<String> {
        let place = self.header.iter().position(|name| name == column)?;
        self.values.get(place).filter(|value| !value.is_empty()).cloned()
    }
}

pub(super) fn parse(text: &str) -> Result<Trace, TraceError> {
    let mut lines = lines(text).enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((index, header)) = lines.next() else { return Err(TraceError::Empty) };
    let header = split(header, index + 1)?;
    let is_there_twice = |column: &&str| header.iter().filter(|name| name == column).count() > 1;
    if let Some(column) = COLUMNS.into_iter().find(is_there_twice) {
        return Err(TraceError::Duplicate { line: index + 1, column });
    }
    for column in [ARRIVAL_S, PROMPT_TOKENS, OUTPUT_TOKENS] {
        if !header.iter().any(|name| name == column) {
            return Err(TraceError::MissingColumn { column, found: header.join(", ") });
        }
    }
    let mut builder = Builder::default();
    for (index, line) in lines {
        let line_number = index + 1;
        let row = Fields { line: line_number, header: &header, values: split(line, line_number)? };
        if row.get(ARRIVAL_S).is_none() {
            return Err(TraceError::MissingValue { line: line_number, column: ARRIVAL_S });
        }
        builder.push(&row)?;
    }
    builder.finish()
}

/// The fields of a line, without the blanks and quotes around them. A quote inside quotes is doubled (RFC 4180).
fn split(line: &str, number: usize) -> Result<Vec<String>, TraceError> {
    let (mut fields, mut field, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if is_quoted && chars.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(std::mem::take(&mut field).trim().to_owned()),
            char => field.push(char),
        }
    }
    if is_quoted {
        return Err(TraceError::OpenQuote { line: number });
    }
    fields.push(field.trim().to_owned());
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, message: &str) {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn columns_are_found_by_name_and_rows_ordered_by_arrival() {
        let trace =
            parse("note,output_tokens,arrival_s,prompt_tokens\n\"a, \"\"b\"\"\",7,2.5,100\n\nx,8,1.5,200\n")
                .unwrap();
        let rows: Vec<_> =
            trace.requests.iter().map(|r| (r.arrival, r.prompt_tokens, r.output_tokens)).collect();
        assert_eq!(rows, [(1.5, 200, 8), (2.5, 100, 7)]);
    }

    #[test]
    fn lines_end_as_on_any_system() {
        let text = "arrival_s,prompt_tokens,output_tokens\n1,2,3\n4,5,6\n";
        let trace = parse(text).unwrap();
        for end in ["\r\n", "\r"] {
            assert_eq!(parse(&text.replace('\n', end)).unwrap(), trace, "{end:?}");
        }
        check("arrival_s,prompt_tokens,output_tokens\r1,2,3\r4,x,6\r", "line 3, column `prompt_tokens`: `x`");
    }

    #[test]
    fn who_has_no_tenant_is_no_tenant_of_others_and_a_prefix_may_be_empty() {
        let header = "arrival_s,prompt_tokens,output_tokens,tenant,prefix,prefix_tokens,priority";
        let trace = parse(&format!("{header}\n0,4,1,a,p,0,-2\n0,4,1,,,,\n0,4,1,b,,,7\n")).unwrap();
        let tenants: Vec<_> = trace.requests.iter().map(|request| trace.tenant_name(request)).collect();
        assert_eq!(tenants, [Some("a"), None, Some("b")]);
        let ids: std::collections::BTreeSet<_> = trace.requests.iter().map(|r| r.tenant).collect();
        assert_eq!(ids.len(), 3);
        assert_eq!(trace.requests.iter().map(|r| r.priority).collect::<Vec<_>>(), [-2, 0, 7]);
        let none = parse("arrival_s,prompt_tokens,output_tokens\n0,4,1\n").unwrap();
        assert!(none.tenants.is_empty() && none.tenant_name(&none.requests[0]).is_none());
        assert_eq!(none.requests[0].tenant, Default::default());
    }

    #[test]
    fn refusals_name_line_and_column() {
        check("", "no requests");
        check("arrival_s,prompt_tokens,output_tokens\n", "no requests");
        check(
            "arrival_s,prompt\n1,2\n",
            "the header has no column `prompt_tokens`, found are: arrival_s, prompt",
        );
        check(
            "arrival_s,prompt_tokens,output_tokens,tenant,tenant\n1,2,3,a,b",
            "line 1: `tenant` is there twice",
        );
        let header = "arrival_s,prompt_tokens,output_tokens\n";
        check(&format!("{header}1e308,2,3\n"), "`1e308`, expected a number from 0 to 1e9");
        let limits = "arrival_s,prompt_tokens,output_tokens,max_tokens,priority\n";
        check(
            &format!("{limits}0,2,3,2,\n"),
            "line 2, column `max_tokens`: `2`, expected at least output_tokens",
        );
        check(
            &format!("{limits}0,2,3,,high\n"),
            "line 2, column `priority`: `high`, expected a whole number",
        );
        check(&format!("{header}1,2\n"), "line 2: no `output_tokens`");
        check(&format!("{header}1,2,3\n,2,3\n"), "line 3: no `arrival_s`");
        check(&format!("{header}1,2,3\nsoon,2,3\n"), "line 3, column `arrival_s`: `soon`");
        check(&format!("{header}1,2.5,3\n"), "column `prompt_tokens`: `2.5`, expected a whole number");
        check(&format!("{header}1,\"2,3\n"), "line 2: a quoted field does not end");
    }
}
