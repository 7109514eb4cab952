//! What every backend owes that swaps blocks: whole copies, and no order but the one that fences give.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bench::Bench;
use super::report::At;
use crate::{DType, Error, Fence, Result, SwapLayer, SwapRows, Tensor, TransferQueue};

/// Rows on the device and on the host.
const NUM_ROWS: usize = 24;
const NUM_HOST_ROWS: usize = 17;

/// The row that a long run of copies ends at, and the one behind it, which none of them touches.
const PASSED_TO: u32 = NUM_ROWS as u32 - 2;
const UNTOUCHED: u32 = NUM_ROWS as u32 - 1;

pub(super) fn check(bench: &mut Bench<'_>) -> Result<()> {
    let mut transfers = bench.kernels.device().transfers()?;
    let transfers = transfers.as_mut();
    // Rows of odd bytes, of a block of a small model, and longer ones than a kernel's block moves.
    for (case, widths) in [("odd rows", &[37, 1][..]), ("blocks", &[4096; 3]), ("long rows", &[100_016])] {
        swapped_rows_come_back_elsewhere(bench, transfers, case, widths)?;
    }
    a_swap_out_waits_for_the_step_in_front(bench, transfers)?;
    a_swap_in_waits_for_the_step_in_front(bench, transfers)?;
    a_step_waits_for_a_swap_in(bench, transfers)?;
    many_swaps_are_open_at_once(bench, transfers)?;
    nothing_is_swapped_too(bench, transfers)?;
    an_absurd_space_is_refused(bench);
    Ok(())
}

/// Random rows go out, are overwritten and come back to other places; the rest stays as it is.
fn swapped_rows_come_back_elsewhere(
    bench: &mut Bench<'_>,
    transfers: &mut dyn TransferQueue,
    case: &str,
    widths: &[usize],
) -> Result<()> {
    let layers = layers(bench, widths)?;
    let out = zip(&bench.rng.permutation(NUM_ROWS)[..9], &bench.rng.permutation(NUM_HOST_ROWS)[..9]);
    let contiguous = zip(&[3, 4, 5, 6, 12], &[8, 9, 10, 11, 2]);
    for out in [out, contiguous] {
        let held: Vec<Vec<u8>> = widths.iter().enumerate().map(|(i, &w)| pattern(i, NUM_ROWS * w)).collect();
        fill(bench, &layers, &held)?;
        let back = zip(&bench.rng.permutation(NUM_ROWS)[..out.len()], &hosts(&out));
        let written = bench.ctx.queue().fence()?;
        let is_out = transfers.swap_out(SwapRows { layers: &layers, pairs: &out }, written.as_ref())?;
        bench.ctx.queue().wait_for(is_out.as_ref())?;
        let blank: Vec<Vec<u8>> = held.iter().map(|bytes| vec![0xee; bytes.len()]).collect();
        fill(bench, &layers, &blank)?;
        let blanked = bench.ctx.queue().fence()?;
        let is_back = transfers.swap_in(SwapRows { layers: &layers, pairs: &back }, blanked.as_ref())?;
        bench.ctx.queue().wait_for(is_back.as_ref())?;
        for ((layer, held), &width) in layers.iter().zip(&held).zip(widths) {
            let mut expected = vec![0xee; held.len()];
            for (&(from, _), &(to, _)) in out.iter().zip(&back) {
                let (from, to) = (from as usize * width, to as usize * width);
                expected[to..to + width].copy_from_slice(&held[from..from + width]);
            }
            let actual = bench.ctx.read(&layer.device)?.wait()?;
            bench.report.equal(At { op: "swap.round_trip", case }, &actual, &expected);
        }
    }
    Ok(())
}

