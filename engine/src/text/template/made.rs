//! The functions that make values for a guarded program, each within the budget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::machinery::{Span, ast};
use minijinja::value::{Enumerator, Kwargs, Object, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::budget::{
    held, places, shallow_bytes, spend, spend_for_all, spend_for_one, spend_times, tick, too_much,
};
use super::{python, tuple};

// No template can write these names.
pub(super) const CONCAT: &str = " concat";
pub(super) const ADD: &str = " add";
pub(super) const MUL: &str = " mul";
pub(super) const REM: &str = " rem";
pub(super) const PAID: &str = " paid";
pub(super) const STORE: &str = " store";
pub(super) const LIST: &str = " list";
pub(super) const MAP: &str = " map";
pub(super) const TICK: &str = " tick";
pub(super) const DIV: &str = " div";
pub(super) const INT_DIV: &str = " int div";

/// Widths and precisions that a format may ask for.
const MAX_WIDTH: usize = 1000;

/// Filters that write text or copy what they are given, each with the function that calls it.
macro_rules! filters {
    ($($name:literal)*) => { &[$(($name, concat!(" |", $name))),*] };
}
const FILTERS: &[(&str, &str)] = filters!(
    "batch" "capitalize" "center" "chain" "dictsort" "e" "escape" "forceescape" "format" "groupby" "indent" "items" "join" "lines" "list" "lower"
    "map" "pprint" "reject" "rejectattr" "replace" "reverse" "safe" "select" "selectattr" "slice" "sort" "split" "string" "striptags"
    "sum" "title" "tojson" "trim" "truncate" "unique" "upper" "urlencode" "wordcount" "zip"
);
/// Those among them that hand on the items that they are given.
const KEEPING: &[&str] = &[
    "batch",
    "chain",
    "dictsort",
    "groupby",
    "items",
    "list",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "sort",
    "unique",
    "zip",
];

/// The function that stands for a filter, if it makes anything.
pub(super) fn filter(name: &str) -> Option<&'static str> {
    FILTERS.iter().find(|(filter, _)| *filter == name.trim()).map(|(_, function)| *function)
}

/// Gives an environment the functions that guarded programs call.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_function(CONCAT, concat);
    environment.add_function(ADD, add);
    environment.add_function(MUL, mul);
    environment.add_function(REM, rem);
    environment.add_function(DIV, |a: Value, b: Value| divided(ast::BinOpKind::Div, "/", a, b));
    environment.add_function(INT_DIV, |a: Value, b: Value| divided(ast::BinOpKind::FloorDiv, "//", a, b));
    environment.add_function(PAID, |state: &State<'_, '_>, value: Value| {
        spend_for_one(state, &value).map(|()| value)
    });
    environment.add_function(TICK, |state: &State<'_, '_>| tick(state));
    environment.add_function(STORE, store);
    environment.add_function(LIST, list);
    environment.add_function(MAP, map);
    environment.add_function("dict", dict);
    environment.add_function("namespace", namespace);
    // It shows what no template should see, and is none of the language's functions.
    environment.remove_global("debug");
    for (name, function) in FILTERS {
        environment.add_function(*function, move |state: &State<'_, '_>, args: Rest<Value>| {
            apply(state, name, &args)
        });
    }
}

/// Calls a filter for what its result is sure to fit the budget.
fn apply(state: &State<'_, '_>, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "map" && maps_by_filter(args) {
        return map_by_filter(state, args);
    }
    if KEEPING.contains(&name) {
        let numbers = args.iter().skip(1).filter_map(Value::as_usize).fold(0, usize::saturating_add);
        args.iter().try_for_each(|arg| spend(state, places(arg.len().unwrap_or(0))))?;
        spend(state, places(numbers))?;
        // A text is a list of its characters.
        args.iter().filter_map(Value::as_str).try_for_each(|text| spend(state, places(text.len())))?;
    } else {
        // Escapes are longer than what they stand for.
        let factor = if matches!(name, "e" | "escape" | "forceescape" | "tojson" | "urlencode" | "pprint") {
            6
        } else {
            1
        };
        spend_times(state, args, factor)?;
        spend_for_growth(state, name, args)?;
    }
    let made = state.apply_filter(name, args)?;
    // Python has tuples there.
    let made = if matches!(name, "items" | "dictsort" | "zip") { tuple::of_pairs(&made)? } else { made };
    if name == "map" || KEEPING.contains(&name) { held(state, made, 1) } else { Ok(made) }
}

