//! Paged attention, one query head after the other.

use super::memory::{load, load_i32, store};
use super::{backend_name, plain_part};
use crate::{
    AttentionArgs, AttentionKernels, DeviceId, KvGroupSpec, KvLayer, KvLayout, Result, StepCtx, Tensor,
    math::{self, Scores},
};

pub(super) struct Attention(pub(super) DeviceId);

plain_part!(Attention, "attention");

impl AttentionKernels for Attention {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout> {
        KvLayout::keys_then_values(spec, block_size, backend_name())
    }

    fn supports_soft_cap(&self) -> bool {
        true
    }

    fn supports_kv_scales(&self) -> bool {
        true
    }

    fn write_kv(
        &self,
        _: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slot_mapping: &Tensor,
    ) -> Result<()> {
        let (keys, values) = (load(k), load(v));
        let columns = k.num_columns();
        for (token, slot) in load_i32(slot_mapping).into_iter().enumerate() {
            let Ok(slot) = usize::try_from(slot) else { continue };
            for head in 0..kv.layout.num_kv_heads {
                let start = token * columns + head * kv.layout.head_dim;
                let elements = start..start + kv.layout.head_dim;
                store_divided(&stored(kv, Half::Keys, head, slot), &keys[elements.clone()], kv.scales.k);
                store_divided(&stored(kv, Half::Values, head, slot), &values[elements], kv.scales.v);
            }
        }
        Ok(())
    }

    fn forward(&self, _: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<()> {
        let starts = load_i32(&args.step.query_start);
        let lengths = load_i32(&args.step.seq_lens);
        let q = load(args.q);
        let mut out = vec![0.0; q.len()];
        for (row, &length) in lengths.iter().enumerate() {
            let tokens = starts[row] as usize..starts[row + 1] as usize;
            if length > 0 && !tokens.is_empty() {
                let columns = args.q.num_columns();
                let elements = tokens.start * columns..tokens.end * columns;
                attend_row(args, row, length as usize, &q[elements.clone()], &mut out[elements]);
            }
        }
        store(args.out, &out);
        Ok(())
    }
}

fn store_divided(to: &Tensor, elements: &[f64], scale: f32) {
    let divided: Vec<f64> = elements.iter().map(|element| element / f64::from(scale)).collect();
    store(to, &divided);
}

/// All queries of one row, whose cache holds `length` tokens.
fn attend_row(args: &AttentionArgs<'_>, row: usize, length: usize, q: &[f64], out: &mut [f64]) {
    let layout = &args.kv.layout;
    let (head_dim, columns) = (layout.head_dim, args.q.num_columns());
    let group = columns / head_dim / layout.num_kv_heads;
    let table = load_i32(&args.step.block_tables.rows(row, row + 1));
    let slot = |position: usize| {
        table[position / layout.block_size] as usize * layout.block_size + position % layout.block_size
    };
    for kv_head in 0..layout.num_kv_heads {
        let cached = |half: Half, scale: f32| -> Vec<f64> {
            let elements =
                (0..length).flat_map(|position| load(&stored(args.kv, half, kv_head, slot(position))));
            elements.map(|element| element * f64::from(scale)).collect()
        };
        let scales = args.kv.scales;
        let (keys, values) = (cached(Half::Keys, scales.k), cached(Half::Values, scales.v));
        let first = length - q.len() / columns;
        for (token, head) in (0..q.len() / columns).flat_map(|t| (0..group).map(move |h| (t, h))) {
            let seen = math::visible(first + token, args.window);
            let seen = seen.start * head_dim..seen.end * head_dim;
            let start = token * columns + (kv_head * group + head) * head_dim;
            let query = &q[start..start + head_dim];
            let result = math::attend(
                query,
                &keys[seen.clone()],
                &values[seen],
                Scores::new(args.scale, args.soft_cap),
            );
            out[start..start + head_dim].copy_from_slice(&result);
        }
    }
}

#[derive(Clone, Copy)]
enum Half {
    Keys,
    Values,
}

/// The key or the value of one head in one slot.
fn stored(kv: &KvLayer, half: Half, head: usize, slot: usize) -> Tensor {
    let layout = &kv.layout;
    let (block, offset) = (slot / layout.block_size, slot % layout.block_size);
    let half_len = layout.num_kv_heads * layout.block_size * layout.head_dim;
    let half_start = if matches!(half, Half::Keys) { 0 } else { half_len };
    let element = half_start + (head * layout.block_size + offset) * layout.head_dim;
    let block = kv.blocks.rows(block, block + 1);
    let start = block.offset_bytes() + element * layout.dtype.block_bytes();
    Tensor::new(block.buffer().clone(), start, layout.dtype, &[layout.head_dim])
}