/// A long run of copies writes the row last; the swap is asked for at once.
fn a_swap_out_waits_for_the_step_in_front(
    bench: &mut Bench<'_>,
    transfers: &mut dyn TransferQueue,
) -> Result<()> {
    let (layers, expected) = busy_layer(bench)?;
    pass_on(bench, &layers[0].device)?;
    let after = bench.ctx.queue().fence()?;
    let is_out =
        transfers.swap_out(SwapRows { layers: &layers, pairs: &[(PASSED_TO, 0)] }, after.as_ref())?;
    is_out.wait()?;
    let after = bench.ctx.queue().fence()?;
    let is_back =
        transfers.swap_in(SwapRows { layers: &layers, pairs: &[(UNTOUCHED, 0)] }, after.as_ref())?;
    is_back.wait()?;
    let actual = read_row(bench, &layers[0], UNTOUCHED)?;
    bench.report.equal(At { op: "swap.out", case: "behind a step" }, &actual, &expected);
    Ok(())
}

/// The row that the copies read first is overwritten by a swap that is asked for while they run.
fn a_swap_in_waits_for_the_step_in_front(
    bench: &mut Bench<'_>,
    transfers: &mut dyn TransferQueue,
) -> Result<()> {
    let (layers, expected) = busy_layer(bench)?;
    let after = bench.ctx.queue().fence()?;
    let other = SwapRows { layers: &layers, pairs: &[(2, 5)] };
    transfers.swap_out(other, after.as_ref())?.wait()?;
    pass_on(bench, &layers[0].device)?;
    let after = bench.ctx.queue().fence()?;
    let is_in = transfers.swap_in(SwapRows { layers: &layers, pairs: &[(0, 5)] }, after.as_ref())?;
    is_in.wait()?;
    let last = read_row(bench, &layers[0], PASSED_TO)?;
    bench.report.equal(At { op: "swap.in", case: "behind a step" }, &last, &expected);
    Ok(())
}

/// The host waits for nothing before it asks for the result.
fn a_step_waits_for_a_swap_in(bench: &mut Bench<'_>, transfers: &mut dyn TransferQueue) -> Result<()> {
    let (layers, expected) = busy_layer(bench)?;
    let after = bench.ctx.queue().fence()?;
    let is_out = transfers.swap_out(SwapRows { layers: &layers, pairs: &[(0, 3)] }, after.as_ref())?;
    bench.ctx.queue().wait_for(is_out.as_ref())?;
    let width = layers[0].device.num_columns();
    bench.ctx.write(&layers[0].device.rows(0, 1), &vec![0xee_u8; width])?;
    let after = bench.ctx.queue().fence()?;
    let is_in = transfers.swap_in(SwapRows { layers: &layers, pairs: &[(4, 3)] }, after.as_ref())?;
    bench.ctx.queue().wait_for(is_in.as_ref())?;
    bench.ctx.queue().copy_rows(&layers[0].device, &[(4, 9)])?;
    let actual = read_row(bench, &layers[0], 9)?;
    bench.report.equal(At { op: "swap.in", case: "before a step" }, &actual, &expected);
    let reached = polled(is_in.as_ref())?;
    bench.report.equal(At { op: "swap.in", case: "asked for" }, &[reached], &[true]);
    Ok(())
}

fn many_swaps_are_open_at_once(bench: &mut Bench<'_>, transfers: &mut dyn TransferQueue) -> Result<()> {
    let layers = layers(bench, &[512, 512])?;
    let held = [pattern(3, NUM_ROWS * 512), pattern(4, NUM_ROWS * 512)];
    fill(bench, &layers, &held)?;
    let after = bench.ctx.queue().fence()?;
    let swap = |i: u32| ([(i % 8, i % 16)], [(8 + i % 16, i % 16)]);
    let mut fences = Vec::new();
    for (out, back) in (0..200).map(swap) {
        fences.push(transfers.swap_out(SwapRows { layers: &layers, pairs: &out }, after.as_ref())?);
        fences.push(transfers.swap_in(SwapRows { layers: &layers, pairs: &back }, after.as_ref())?);
    }
    fences.iter().try_for_each(|fence| fence.wait())?;
    for (layer, held) in layers.iter().zip(&held) {
        let actual = bench.ctx.read(&layer.device)?.wait()?;
        let expected: Vec<u8> =
            (0..NUM_ROWS).flat_map(|row| &held[row % 8 * 512..][..512]).copied().collect();
        bench.report.equal(At { op: "swap.round_trip", case: "400 at once" }, &actual, &expected);
    }
    Ok(())
}

