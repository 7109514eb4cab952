//! Tables of embeddings, left where they lie: a row is read when it is looked up.

use quire_kernels::{EmbeddingTable, HostWeight, Result, SharedBytes, StepCtx, Tensor, quant};

use crate::device::CpuDevice;

/// Rows that are worth a claim of the pool.
const GRAIN_ROWS: usize = 8;

/// The rows of a matrix in the bytes of its file.
pub(super) struct KeptTable {
    device: CpuDevice,
    dtype: quire_kernels::DType,
    rows: usize,
    columns: usize,
    bytes: SharedBytes,
}

impl KeptTable {
    /// The table of a weight that has been checked, has no scales, and whose elements are `bytes`.
    pub(super) fn new(device: &CpuDevice, weight: &HostWeight<'_>, bytes: SharedBytes) -> Self {
        assert_eq!(bytes.as_ref().as_ref().len(), weight.data.len(), "bytes of the weight");
        let HostWeight { dtype, rows, columns, .. } = *weight;
        Self { device: device.clone(), dtype, rows, columns, bytes }
    }

    fn all(&self) -> &[u8] {
        self.bytes.as_ref().as_ref()
    }
}

impl EmbeddingTable for KeptTable {
    fn num_bytes(&self) -> usize {
        self.all().len()
    }

    fn kernel(&self) -> String {
        format!("{} as it lies", self.dtype)
    }

    fn embed(&self, _: &mut StepCtx, ids: &Tensor, out: &Tensor) -> Result<()> {
        assert_eq!(out.dims(), [ids.num_elements(), self.columns], "shape of the output");
        let row_bytes = self.all().len() / self.rows;
        let mut session = self.device.session();
        let (pool, [ids], [out]) = session.open([ids], [out]);
        let ids = ids.slice::<i32>();
        out.rows::<f32>().for_each(pool, GRAIN_ROWS, |token, out| {
            let row = usize::try_from(ids[token]).expect("ids lie within the rows");
            quant::dequantize(self.dtype, &self.all()[row * row_bytes..][..row_bytes], out);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quire_kernels::DType;

    use super::*;
    use crate::{CpuConfig, kernels};

    #[test]
    fn a_table_is_no_copy_and_has_the_bytes_for_as_long_as_it_lives() {
        let kernels = kernels(CpuConfig { threads: Some(1), ..CpuConfig::default() }).unwrap();
        let bytes = Arc::new([1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat());
        let data = bytes.as_slice();
        let (name, dtype) = ("table", DType::F32);
        let weight = HostWeight { name, dtype, rows: 2, columns: 2, data, scales: None, bias: None };
        let table = kernels.linear().pack_table(&weight, bytes.clone()).unwrap();
        assert_eq!((table.num_bytes(), Arc::strong_count(&bytes)), (16, 2));
        let ids = kernels.upload(DType::I32, &[3], &[1i32, 0, 1]).unwrap();
        let out = kernels.upload(DType::F32, &[3, 2], &[0.0f32; 6]).unwrap();
        let mut ctx = kernels.step_ctx(0).unwrap();
        ctx.step(|ctx| table.embed(ctx, &ids, &out)).unwrap();
        let rows = ctx.read(&out).unwrap().wait().unwrap();
        let expected = [3.0f32, 4.0, 1.0, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
        assert_eq!(rows, expected);
        drop(table);
        assert_eq!(Arc::strong_count(&bytes), 1);
    }
}
