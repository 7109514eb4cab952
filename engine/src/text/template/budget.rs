//! What one rendering may make: every operation that makes something pays for it first.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use minijinja::value::{Object, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Bytes of a value's place in a list.
const PLACE_BYTES: u64 = 24;
/// Lists within lists. Writing, comparing and dropping them recurses.
const MAX_DEPTH: u32 = 200;
/// Ticks between two looks at the clock.
const TICKS_A_LOOK: u64 = 16;

/// The variable that holds the budget: no template can write this name.
pub(super) const VARIABLE: &str = " budget";

/// Marks errors of templates that make too much.
#[derive(Debug, thiserror::Error)]
#[error("a template may not make so much")]
struct TooMuch;

/// Whether a template was stopped for what it makes.
pub(super) fn is_too_much(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<TooMuch>())
}

/// An error of a template that makes too much.
pub(super) fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned()).with_source(TooMuch)
}

/// What is left of what a rendering may make.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: AtomicU64,
    /// What one value may hold, however often it holds the same: a step may look through all of it.
    most_held: Option<u64>,
    num_ticks: AtomicU64,
    deadline: Instant,
}

impl Object for Budget {}

impl Budget {
    /// So many bytes, until then.
    pub(super) fn new(bytes: u64, deadline: Instant) -> Self {
        Self { bytes: AtomicU64::new(bytes), most_held: None, num_ticks: AtomicU64::new(0), deadline }
    }

    /// With the same bound on what each value holds.
    pub(super) fn for_each_value_too(self) -> Self {
        Self { most_held: Some(self.left()), ..self }
    }

    fn left(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn spend(&self, num_bytes: u64) -> Result<(), Error> {
        let left = self.left().checked_sub(num_bytes);
        let left =
            left.ok_or_else(|| too_much("the template makes more text and lists than a prompt can need"))?;
        self.bytes.store(left, Ordering::Relaxed);
        self.check_time()
    }

    /// Looks at the clock, now and then.
    fn tick(&self) -> Result<(), Error> {
        match self.num_ticks.fetch_add(1, Ordering::Relaxed) % TICKS_A_LOOK {
            0 => self.check_time(),
            _ => Ok(()),
        }
    }

    fn check_time(&self) -> Result<(), Error> {
        if Instant::now() > self.deadline {
            return Err(too_much("the template takes longer than a prompt can need"));
        }
        Ok(())
    }
}

/// The bytes of a conversation.
///
/// # Errors
///
/// A value in it that is nested too deeply.
pub(super) fn input_bytes(variables: &[(String, Value)]) -> Result<u64, Error> {
    let mut num_bytes = 0;
    variables.iter().try_for_each(|(_, value)| measure(value, u64::MAX, MAX_DEPTH, &mut num_bytes))?;
    Ok(num_bytes)
}

/// Says that a step begins that may take long and makes nothing that is paid for.
pub(super) fn tick(state: &State<'_, '_>) -> Result<(), Error> {
    with(state, Budget::tick)
}

/// Hands a list on that has been made of others, or is about to be repeated so often, if it does not hold too much.
pub(super) fn held(state: &State<'_, '_>, value: Value, times: u64) -> Result<Value, Error> {
    with(state, |budget| {
        let Some(most) = budget.most_held.filter(|_| value.as_str().is_none()) else { return Ok(()) };
        let mut sum = 0;
        measure(&value, most, MAX_DEPTH, &mut sum)?;
        let is_within = sum.saturating_mul(times) <= most;
        if is_within {
            Ok(())
        } else {
            Err(too_much("the template makes more text and lists than a prompt can need"))
        }
    })?;
    Ok(value)
}

/// Pays for bytes that are about to be made.
pub(super) fn spend(state: &State<'_, '_>, num_bytes: u64) -> Result<(), Error> {
    with(state, |budget| budget.spend(num_bytes))
}

/// Pays for all that values hold, which is about to be written or copied.
pub(super) fn spend_for_all(state: &State<'_, '_>, values: &[Value]) -> Result<(), Error> {
    spend_times(state, values, 1)
}

/// The same for what is written with `factor` bytes for a byte at most.
pub(super) fn spend_times(state: &State<'_, '_>, values: &[Value], factor: u64) -> Result<(), Error> {
    with(state, |budget| {
        let mut sum = 0;
        values.iter().try_for_each(|value| measure(value, budget.left(), MAX_DEPTH, &mut sum))?;
        budget.spend(sum.saturating_mul(factor))
    })
}

/// Pays for a value that has been made of others: for its text, or the places of its items.
pub(super) fn spend_for_one(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    spend(state, shallow_bytes(value))
}

/// The bytes of a text, or of the places of the items of a list.
pub(super) fn shallow_bytes(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => text.len() as u64,
        None => value.len().map_or(8, |len| PLACE_BYTES.saturating_mul(len as u64)),
    }
}

/// The bytes of the places of `len` items.
pub(super) fn places(len: usize) -> u64 {
    PLACE_BYTES.saturating_mul(len as u64)
}

fn with(state: &State<'_, '_>, f: impl FnOnce(&Budget) -> Result<(), Error>) -> Result<(), Error> {
    let budget = state.lookup(VARIABLE);
    budget.as_ref().and_then(Value::downcast_object_ref).map_or(Ok(()), f)
}

/// Adds up what a value holds, however often it holds it; stops at `limit`.
fn measure(value: &Value, limit: u64, depth: u32, sum: &mut u64) -> Result<(), Error> {
    *sum = sum.saturating_add(PLACE_BYTES);
    if let Some(text) = value.as_str() {
        *sum = sum.saturating_add(text.len() as u64);
    }
    if *sum > limit {
        return Err(too_much("the template makes more text and lists than a prompt can need"));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return Ok(());
    }
    let depth = depth.checked_sub(1).ok_or_else(|| too_much("the template nests its values too deeply"))?;
    for item in value.try_iter().into_iter().flatten() {
        measure(&item, limit, depth, sum)?;
        if value.kind() == ValueKind::Map {
            measure(&value.get_item(&item).unwrap_or_default(), limit, depth, sum)?;
        }
    }
    Ok(())
}