/// Calls a method of a text for what its result is sure to fit the budget.
pub(super) fn before_method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<(), Error> {
    if value.as_str().is_none() {
        return Ok(());
    }
    spend_for_all(state, std::slice::from_ref(value))?;
    spend_for_all(state, args)?;
    let all: Vec<Value> = match name {
        // The text stands between the items.
        "join" => args.iter().chain([value]).cloned().collect(),
        _ => std::iter::once(value).chain(args).cloned().collect(),
    };
    spend_for_growth(state, name, &all)
}

/// Pays for what a filter or method of text makes beyond what it is given.
fn spend_for_growth(state: &State<'_, '_>, name: &str, args: &[Value]) -> Result<(), Error> {
    let text = |at: usize| args.get(at).and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str| args.last().and_then(|last| last.get_attr(name).ok()?.as_usize());
    match name {
        "join" => {
            let num_gaps = args.first().and_then(Value::len).unwrap_or(0) as u64;
            spend(state, num_gaps.saturating_mul(text(1).len() as u64))
        }
        "replace" => {
            // Between all characters, where nothing is replaced.
            let (this, old, new) = (text(0), text(1), text(2));
            let most = if old.is_empty() { this.len() + 1 } else { this.matches(old).count() };
            spend(state, (most as u64).saturating_mul(new.len() as u64))
        }
        "split" | "rsplit" | "splitlines" | "lines" => {
            let mark = text(1);
            let most = if mark.is_empty() { text(0).len() } else { text(0).matches(mark).count() };
            spend(state, places(most + 1))
        }
        "indent" => {
            let width = args.get(1).and_then(Value::as_usize).or_else(|| number("width")).unwrap_or(4);
            let num_lines = text(0).bytes().filter(|&byte| byte == b'\n').count() as u64 + 1;
            spend(state, num_lines.saturating_mul(width as u64))
        }
        "tojson"
            if args.get(1).and_then(Value::as_usize).or_else(|| number("indent")) > Some(MAX_WIDTH / 10) =>
        {
            Err(too_much("the template indents JSON more than a prompt can need"))
        }
        "format" => check_widths(args),
        _ => Ok(()),
    }
}

/// No text is filled up to a large width.
pub(super) fn check_width(width: usize) -> Result<(), Error> {
    if width > MAX_WIDTH {
        Err(too_much("the template pads text more than a prompt can need"))
    } else {
        Ok(())
    }
}

/// No number of a format, and none that is given to one in place of a width, is large.
fn check_widths(args: &[Value]) -> Result<(), Error> {
    let text = args.first().and_then(Value::as_str).unwrap_or_default();
    let is_large =
        |digits: &str| digits.parse::<usize>().map_or(!digits.is_empty(), |width| width > MAX_WIDTH);
    let in_format = text.split(|c: char| !c.is_ascii_digit()).any(is_large);
    let takes_widths = text.contains('*') || !text.contains(['%', '{']) || text.contains(":{");
    let in_args = takes_widths && args.iter().skip(1).any(|arg| arg.as_usize() > Some(MAX_WIDTH));
    if in_format || in_args {
        return Err(too_much("the template pads text more than a prompt can need"));
    }
    Ok(())
}

fn maps_by_filter(args: &[Value]) -> bool {
    args.get(1).is_some_and(|name| name.as_str().is_some())
}

