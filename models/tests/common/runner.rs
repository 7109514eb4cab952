//! What an executor does around a model, for a few sequences and without hurry.

use quire_kernels::{
    DType, Kernels, KvLayer, KvScales, Limits, ShapeKey, StepBuffers, StepCtx, StepRows, Tensor, write_head,
};
use quire_models::{Architecture, Checkpoint, GroupStep, Loader, Model, ModelInput, ModelRegistry};

pub(crate) const LIMITS: Limits =
    Limits { max_num_batched_tokens: 64, max_num_seqs: 4, max_model_len: 128, block_size: 8 };

pub(crate) struct Runner {
    kernels: Kernels,
    model: Box<dyn Model>,
    layers: Vec<KvLayer>,
    /// For each KV group, a layer whose layout is the group's.
    groups: Vec<usize>,
    buffers: StepBuffers,
    ctx: StepCtx,
    logits: Tensor,
    /// Tokens in the cache of each sequence.
    lens: Vec<usize>,
    limits: Limits,
}

impl Runner {
    pub(crate) fn new(checkpoint: &Checkpoint, kernels: Kernels) -> Self {
        Self::with_limits(checkpoint, kernels, LIMITS)
    }

    pub(crate) fn with_limits(checkpoint: &Checkpoint, kernels: Kernels, limits: Limits) -> Self {
        Self::with_cache(checkpoint, kernels, limits, (DType::F32, &[]))
    }

    /// With a cache of this dtype, and scales for each layer or none.
    pub(crate) fn with_cache(
        checkpoint: &Checkpoint,
        kernels: Kernels,
        limits: Limits,
        (kv_dtype, scales): (DType, &[KvScales]),
    ) -> Self {
        let config = checkpoint.config();
        let registry = ModelRegistry::default();
        let architecture: &dyn Architecture = registry.find(&config.architecture).unwrap();
        let model = architecture.build(&Loader::new(checkpoint, &kernels, limits.max_model_len)).unwrap();

        let num_blocks = limits.max_num_seqs * limits.max_blocks_per_row();
        let mut layers: Vec<Option<KvLayer>> = vec![None; config.num_layers];
        let specs = architecture.kv_groups(config, kv_dtype);
        for spec in &specs {
            let layout = kernels.attention().kv_layout(spec, limits.block_size).unwrap();
            for &layer in &spec.layers {
                let memory = kernels.device().allocate(num_blocks * layout.block_bytes).unwrap();
                let blocks = Tensor::new(memory, 0, DType::U8, &[num_blocks, layout.block_bytes]);
                let scales = scales.get(layer).copied().unwrap_or_default();
                layers[layer] = Some(KvLayer { blocks, layout: layout.clone(), scales });
            }
        }
        let planned = architecture.scratch_bytes(config, &kernels, &limits) + kernels.scratch_bytes(&limits);
        let num_logits = limits.max_num_batched_tokens;
        let memory = kernels.device().allocate(4 * num_logits * config.vocab_size).unwrap();
        Self {
            model,
            layers: layers.into_iter().map(|layer| layer.expect("every layer is in a group")).collect(),
            groups: specs.iter().map(|spec| spec.layers[0]).collect(),
            buffers: StepBuffers::new(kernels.device().as_ref(), &limits).unwrap(),
            ctx: kernels.step_ctx(planned).unwrap(),
            logits: Tensor::new(memory, 0, DType::F32, &[num_logits, config.vocab_size]),
            lens: vec![0; limits.max_num_seqs],
            kernels,
            limits,
        }
    }

    pub(crate) fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }

    pub(crate) fn peak_scratch_bytes(&self) -> usize {
        self.ctx.peak_scratch_bytes()
    }

    /// Computes the next tokens of some sequences, `(sequence, tokens)` each; gives the logits after every
    /// token, in order.
    pub(crate) fn step(&mut self, rows: &[(usize, &[u32])]) -> Vec<Vec<f32>> {
        let (mut meta, mut ids, mut positions, mut slots, mut tables) =
            (StepRows { query_start: vec![0], seq_lens: vec![] }, vec![], vec![], vec![], vec![]);
        for &(seq, tokens) in rows {
            for &token in tokens {
                let position = self.lens[seq];
                ids.push(token as i32);
                positions.push(position as i32);
                let block = self.block_of(seq, position / self.limits.block_size);
                slots
                    .push(block * self.limits.block_size as i32 + (position % self.limits.block_size) as i32);
                self.lens[seq] += 1;
            }
            meta.query_start.push(ids.len() as i32);
            meta.seq_lens.push(self.lens[seq] as i32);
            tables.extend((0..self.limits.max_blocks_per_row()).map(|at| self.block_of(seq, at)));
        }
        let key = ShapeKey {
            num_tokens: ids.len(),
            num_rows: rows.len(),
            max_query_len: meta.max_query_len(),
            num_logits: ids.len(),
        };
        let every: Vec<i32> = (0..ids.len() as i32).collect();
        let view = self.buffers.view(key);
        let ctx = &mut self.ctx;
        for (buffer, values) in [
            (&self.buffers.token_ids, &ids),
            (&self.buffers.positions, &positions),
            (&self.buffers.slot_mapping, &slots),
            (&self.buffers.query_start, &meta.query_start),
            (&self.buffers.seq_lens, &meta.seq_lens),
            (&self.buffers.logits_idx, &every),
        ] {
            write_head(ctx, buffer, values).unwrap();
        }
        ctx.write(&view.block_tables, &tables).unwrap();

        let logits = self.logits.rows(0, key.num_logits);
        let (kernels, model, layers, groups) = (&self.kernels, &self.model, &self.layers, &self.groups);
        ctx.step(|ctx| {
            let groups = groups.iter().map(|&layer| {
                let plan = kernels.attention().plan(ctx, key, &meta, &layers[layer].layout)?;
                Ok(GroupStep { view: view.clone(), plan })
            });
            let groups = groups.collect::<quire_kernels::Result<Vec<_>>>()?;
            model.forward(ctx, &ModelInput { groups: &groups, layers }, &logits)
        })
        .unwrap();
        let flat: Vec<f32> = ctx.read(&logits).unwrap().wait_as().unwrap();
        flat.chunks(logits.num_columns()).map(<[f32]>::to_vec).collect()
    }

    /// Blocks of all sequences lie mixed up, as after some time of use.
    fn block_of(&self, seq: usize, at: usize) -> i32 {
        let num_seqs = self.limits.max_num_seqs;
        (at * num_seqs + (seq + at) % num_seqs) as i32
    }
}