fn nothing_is_swapped_too(bench: &mut Bench<'_>, transfers: &mut dyn TransferQueue) -> Result<()> {
    let layers = layers(bench, &[64])?;
    let after = bench.ctx.queue().fence()?;
    for rows in [SwapRows { layers: &layers, pairs: &[] }, SwapRows { layers: &[], pairs: &[(0, 0)] }] {
        let fences = [transfers.swap_out(rows, after.as_ref())?, transfers.swap_in(rows, after.as_ref())?];
        let reached = fences.iter().map(|fence| polled(fence.as_ref())).collect::<Result<Vec<_>>>()?;
        bench.report.equal(At { op: "swap.in", case: "of nothing" }, &reached, &[true, true]);
    }
    Ok(())
}

fn an_absurd_space_is_refused(bench: &mut Bench<'_>) {
    let at = At { op: "swap.host_memory", case: "half of all addresses" };
    let refused =
        matches!(bench.kernels.device().host_memory(usize::MAX / 2), Err(Error::OutOfMemory { .. }));
    bench.report.equal(at, &[refused], &[true]);
}

/// Whether a fence is reached without being waited for.
fn polled(fence: &dyn Fence) -> Result<bool> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if fence.is_reached()? {
            return Ok(true);
        }
        std::thread::yield_now();
    }
    Ok(false)
}

/// One layer of long rows, and what the first of them holds.
fn busy_layer(bench: &mut Bench<'_>) -> Result<(Vec<SwapLayer>, Vec<u8>)> {
    let width = 64 << 10;
    let layers = layers(bench, &[width])?;
    let held = pattern(7, NUM_ROWS * width);
    fill(bench, &layers, std::slice::from_ref(&held))?;
    bench.ctx.synchronize()?;
    Ok((layers, held[..width].to_vec()))
}

/// Copies row 0 to [`PASSED_TO`] over all rows between.
fn pass_on(bench: &mut Bench<'_>, rows: &Tensor) -> Result<()> {
    (1..=PASSED_TO).try_for_each(|row| bench.ctx.queue().copy_rows(rows, &[(row - 1, row)]))
}

fn layers(bench: &Bench<'_>, widths: &[usize]) -> Result<Vec<SwapLayer>> {
    let device = bench.kernels.device();
    let host_bytes: usize = widths.iter().map(|width| NUM_HOST_ROWS * width).sum();
    let space = device.host_memory(host_bytes)?;
    let mut offset_bytes = 0;
    let mut layer = |&width: &usize| {
        let memory = device.allocate(NUM_ROWS * width)?;
        let host = Tensor::new(Arc::clone(&space), offset_bytes, DType::U8, &[NUM_HOST_ROWS, width]);
        offset_bytes += host.span_bytes();
        Ok(SwapLayer { device: Tensor::new(memory, 0, DType::U8, &[NUM_ROWS, width]), host })
    };
    widths.iter().map(&mut layer).collect()
}

fn read_row(bench: &mut Bench<'_>, layer: &SwapLayer, row: u32) -> Result<Vec<u8>> {
    bench.ctx.read(&layer.device.rows(row as usize, row as usize + 1))?.wait()
}

fn fill(bench: &mut Bench<'_>, layers: &[SwapLayer], bytes: &[Vec<u8>]) -> Result<()> {
    layers.iter().zip(bytes).try_for_each(|(layer, bytes)| bench.ctx.write(&layer.device, bytes))
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + 1) * (2 * seed + 31) % 251) as u8).collect()
}

fn zip(device_rows: &[usize], host_rows: &[usize]) -> Vec<(u32, u32)> {
    device_rows.iter().zip(host_rows).map(|(&device, &host)| (device as u32, host as u32)).collect()
}

fn hosts(pairs: &[(u32, u32)]) -> Vec<usize> {
    pairs.iter().map(|&(_, host)| host as usize).collect()
}
