//! The device memory behind block ids.

use quire_kernels::{
    AttentionKernels, DType, Device, Kernels, KvGroupSpec, KvLayer, KvLayout, KvScales, StepCtx, Tensor,
};

use crate::ExecutorError;

/// The KV cache of all layers: block `b` of every layer belongs to whoever the engine gave block `b` to.
///
/// A sequence has one block table, whatever groups its layers form: a block holds its tokens in the layers of every
/// group, and a group with a window reads only the last of them. (Blocks that a window has passed could be given back
/// where a group had a table of its own.)
#[derive(Clone, Debug)]
pub struct KvPool {
    layers: Vec<KvLayer>,
    groups: Vec<KvLayout>,
    num_blocks: usize,
}

impl KvPool {
    /// Bytes that a block takes over all layers.
    ///
    /// # Errors
    ///
    /// As [`layouts`](Self::layouts).
    pub fn block_bytes(
        attention: &dyn AttentionKernels,
        groups: &[KvGroupSpec],
        block_size: usize,
    ) -> Result<usize, ExecutorError> {
        let layouts = Self::layouts(attention, groups, block_size)?;
        let of_group = |(group, layout): (&KvGroupSpec, KvLayout)| group.layers.len() * layout.block_bytes;
        Ok(groups.iter().zip(layouts).map(of_group).sum())
    }

    /// How a block of one layer is stored, for each group.
    ///
    /// # Errors
    ///
    /// What attention does not support.
    pub fn layouts(
        attention: &dyn AttentionKernels,
        groups: &[KvGroupSpec],
        block_size: usize,
    ) -> Result<Vec<KvLayout>, ExecutorError> {
        groups.iter().map(|group| Ok(attention.kv_layout(group, block_size)?)).collect()
    }

    /// Plans of attention that a step needs: groups of one layout share theirs.
    ///
    /// # Errors
    ///
    /// As [`layouts`](Self::layouts).
    pub fn num_plans(
        attention: &dyn AttentionKernels,
        groups: &[KvGroupSpec],
        block_size: usize,
    ) -> Result<usize, ExecutorError> {
        let layouts = Self::layouts(attention, groups, block_size)?;
        let is_first = |idx: &usize| !layouts[..*idx].contains(&layouts[*idx]);
        Ok((0..layouts.len()).filter(is_first).count())
    }

    /// Allocates the pool.
    ///
    /// # Errors
    ///
    /// As [`layouts`](Self::layouts), and [`OutOfMemory`](quire_kernels::Error::OutOfMemory).
    ///
    /// # Panics
    ///
    /// Where the groups do not hold every layer once.
    pub fn new(
        kernels: &Kernels,
        groups: &[KvGroupSpec],
        block_size: usize,
        num_blocks: usize,
    ) -> Result<Self, ExecutorError> {
        let layouts = Self::layouts(kernels.attention(), groups, block_size)?;
        let mut of_layers: Vec<(usize, &KvLayout)> = groups
            .iter()
            .zip(&layouts)
            .flat_map(|(group, layout)| group.layers.iter().map(move |&layer| (layer, layout)))
            .collect();
        of_layers.sort_by_key(|(layer, _)| *layer);
        let each_once = of_layers.iter().enumerate().all(|(at, (layer, _))| at == *layer);
        assert!(each_once, "the kv groups hold every layer once");
        let device = kernels.device().as_ref();
        let layers = of_layers.iter().map(|(_, layout)| Self::layer(device, layout, num_blocks));
        let layers = layers.collect::<quire_kernels::Result<_>>()?;
        Ok(Self { layers, groups: layouts, num_blocks })
    }

    /// The pool with what its elements are multiplied with, for each layer: where they have 8 bits. Others need no scales.
    ///
    /// # Panics
    ///
    /// Where there are scales for another number of layers.
    #[must_use]
    pub fn with_scales(mut self, scales: &[KvScales]) -> Self {
        assert!(scales.is_empty() || scales.len() == self.layers.len(), "scales are for every layer");
        for (layer, scales) in self.layers.iter_mut().zip(scales) {
            if layer.layout.dtype.block_bytes() == 1 {
                layer.scales = *scales;
            }
        }
        self
    }

    /// The caches, by layer.
    pub fn layers(&self) -> &[KvLayer] {
        &self.layers
    }

    /// What the bytes of a block are in a layer of each group.
    pub fn groups(&self) -> &[KvLayout] {
        &self.groups
    }

    /// Blocks in the pool.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Bytes of a block over all layers.
    pub fn bytes_per_block(&self) -> usize {
        self.layers.iter().map(|layer| layer.layout.block_bytes).sum()
    }

    /// Bytes of the whole pool.
    pub fn num_bytes(&self) -> usize {
        self.bytes_per_block() * self.num_blocks
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
        Ok(KvLayer { blocks, layout: layout.clone(), scales: KvScales::ONE })
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
    use quire_kernels::{KvKind, reference};

    use super::*;

    fn group(layers: &[usize], kind: KvKind, head_dim: usize) -> KvGroupSpec {
        KvGroupSpec { layers: layers.to_vec(), kind, num_kv_heads: 2, head_dim, dtype: DType::F32 }
    }

    #[test]
    fn groups_have_their_own_layouts_and_share_the_blocks() {
        let kernels = reference::kernels();
        let groups = [group(&[0, 2], KvKind::Full, 16), group(&[1], KvKind::Window(8), 32)];
        let pool = KvPool::new(&kernels, &groups, 4, 3).unwrap();
        let head_dims: Vec<usize> = pool.layers().iter().map(|layer| layer.layout.head_dim).collect();
        assert_eq!(head_dims, [16, 32, 16]);
        // Keys and values of two heads and four tokens, in float32.
        let expected = [16, 32, 16].map(|head_dim| 2 * 2 * 4 * head_dim * 4).iter().sum::<usize>();
        assert_eq!(pool.bytes_per_block(), expected);
        assert_eq!(KvPool::block_bytes(kernels.attention(), &groups, 4).unwrap(), expected);
        assert_eq!(pool.num_bytes(), 3 * expected);
    }

    #[test]
    fn scales_are_for_elements_of_8_bits() {
        let scales = [KvScales { k: 0.5, v: 2.0 }, KvScales { k: 0.25, v: 4.0 }];
        for (dtype, expected) in
            [(DType::F8E4M3, scales), (DType::F8E5M2, scales), (DType::F16, [KvScales::ONE; 2])]
        {
            let groups = [KvGroupSpec { dtype, ..group(&[0, 1], KvKind::Full, 16) }];
            let pool = KvPool::new(&reference::kernels(), &groups, 4, 3).unwrap().with_scales(&scales);
            assert_eq!([0, 1].map(|layer: usize| pool.layers()[layer].scales), expected, "{dtype}");
        }
    }

    #[test]
    fn groups_of_one_layout_share_a_plan() {
        let kernels = reference::kernels();
        let num_plans = |head_dim| {
            let groups = [group(&[0], KvKind::Full, 16), group(&[1], KvKind::Window(8), head_dim)];
            KvPool::num_plans(kernels.attention(), &groups, 4).unwrap()
        };
        assert_eq!((num_plans(16), num_plans(32)), (1, 2));
    }

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
