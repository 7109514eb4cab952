//! A line of a trace, whatever its form.

use super::{Arrivals, Content, Trace, TraceError, TraceRequest};
use crate::ids::TenantId;

pub(super) const ARRIVAL_S: &str = "arrival_s";
pub(super) const ARRIVAL_UNIT: &str = "arrival_unit";
pub(super) const PROMPT_TOKENS: &str = "prompt_tokens";
pub(super) const OUTPUT_TOKENS: &str = "output_tokens";
pub(super) const MAX_OUTPUT: &str = "max_tokens";
pub(super) const TENANT: &str = "tenant";
pub(super) const PREFIX: &str = "prefix";
pub(super) const PREFIX_TOKENS: &str = "prefix_tokens";
pub(super) const PRIORITY: &str = "priority";

/// All columns that are read.
pub(super) const COLUMNS: [&str; 9] = [
    ARRIVAL_S,
    ARRIVAL_UNIT,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    MAX_OUTPUT,
    TENANT,
    PREFIX,
    PREFIX_TOKENS,
    PRIORITY,
];

/// Longer requests are mistakes: two of them still add up.
const MAX_TOKENS: u32 = 100_000_000;
const COUNT: &str = "a whole number from 1 to 100000000";
const COUNT_OR_NONE: &str = "a whole number from 0 to 100000000";
const INTEGER: &str = "a whole number from -2147483648 to 2147483647";
const LIMIT: &str = "at least output_tokens";
const MOMENT: &str = "a number from 0 to 1e9";
/// 31 years: later ones are mistakes.
pub(super) const MAX_MOMENT: f64 = 1e9;

/// Looks up the text of a column; `None` where it is absent or empty.
pub(super) trait Row {
    fn line(&self) -> usize;
    fn get(&self, column: &'static str) -> Option<String>;

    /// A name: of a tenant, of a prefix.
    fn name(&self, column: &'static str) -> Result<Option<String>, TraceError> {
        Ok(self.get(column))
    }

    fn count(&self, column: &'static str) -> Result<Option<u32>, TraceError> {
        self.parsed(column, COUNT, |count| (1..=MAX_TOKENS).contains(count))
    }

    /// The text of a column as a value that is allowed.
    fn parsed<T: std::str::FromStr>(
        &self,
        column: &'static str,
        expected: &'static str,
        is_allowed: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, TraceError> {
        let Some(given) = self.get(column) else { return Ok(None) };
        match given.parse().ok().filter(is_allowed) {
            None => Err(TraceError::Value { line: self.line(), column, given, expected }),
            allowed => Ok(allowed),
        }
    }

    fn moment(&self, column: &'static str) -> Result<Option<f64>, TraceError> {
        self.parsed(column, MOMENT, |moment| (0.0..=MAX_MOMENT).contains(moment))
    }
}

/// The lines of a text, whichever of LF, CR LF and CR ends them all.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let end = if text.contains('\n') { '\n' } else { '\r' };
    text.trim_start_matches('\u{feff}').split(end)
}

/// Takes rows and makes a trace of them.
#[derive(Default)]
pub(super) struct Builder {
    requests: Vec<TraceRequest>,
    tenants: Names,
    prefixes: Names,
    /// The unit of the first row; `None` where it has no arrival.
    arrivals: Option<Option<Arrivals>>,
}

/// Names by the order of their appearance.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    places: std::collections::BTreeMap<String, usize>,
}

impl Names {
    fn place(&mut self, name: String) -> usize {
        let next = self.names.len();
        *self.places.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }
}

impl Builder {
    pub(super) fn push(&mut self, row: &impl Row) -> Result<(), TraceError> {
        let needed = |column| {
            let missing = TraceError::MissingValue { line: row.line(), column };
            row.count(column).and_then(|count| count.ok_or(missing))
        };
        let (prompt_tokens, output_tokens) = (needed(PROMPT_TOKENS)?, needed(OUTPUT_TOKENS)?);
        let arrival = self.arrival(row)?;
        let tenant = TenantId(self.tenants.place(row.name(TENANT)?.unwrap_or_default()) as u64);
        let priority = row.parsed(PRIORITY, INTEGER, |_| true)?.unwrap_or(0);
        let prefix_tokens = row.parsed(PREFIX_TOKENS, COUNT_OR_NONE, |count| *count <= MAX_TOKENS)?;
        let num_tokens = prefix_tokens.unwrap_or(prompt_tokens).min(prompt_tokens);
        let content = row.name(PREFIX)?.map_or(Content::Own, |name| {
            let group = self.prefixes.place(name) as u32;
            Content::Prefix { group, num_tokens }
        });
        row.count(MAX_OUTPUT)?;
        let max_tokens = row.parsed(MAX_OUTPUT, LIMIT, |max_tokens| *max_tokens >= output_tokens)?;
        let of =
            TraceRequest { arrival, prompt_tokens, output_tokens, max_tokens, tenant, priority, content };
        self.requests.push(of);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Trace, TraceError> {
        if self.requests.is_empty() {
            return Err(TraceError::Empty);
        }
        self.requests.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
        let arrivals = self.arrivals.flatten().unwrap_or(Arrivals::MeanGaps);
        let mut tenants = self.tenants.names;
        // Nobody named any: all are the one that has no name.
        tenants.retain(|_| self.tenants.places.len() > 1 || !self.tenants.places.contains_key(""));
        Ok(Trace { requests: self.requests, tenants, arrivals })
    }

    fn arrival(&mut self, row: &impl Row) -> Result<f64, TraceError> {
        let (seconds, units) = (row.moment(ARRIVAL_S)?, row.moment(ARRIVAL_UNIT)?);
        let (arrival, unit) = match (seconds, units) {
            (Some(seconds), _) => (seconds, Some(Arrivals::Seconds)),
            (None, Some(units)) => (units, Some(Arrivals::MeanGaps)),
            (None, None) => (0.0, None),
        };
        let expected = *self.arrivals.get_or_insert(unit);
        if unit == expected {
            return Ok(arrival);
        }
        let column = match expected.or(unit) {
            Some(Arrivals::MeanGaps) => ARRIVAL_UNIT,
            _ => ARRIVAL_S,
        };
        Err(TraceError::MixedArrivals { line: row.line(), column })
    }
}