/// `map('filter', ...)`, item by item.
fn map_by_filter(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (items, name) = (&args[0], args[1].as_str().unwrap_or_default().to_owned());
    spend(state, places(items.len().unwrap_or(0)))?;
    let apply_to = |item: Value| {
        tick(state)?;
        let args: Vec<Value> = std::iter::once(item).chain(args[2..].iter().cloned()).collect();
        if filter(&name).is_some() { apply(state, &name, &args) } else { state.apply_filter(&name, &args) }
    };
    let made = items.try_iter()?.map(apply_to).collect::<Result<Vec<_>, _>>()?;
    held(state, Value::from(made), 1)
}

/// `a ~ b`
fn concat(state: &State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    spend_for_all(state, &[a.clone(), b.clone()])?;
    Ok(Value::from([python::to_str(&a), python::to_str(&b)].concat()))
}

/// `a + b`
fn add(state: &State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    match (a.as_str(), b.as_str()) {
        (Some(left), Some(right)) => {
            spend(state, left.len() as u64 + right.len() as u64)?;
            Ok(Value::from([left, right].concat()))
        }
        _ => {
            // Lists are joined without a copy of the longer one.
            spend(state, shallow_bytes(&a).min(shallow_bytes(&b)))?;
            held(state, computed(ast::BinOpKind::Add, "+", a, b)?, 1)
        }
    }
}

/// `a * b`
fn mul(state: &State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    for (value, times) in [(&a, &b), (&b, &a)] {
        if value.kind() != ValueKind::Number {
            let times = times.as_usize().unwrap_or(0) as u64;
            spend(state, shallow_bytes(value).saturating_mul(times))?;
            held(state, value.clone(), times)?;
        }
    }
    computed(ast::BinOpKind::Mul, "*", a, b)
}

