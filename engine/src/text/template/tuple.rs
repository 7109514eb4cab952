//! Python's tuples: lists that are written in round brackets.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value};

/// A list that is written as Python writes a tuple.
#[derive(Debug)]
pub(super) struct Tuple(Vec<Value>);

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

/// A tuple of such values.
pub(super) fn of(values: impl IntoIterator<Item = Value>) -> Value {
    Value::from_object(Tuple(values.into_iter().collect()))
}

pub(super) fn is_tuple(value: &Value) -> bool {
    value.downcast_object_ref::<Tuple>().is_some()
}

/// A list of lists as one of tuples.
pub(super) fn of_pairs(list: &Value) -> Result<Value, minijinja::Error> {
    let pair = |pair: Value| pair.try_iter().map(of);
    list.try_iter()?.map(pair).collect::<Result<Vec<_>, _>>().map(Value::from)
}
