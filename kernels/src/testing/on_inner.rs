//! What a call was given, as the inner device sees it.

use super::device::inner_tensor;
use crate::{Activation, KvLayer, RopeTable, Routes, SamplingState, StepView, Tensor};

/// Turns tensors of the deferred device into those of the inner one.
pub(super) trait OnInner {
    fn on_inner(&self) -> Self;
}

impl OnInner for Tensor {
    fn on_inner(&self) -> Self {
        inner_tensor(self)
    }
}

impl<T: OnInner> OnInner for Vec<T> {
    fn on_inner(&self) -> Self {
        self.iter().map(T::on_inner).collect()
    }
}

impl OnInner for Activation {
    fn on_inner(&self) -> Self {
        Self { x: self.x.on_inner(), prepared: self.prepared.on_inner() }
    }
}

impl OnInner for KvLayer {
    fn on_inner(&self) -> Self {
        Self { blocks: self.blocks.on_inner(), layout: self.layout.clone(), scales: self.scales }
    }
}

impl OnInner for RopeTable {
    fn on_inner(&self) -> Self {
        Self { cos_sin: self.cos_sin.on_inner(), style: self.style }
    }
}

impl OnInner for Routes {
    fn on_inner(&self) -> Self {
        Self { experts: self.experts.on_inner(), weights: self.weights.on_inner() }
    }
}

impl OnInner for StepView {
    fn on_inner(&self) -> Self {
        Self {
            key: self.key,
            token_ids: self.token_ids.on_inner(),
            positions: self.positions.on_inner(),
            slot_mapping: self.slot_mapping.on_inner(),
            query_start: self.query_start.on_inner(),
            seq_lens: self.seq_lens.on_inner(),
            block_tables: self.block_tables.on_inner(),
            logits_idx: self.logits_idx.on_inner(),
        }
    }
}

impl OnInner for SamplingState {
    fn on_inner(&self) -> Self {
        Self {
            temperature: self.temperature.on_inner(),
            top_k: self.top_k.on_inner(),
            top_p: self.top_p.on_inner(),
            min_p: self.min_p.on_inner(),
            presence_penalty: self.presence_penalty.on_inner(),
            frequency_penalty: self.frequency_penalty.on_inner(),
            repetition_penalty: self.repetition_penalty.on_inner(),
            keys: self.keys.on_inner(),
            counts: self.counts.on_inner(),
            masks: self.masks.on_inner(),
        }
    }
}