/// `a % b`: of a text the format, whose arguments are a list or one value.
fn rem(state: &State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    if a.as_str().is_none() {
        return divided(ast::BinOpKind::Rem, "%", a, b);
    }
    let is_mapping = b.kind() == ValueKind::Map;
    let args: Vec<Value> = match b.kind() {
        ValueKind::Seq => b.try_iter()?.collect(),
        _ => vec![b],
    };
    let expected = num_places(a.as_str().unwrap_or_default());
    if let Some(expected) = expected.filter(|expected| !is_mapping && *expected != args.len()) {
        let message =
            format!("the format has {expected} places, and there are {} values for them", args.len());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    apply(state, "format", &[vec![a], args].concat())
}

/// The values that a format takes, where its text alone tells.
fn num_places(format: &str) -> Option<usize> {
    let plain = format.replace("%%", "");
    (!plain.contains('*') && !plain.contains("%(")).then(|| plain.matches('%').count())
}

/// `a / b` and what comes with it. Whole numbers are rounded down, and the remainder has the sign of the divisor.
fn divided(op: ast::BinOpKind, sign: &str, a: Value, b: Value) -> Result<Value, Error> {
    if b.kind() == ValueKind::Number && f64::try_from(b.clone()).is_ok_and(|divisor| divisor == 0.0) {
        return Err(Error::new(ErrorKind::InvalidOperation, "division by zero"));
    }
    let whole = |value: &Value| value.as_i64().filter(|_| value.is_integer());
    match (op, whole(&a), whole(&b)) {
        (ast::BinOpKind::FloorDiv, Some(a), Some(b)) if b < 0 => {
            let (a, b) = (i128::from(a), i128::from(b));
            Ok(Value::from((-a).div_euclid(-b)))
        }
        (ast::BinOpKind::Rem, Some(a), Some(b)) if b < 0 => {
            let (a, b) = (i128::from(a), i128::from(b));
            Ok(Value::from(-((-a).rem_euclid(-b))))
        }
        _ => computed(op, sign, a, b),
    }
}

/// What the library makes of an operation.
fn computed(op: ast::BinOpKind, sign: &str, a: Value, b: Value) -> Result<Value, Error> {
    let kinds = (a.kind(), b.kind());
    let constant = |value| ast::Expr::Const(ast::Spanned::new(ast::Const { value }, Span::default()));
    let operation = ast::BinOp { op, left: constant(a), right: constant(b) };
    ast::Expr::BinOp(ast::Spanned::new(operation, Span::default())).as_const().ok_or_else(|| {
        let message = format!("{} {sign} {} is not possible", kinds.0, kinds.1);
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

fn list(state: &State<'_, '_>, items: Rest<Value>) -> Result<Value, Error> {
    spend_for_items(state, &items)?;
    held(state, Value::from(items.0), 1)
}

fn map(state: &State<'_, '_>, parts: Rest<Value>) -> Result<Value, Error> {
    spend_for_items(state, &parts)?;
    let pairs = parts.as_chunks::<2>().0.iter();
    held(state, pairs.map(|[key, value]| (key.clone(), value.clone())).collect(), 1)
}

fn dict(state: &State<'_, '_>, value: Option<Value>, update: Kwargs) -> Result<Value, Error> {
    let values: Vec<Value> = update.args().filter_map(|name| update.peek(name).ok()).collect();
    spend_for_items(state, &values)?;
    spend_for_items(state, value.as_slice())?;
    held(state, minijinja::functions::dict(value, update)?, 1)
}

/// Pays for the items of what is made of them. Those that are lists are looked through, so that none gets too deep; a
/// namespace is none, so that nothing can hold itself.
fn spend_for_items(state: &State<'_, '_>, items: &[Value]) -> Result<(), Error> {
    spend(state, places(items.len()))?;
    items.iter().try_for_each(refuse_namespace)?;
    let nested = items.iter().filter(|item| item.as_str().is_none() && item.len().is_some());
    nested.cloned().try_for_each(|item| spend_for_all(state, &[item]))
}

fn refuse_namespace(value: &Value) -> Result<(), Error> {
    match value.downcast_object_ref::<Namespace>() {
        Some(_) => Err(Error::new(ErrorKind::InvalidOperation, "a namespace cannot be a part of a value")),
        None => Ok(()),
    }
}

/// What `namespace()` makes: values that a template may set. Unlike the library's it is no part of other values.
#[derive(Debug, Default)]
struct Namespace {
    values: Mutex<BTreeMap<String, Value>>,
}

impl Namespace {
    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<String, Value>) -> T) -> T {
        // A panic while the lock is held leaves whole values.
        f(&mut self.values.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, name: &str, value: Value) -> Result<(), Error> {
        refuse_namespace(&value)?;
        self.with(|values| values.insert(name.to_owned(), value));
        Ok(())
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.with(|values| values.get(key.as_str()?).cloned())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.with(|values| values.keys().map(|name| Value::from(name.as_str())).collect()))
    }
}

fn namespace(state: &State<'_, '_>, defaults: Option<Value>) -> Result<Value, Error> {
    let namespace = Namespace::default();
    let defaults = defaults.unwrap_or_default();
    spend_for_all(state, std::slice::from_ref(&defaults))?;
    if !defaults.is_undefined() && defaults.kind() != ValueKind::Map {
        let message = format!("expected a mapping or keyword arguments, got {}", defaults.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    for key in defaults.try_iter().into_iter().flatten() {
        if let Some(name) = key.as_str() {
            namespace.set(name, defaults.get_item(&key)?)?;
        }
    }
    Ok(Value::from_object(namespace))
}

/// `set namespace.name = value`
fn store(value: Value, namespace: Value, name: String) -> Result<Value, Error> {
    match namespace.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(&name, value).map(|()| Value::from(())),
        None => {
            let message = format!("can only assign to namespaces, not {}", namespace.kind());
            Err(Error::new(ErrorKind::InvalidOperation, message))
        }
    }
}
