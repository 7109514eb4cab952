//! The device memory behind block ids.

use quire_kernels::{
    AttentionKernels, DType, Device, Kernels, KvGroupSpec, KvLayer, KvLayout, StepCtx, Tensor,
};

use crate::ExecutorError;

/// The KV cache of all layers: block `b` of every layer belongs to whoever the engine gave block `b` to.
#[derive(Clone, Debug)]
pub struct KvPool {
    layers: Vec<KvLayer>,
    layout: KvLayout,
    num_blocks: usize,
}

impl KvPool {
    /// Bytes that a block takes over all layers.
    ///
    /// # Errors
    ///
    /// As [`layout`](Self::layout).
    pub fn block_bytes(
        attention: &dyn AttentionKernels,
        groups: &[KvGroupSpec],
        block_size: usize,
    ) -> Result<usize, ExecutorError> {
        let layout = Self::layout(attention, groups, block_size)?;
        Ok(layout.block_bytes * groups[0].layers.len())
    }

    /// How a block of one layer is stored.
    ///
    /// # Errors
    ///
    /// What attention does not support; more than one group of layers.
    pub fn layout(
        attention: &dyn AttentionKernels,
        groups: &[KvGroupSpec],
        block_size: usize,
    ) -> Result<KvLayout, ExecutorError> {
        let [group] = groups else {
            return Err(ExecutorError::NotBuilt { what: "models of several kv groups" });
        };
        Ok(attention.kv_layout(group, block_size)?)
    }

    /// Allocates the pool.
    ///
    /// # Errors
    ///
    /// As [`layout`](Self::layout), and [`OutOfMemory`](quire_kernels::Error::OutOfMemory).
    pub fn new(
        kernels: &Kernels,
        groups: &[KvGroupSpec],
        block_size: usize,
        num_blocks: usize,
    ) -> Result<Self, ExecutorError> {
        let layout = Self::layout(kernels.attention(), groups, block_size)?;
        let layers = (0..groups[0].layers.len())
            .map(|_| Self::layer(kernels.device().as_ref(), &layout, num_blocks))
            .collect::<Result<_, _>>()?;
        Ok(Self { layers, layout, num_blocks })
    }

    /// The caches, by layer.
    pub fn layers(&self) -> &[KvLayer] {
        &self.layers
    }

    /// What the bytes of a block are.
    pub fn block_layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Blocks in the pool.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Bytes of the whole pool.
    pub fn num_bytes(&self) -> usize {
        self.layers.len() * self.layout.block_bytes * self.num_blocks
    }

    /// Enqueues copies (from, to) of blocks in every layer, as if done one after the other.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn copy_blocks(&self, ctx: &mut StepCtx, pairs: &[(u32, u32)]) -> quire_kernels::Result<()> {
        for run in independent_runs(pairs) {
            for layer in &self.layers {
                ctx.queue().copy_rows(&layer.blocks, run)?;
            }
        }
        Ok(())
    }

    fn layer(device: &dyn Device, layout: &KvLayout, num_blocks: usize) -> quire_kernels::Result<KvLayer> {
        let buffer = device.allocate(num_blocks * layout.block_bytes)?;
        let blocks = Tensor::new(buffer, 0, DType::U8, &[num_blocks, layout.block_bytes]);
        Ok(KvLayer { blocks, layout: layout.clone() })
    }
}

/// Cuts `pairs` where a pair touches what an earlier one of its run wrote, or writes what one read.
fn independent_runs(pairs: &[(u32, u32)]) -> Vec<&[(u32, u32)]> {
    let mut runs = Vec::new();
    let mut start = 0;
    for (i, &(from, to)) in pairs.iter().enumerate() {
        let run = &pairs[start..i];
        if run.iter().any(|&(f, t)| t == from || t == to || f == to) {
            runs.push(run);
            start = i;
        }
    }
    if start < pairs.len() {
        runs.push(&pairs[start..]);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_depend_on_each_other_stay_in_order() {
        assert_eq!(independent_runs(&[]), Vec::<&[(u32, u32)]>::new());
        assert_eq!(independent_runs(&[(1, 2), (1, 3)]), [&[(1, 2), (1, 3)][..]]);
        assert_eq!(
            independent_runs(&[(1, 2), (2, 3), (4, 5), (6, 4)]),
            [&[(1, 2)][..], &[(2, 3), (4, 5)], &[(6, 4)]]
        );
    }
}
