//! The settings of the library compressed-tensors.

use serde_json::Value;

use super::{Quantization, refuse_set, sizes};
use crate::config::fields::Fields;

/// The weights of a group of modules.
struct Group {
    block: Option<[usize; 2]>,
    has_zeros: bool,
    act_order: bool,
}

pub(super) fn read(fields: Fields<'_>) -> Quantization {
    check_format(fields);
    let sparsity = fields.object("sparsity_config").and_then(|sparsity| sparsity.string("format"));
    if let Some(given) = sparsity.filter(|format| *format != "dense") {
        fields.refuse("sparsity_config.format", given, "dense");
    }
    refuse_set(fields, &["transform_config"]);
    let groups = groups_of(fields);
    Quantization::CompressedTensors {
        block: groups.iter().rev().find_map(|group| group.block),
        has_zeros: !groups.is_empty() && groups.iter().all(|group| group.has_zeros),
        act_order: !groups.is_empty() && groups.iter().all(|group| group.act_order),
    }
}

/// A format of the whole checkpoint, or of a group where the former is `mixed-precision`.
fn check_format(fields: Fields<'_>) {
    const EXPECTED: &str = "pack-quantized, int-quantized, float-quantized, naive-quantized or dense";
    const KNOWN: [&str; 6] =
        ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", "mixed-precision"];
    if let Some(given) = fields.string("format").filter(|format| !KNOWN.contains(format)) {
        fields.refuse("format", given, EXPECTED);
    }
}

/// Those groups that have weights.
fn groups_of(fields: Fields<'_>) -> Vec<Group> {
    let path = fields.path("config_groups");
    let Some(groups) = fields.object_at("config_groups", &path) else { return Vec::new() };
    let read = |name: &String| {
        let path = groups.path(name);
        let group = groups.object_at(name, &path)?;
        check_format(group);
        Group::read(group)
    };
    groups.names().filter_map(read).collect()
}

impl Group {
    fn read(group: Fields<'_>) -> Option<Self> {
        let path = group.path("weights");
        let weights = group.object_at("weights", &path)?;
        let kind = (weights.string("type").unwrap_or("int"), weights.size("num_bits").unwrap_or(8));
        if !matches!(kind, ("int", 4 | 8) | ("float", 8)) {
            let given = format!("{} of {} bits", kind.0, kind.1);
            group.refuse("weights", given, "int of 4 or 8 bits, or float of 8 bits");
        }
        let is_blocks = weights.string("strategy") == Some("block");
        Some(Self {
            block: is_blocks.then(|| sizes(weights, "block_structure")).flatten(),
            has_zeros: weights.boolean("symmetric") == Some(false),
            // `true` and `dynamic` are older words for `group`; other orders leave columns where they are.
            act_order: match weights.find("actorder") {
                Some(Value::Bool(given)) => *given,
                given => given.is_some_and(|given| given == "group" || given == "dynamic"),
            },
        })
    }
}
