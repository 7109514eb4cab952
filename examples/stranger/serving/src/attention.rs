use quire::kernels::{
    AttentionArgs, AttentionKernels, DType, DeviceId, Dispatch, Error, KvGroupSpec, KvKind, KvLayer,
    KvLayout, Part, StepCtx, Tensor,
};
use quire::kernels_cpu::host;

/// Paged attention from scratch, on tensors of the CPU backend: one pass over the cache a query, with the running
/// softmax of Milakov and Gimelshein (2018). A slot of the cache holds the keys of all heads, then the values.
pub struct MyAttention {
    /// The CPU whose tensors it takes.
    pub device: DeviceId,
}

impl Part for MyAttention {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn dispatch(&self) -> Vec<Dispatch> {
        vec![Dispatch::new("attention", "mine", "--device mine asked for it")]
    }
}

impl AttentionKernels for MyAttention {
    fn kv_layout(&self, spec: &KvGroupSpec, block_size: usize) -> Result<KvLayout, Error> {
        let is_known = matches!(spec.kind, KvKind::Full | KvKind::Window(_));
        if !is_known || spec.dtype != DType::F32 {
            let what = format!("a {:?} cache of {} (--kv-cache-dtype float32 works)", spec.kind, spec.dtype);
            return Err(Error::Unsupported { backend: "mine".to_owned(), part: "attention", what });
        }
        KvLayout::keys_then_values(spec, block_size, "mine")
    }

    fn write_kv(
        &self,
        ctx: &mut StepCtx,
        k: &Tensor,
        v: &Tensor,
        kv: &KvLayer,
        slot_mapping: &Tensor,
    ) -> Result<(), Error> {
        host::run(ctx, [k, v, slot_mapping], [&slots(kv)], |_, [k, v, mapping], [slots]| {
            let (k, v, mut slots) = (k.rows::<f32>(), v.rows::<f32>(), slots.rows::<f32>());
            for (token, slot) in mapping.slice::<i32>().iter().enumerate() {
                let Ok(slot) = usize::try_from(*slot) else { continue };
                let (keys, values) = slots.row_mut(slot).split_at_mut(k.columns());
                keys.copy_from_slice(k.row(token));
                values.copy_from_slice(v.row(token));
            }
        })
    }

    fn forward(&self, ctx: &mut StepCtx, args: &AttentionArgs<'_>) -> Result<(), Error> {
        let KvLayout { block_size, head_dim, num_kv_heads, .. } = args.kv.layout;
        let group = args.q.num_columns() / head_dim / num_kv_heads;
        let (step, slots) = (args.step, slots(args.kv));
        let inputs = [args.q, &slots, &step.query_start, &step.seq_lens, &step.block_tables];
        host::run(ctx, inputs, [args.out], |threads, [q, slots, starts, lens, tables], [out]| {
            let (q, slots, tables) = (q.rows::<f32>(), slots.rows::<f32>(), tables.rows::<i32>());
            let (starts, lens) = (starts.slice::<i32>(), lens.slice::<i32>());
            threads.for_each_row(&mut out.rows::<f32>(), 1, |token, out| {
                out.fill(0.0);
                let row = starts.partition_point(|&start| start as usize <= token) - 1;
                if lens[row] == 0 {
                    return; // padding
                }
                let position = lens[row] as usize - (starts[row + 1] as usize - token);
                let first = args.window.map_or(0, |window| (position + 1).saturating_sub(window));
                let cached = |position: usize| {
                    let block = tables.row(row)[position / block_size] as usize;
                    slots.row(block * block_size + position % block_size)
                };
                let heads = q.row(token).chunks(head_dim).zip(out.chunks_mut(head_dim)).enumerate();
                for (head, (query, out)) in heads {
                    let key = head / group * head_dim;
                    let value = num_kv_heads * head_dim + key;
                    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
                    for slot in (first..=position).map(cached) {
                        let products = query.iter().zip(&slot[key..]).map(|(q, k)| q * k);
                        let score = args.scale * products.sum::<f32>();
                        let new_max = max.max(score);
                        let (decay, weight) = ((max - new_max).exp(), (score - new_max).exp());
                        sum = sum * decay + weight;
                        let values = out.iter_mut().zip(&slot[value..]);
                        values.for_each(|(out, value)| *out = *out * decay + weight * value);
                        max = new_max;
                    }
                    out.iter_mut().for_each(|out| *out /= sum);
                }
            });
        })
    }
}

/// `[num_slots, 2 * num_kv_heads * head_dim]`: the cache of a layer, a row a token.
fn slots(kv: &KvLayer) -> Tensor {
    let KvLayout { block_size, num_kv_heads, head_dim, .. } = kv.layout;
    let dims = [kv.blocks.num_rows() * block_size, 2 * num_kv_heads * head_dim];
    Tensor::new(kv.blocks.buffer().clone(), kv.blocks.offset_bytes(), DType::F32, &dims)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quire::BackendOptions;
    use quire::kernels::{conformance, testing};

    use super::*;

    /// The suite that every backend runs; what this part does not support is listed, not counted.
    #[test]
    fn it_conforms_on_the_cpu_and_on_a_device_that_records_and_runs_later() {
        let cpu = quire::cpu_kernels(&BackendOptions::default()).unwrap();
        let device = cpu.device().id();
        let mine = cpu.with_attention(Arc::new(MyAttention { device })).unwrap();
        for kernels in [testing::deferred(&mine), mine] {
            let mut report = conformance::Report::new(conformance::RowIndependence::Bitwise);
            conformance::attention(&kernels, &mut report);
            println!("{report}");
            report.assert_ok();
        }
    }
}
