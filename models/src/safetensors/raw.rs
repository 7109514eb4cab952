//! A header as its JSON has it, before anything in it is compared.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::SafetensorsError;
use crate::json::{JsonError, shortened};

/// What is no tensor.
const METADATA: &str = "__metadata__";

const DTYPE: &str = "dtype";
const SHAPE: &str = "shape";
const OFFSETS: &str = "data_offsets";

/// What a header says of a tensor.
pub(super) struct RawEntry {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    pub(super) data_offsets: (u64, u64),
}

/// The tensors of a header. A name that is given twice is an error, where a map would keep the last one.
pub(super) fn read(text: &[u8]) -> Result<BTreeMap<String, RawEntry>, SafetensorsError> {
    let header: Pairs<Pairs<Value>> = serde_json::from_slice(text).map_err(|_| refused(text))?;
    let mut entries = BTreeMap::new();
    for (name, fields) in header.0.into_iter().filter(|(name, _)| name != METADATA) {
        let tensor = format!("tensor {name}");
        if entries.insert(name, RawEntry::read(&tensor, &fields)?).is_some() {
            return Err(SafetensorsError::Twice { field: tensor });
        }
    }
    Ok(entries)
}

impl RawEntry {
    fn read(tensor: &str, fields: &Pairs<Value>) -> Result<Self, SafetensorsError> {
        let wrong = |field: &str, expected, given| Err(form(&format!("{tensor}: {field}"), expected, given));
        let dtype = match fields.find(tensor, DTYPE)? {
            Some(Value::String(name)) => name.clone(),
            given => return wrong(DTYPE, "a string", given),
        };
        let given = fields.find(tensor, SHAPE)?;
        let Some(shape) = numbers(given) else {
            return wrong(SHAPE, "a list of whole numbers of at least 0", given);
        };
        let given = fields.find(tensor, OFFSETS)?;
        match numbers(given).as_deref() {
            Some(&[start, end]) => Ok(Self { dtype, shape, data_offsets: (start, end) }),
            _ => wrong(OFFSETS, "two whole numbers of at least 0", given),
        }
    }
}

fn numbers<T: TryFrom<u64>>(value: Option<&Value>) -> Option<Vec<T>> {
    value?.as_array()?.iter().map(|number| T::try_from(number.as_u64()?).ok()).collect()
}

/// Why a text is no object of objects.
fn refused(text: &[u8]) -> SafetensorsError {
    let header = match serde_json::from_slice(text) {
        Ok(Value::Object(header)) => header,
        Ok(other) => return form("all of it", "an object of tensors", Some(&other)),
        Err(error) => return SafetensorsError::HeaderJson(JsonError::of(&error, text)),
    };
    let entry = header.iter().find(|(_, entry)| !entry.is_object());
    let (name, entry) = entry.expect("an object of objects is not refused");
    form(&format!("tensor {name}"), "an object with dtype, shape and data_offsets", Some(entry))
}

fn form(field: &str, expected: &'static str, given: Option<&Value>) -> SafetensorsError {
    let given = given.map_or_else(|| "nothing".to_owned(), shortened);
    SafetensorsError::HeaderForm { field: field.to_owned(), expected, given }
}

/// The entries of an object in their order, also those whose name is given twice.
struct Pairs<T>(Vec<(String, T)>);

impl Pairs<Value> {
    fn find(&self, tensor: &str, name: &str) -> Result<Option<&Value>, SafetensorsError> {
        let mut found = self.0.iter().filter(|(given, _)| given == name).map(|(_, value)| value);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(SafetensorsError::Twice { field: format!("{tensor}: {name}") }),
            (value, _) => Ok(value),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
    type Value = Pairs<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}
