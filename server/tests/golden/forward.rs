//! One forward pass over a whole text, without engine or sampling: the logits at every position.

use std::path::Path;

use quire_kernels::{
    DType, Kernels, KvLayer, KvScales, Limits, ShapeKey, StepBuffers, StepCtx, StepRows, Tensor, write_head,
};
use quire_models::{
    Checkpoint, GroupStep, LoadOptions, Loader, Model, ModelInput, ModelRegistry, WeightDType,
};

const BLOCK_SIZE: usize = 16;

/// A loaded model with room for one text.
pub(crate) struct Forward {
    kernels: Kernels,
    model: Box<dyn Model>,
    ctx: StepCtx,
    buffers: StepBuffers,
    layers: Vec<KvLayer>,
    limits: Limits,
    vocab_size: usize,
}

impl Forward {
    pub(crate) fn load(
        kernels: Kernels,
        path: &Path,
        dtype: Option<WeightDType>,
        kv_dtype: DType,
        max_model_len: usize,
    ) -> Self {
        let checkpoint =
            Checkpoint::open(path, &LoadOptions { dtype, ..LoadOptions::default() }).expect("it opens");
        let registry = ModelRegistry::default();
        let architecture = registry.find(&checkpoint.config().architecture).expect("it is known");
        let limits = Limits {
            max_num_batched_tokens: max_model_len,
            max_num_seqs: 1,
            max_model_len,
            block_size: BLOCK_SIZE,
        };
        let config = checkpoint.config();
        let scratch = architecture.scratch_bytes(config, &kernels, &limits) + kernels.scratch_bytes(&limits);
        let model = architecture.build(&Loader::new(&checkpoint, &kernels, max_model_len)).expect("it loads");
        let groups = architecture.kv_groups(config, kv_dtype);
        let [group] = groups.as_slice() else { panic!("one KV group, not {}", groups.len()) };
        let layout = kernels.attention().kv_layout(group, BLOCK_SIZE).expect("the dtype is there");
        let num_blocks = limits.max_blocks_per_row();
        let layers = group.layers.iter().map(|_| {
            let bytes = kernels.device().allocate(num_blocks * layout.block_bytes).expect("there is memory");
            let blocks = Tensor::new(bytes, 0, DType::U8, &[num_blocks, layout.block_bytes]);
            KvLayer { blocks, layout: layout.clone(), scales: KvScales::ONE }
        });
        Self {
            layers: layers.collect(),
            ctx: kernels.step_ctx(scratch).expect("there is memory"),
            buffers: StepBuffers::new(kernels.device().as_ref(), &limits).expect("there is memory"),
            vocab_size: config.vocab_size,
            limits,
            kernels,
            model,
        }
    }

    /// `[token_ids.len()][vocab_size]`: logits after each token.
    pub(crate) fn logits(&mut self, token_ids: &[u32]) -> Vec<Vec<f32>> {
        let n = token_ids.len();
        assert!(n <= self.limits.max_model_len, "room for {} tokens, not {n}", self.limits.max_model_len);
        let key = ShapeKey { num_tokens: n, num_rows: 1, max_query_len: n, num_logits: n };
        let rows = StepRows { query_start: vec![0, n as i32], seq_lens: vec![n as i32] };
        self.write_step(token_ids, &rows);
        let bytes = self.kernels.device().allocate(4 * n * self.vocab_size).expect("there is memory");
        let logits = Tensor::new(bytes, 0, DType::F32, &[n, self.vocab_size]);
        let view = self.buffers.view(key);
        let layers = &self.layers;
        let (kernels, model) = (&self.kernels, &self.model);
        self.ctx
            .step(|ctx| {
                let plan = kernels.attention().plan(ctx, key, &rows, &layers[0].layout)?;
                let groups = [GroupStep { view, plan }];
                model.forward(ctx, &ModelInput { groups: &groups, layers }, &logits)
            })
            .expect("the step runs");
        let values: Vec<f32> =
            self.ctx.read(&logits).and_then(|read| read.wait_as()).expect("it can be read");
        values.chunks(self.vocab_size).map(<[f32]>::to_vec).collect()
    }

    fn write_step(&mut self, token_ids: &[u32], rows: &StepRows) {
        let n = token_ids.len() as i32;
        let counting: Vec<i32> = (0..n).collect();
        let token_ids: Vec<i32> = token_ids.iter().map(|&id| id as i32).collect();
        let blocks: Vec<i32> = (0..self.limits.max_blocks_per_row() as i32).collect();
        let buffers = &self.buffers;
        for (buffer, values) in [
            (&buffers.token_ids, &token_ids),
            (&buffers.positions, &counting),
            // Logical and physical blocks are the same here, so a token's slot is its position.
            (&buffers.slot_mapping, &counting),
            (&buffers.logits_idx, &counting),
            (&buffers.query_start, &rows.query_start),
            (&buffers.seq_lens, &rows.seq_lens),
        ] {
            write_head(&mut self.ctx, buffer, values).expect("metadata can be written");
        }
        self.ctx.write(&buffers.block_tables, &blocks).expect("metadata can be written");
    }
}
