//! What every queue owes: order, whole copies, captured steps that read fresh values.

use super::bench::{Bench, Placement};
use super::report::At;
use crate::{DType, Result};

pub(super) fn check(bench: &mut Bench<'_>) -> Result<()> {
    memory_starts_as_zeros(bench)?;
    a_read_sees_what_was_written_before_it(bench)?;
    rows_are_copied(bench)?;
    a_captured_step_reads_fresh_values(bench)
}

fn memory_starts_as_zeros(bench: &mut Bench<'_>) -> Result<()> {
    let buffer = bench.kernels.device().allocate(1000)?;
    let tensor = crate::Tensor::new(buffer, 0, DType::U8, &[1000]);
    let bytes = bench.ctx.read(&tensor)?.wait()?;
    bench.report.equal(At { op: "queue.allocate", case: "1000 bytes" }, &bytes, &[0; 1000]);
    Ok(())
}

fn a_read_sees_what_was_written_before_it(bench: &mut Bench<'_>) -> Result<()> {
    let tensor = bench.i32s(&[3, 2], &[0; 6])?;
    bench.ctx.write(&tensor, &[1, 2, 3, 4, 5, 6])?;
    let first = bench.ctx.read(&tensor)?;
    bench.ctx.write(&tensor.rows(1, 2), &[7, 8])?;
    let second = bench.ctx.read(&tensor.rows(1, 3))?;
    bench.report.equal(
        At { op: "queue.read", case: "before a write" },
        &first.wait_as()?,
        &[1, 2, 3, 4, 5, 6],
    );
    bench.report.equal(At { op: "queue.read", case: "after a write" }, &second.wait_as()?, &[7, 8, 5, 6]);
    let nothing = tensor.rows(1, 1);
    bench.ctx.write::<i32>(&nothing, &[])?;
    let empty = bench.ctx.read(&nothing)?.wait()?;
    bench.report.equal(At { op: "queue.read", case: "of no rows" }, &empty, &[]);
    Ok(())
}

fn rows_are_copied(bench: &mut Bench<'_>) -> Result<()> {
    let (rows, width) = (9, 37);
    let mut bytes: Vec<u8> = (0..rows * width).map(|i| (i * 31 % 251) as u8).collect();
    let tensor = bench.tensor(DType::U8, &[rows, width], &bytes)?;
    bench.ctx.queue().copy_rows(&tensor, &[(0, 8), (3, 2), (0, 5)])?;
    bench.ctx.queue().copy_rows(&tensor, &[])?;
    for (from, to) in [(0, 8), (3, 2), (0, 5)] {
        bytes.copy_within(from * width..(from + 1) * width, to * width);
    }
    let actual = bench.ctx.read(&tensor)?.wait()?;
    bench.report.equal(At { op: "queue.copy_rows", case: "three rows" }, &actual, &bytes);
    Ok(())
}

/// A device without graphs runs the step when it is recorded; one with graphs only when it is launched.
fn a_captured_step_reads_fresh_values(bench: &mut Bench<'_>) -> Result<()> {
    let dims = [2, 8];
    let x = bench.matrix(dims, Placement::Whole, &[1.0; 16])?;
    let sum = bench.matrix_of(bench.residual(), dims, Placement::Whole, &[0.0; 16])?;
    let kernels = bench.kernels;
    let add = |ctx: &mut crate::StepCtx| kernels.norm().add(ctx, &x.view, &sum.view);
    let graph = bench.ctx.capture(add)?;
    let mut expected = if graph.is_none() { 1.0 } else { 0.0 };
    for value in [2.0f32, 16.0] {
        let bytes = crate::quant::encode(x.view.dtype(), &[value; 16]);
        bench.ctx.write(&x.view, &bytes)?;
        match &graph {
            Some(graph) => bench.ctx.launch(graph.as_ref())?,
            None => bench.ctx.step(add)?,
        }
        expected += f64::from(value);
    }
    let at = At { op: "queue.capture", case: "replayed twice" };
    bench.check(at, &sum, &[expected; 16], |_| 0.0)?;
    Ok(())
}
