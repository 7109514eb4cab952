//! What is done to logits besides drawing from them: bias, masks, penalties, log-probabilities; and the bookkeeping of
//! tokens.

use super::bench::{Bench, Placement, widen};
use super::report::At;
use super::sampling::{PLAIN, Row, write_state};
use crate::math::sampling::{self as oracle, Penalties};
use crate::{
    DType, IN_PROMPT, LogprobsOut, NO_TOKEN, Result, SamplingRows, SamplingState, Tensor, TokenValues,
    mask_words,
};

pub(super) fn check(bench: &mut Bench<'_>) -> Result<()> {
    check_penalties(bench)?;
    check_bias(bench)?;
    check_masks(bench)?;
    check_count(bench)?;
    check_logprobs(bench)?;
    check_scatter(bench)
}

fn check_penalties(bench: &mut Bench<'_>) -> Result<()> {
    for vocab in [1, 7, 1000] {
        let penalties =
            [(0.0, 0.0, 1.0), (0.5, 0.0, 1.0), (0.0, 0.25, 1.0), (0.0, 0.0, 1.5), (-0.5, 1.25, 0.75)];
        let mut rows = Vec::new();
        for (presence, frequency, repetition) in penalties {
            let penalties = Penalties { presence, frequency, repetition };
            rows.push(Row { penalties, ..Row::random(&mut bench.rng, vocab, PLAIN) });
        }
        let slots: Vec<usize> = bench.rng.permutation(rows.len() + 3)[..rows.len()].to_vec();
        let state = write_state(bench, &rows, &slots, vocab)?;
        let choices = [0, 0, IN_PROMPT, 1, 3, IN_PROMPT | 2];
        let counts: Vec<i32> =
            (0..(rows.len() + 3) * vocab).map(|_| choices[bench.rng.below(choices.len())]).collect();
        bench.ctx.write(&state.counts, &counts)?;
        let mut expected: Vec<f64> = Vec::new();
        for (row, &slot) in rows.iter().zip(&slots) {
            let counts = &counts[slot * vocab..];
            expected.extend(row.logits.iter().zip(counts).map(|(&l, &c)| row.penalties.apply(l.into(), c)));
        }
        // A padded row is left as it is.
        expected.extend(vec![1.0; vocab]);
        let n = rows.len() + 1;
        let mut values: Vec<f32> = rows.iter().flat_map(|r| &r.logits).copied().collect();
        values.resize(n * vocab, 1.0);
        let logits = bench.matrix_of(DType::F32, [n, vocab], Placement::Whole, &values)?;
        let device_slots: Vec<i32> = slots.iter().map(|&s| s as i32).chain([-1]).collect();
        let device_slots = bench.i32s(&[n], &device_slots)?;
        let positions = bench.i32s(&[n], &vec![0; n])?;
        let args = SamplingRows { logits: &logits.view, slots: &device_slots, positions: &positions };
        let sampling = bench.kernels.sampling();
        bench.ctx.step(|ctx| sampling.penalize(ctx, &state, &args))?;
        let at = At { op: "penalize", case: &format!("vocabulary of {vocab}") };
        bench.check(at, &logits, &expected, |i| 1e-6 * (1.0 + expected[i].abs()))?;
    }
    Ok(())
}

fn check_bias(bench: &mut Bench<'_>) -> Result<()> {
    let (rows, vocab) = (3, 50);
    let values = bench.normals(rows * vocab);
    let edits = [[0, 49], [2, 0], [-1, -1], [2, 7], [1, 1], [-1, 3]];
    let amounts = [1.5, f32::NEG_INFINITY, 9.0, -100.0, 0.0, 9.0];
    let mut expected = widen(&values);
    for (edit, amount) in edits.iter().zip(amounts).filter(|(edit, _)| edit[0] >= 0) {
        expected[edit[0] as usize * vocab + edit[1] as usize] += f64::from(amount);
    }
    let logits = bench.matrix_of(DType::F32, [rows, vocab], Placement::Whole, &values)?;
    let device_edits = bench.i32s(&[edits.len(), 2], edits.as_flattened())?;
    let device_amounts = bench.f32s(&[amounts.len()], &amounts)?;
    let none = (device_edits.rows(0, 0), device_amounts.rows(0, 0));
    let sampling = bench.kernels.sampling();
    bench.ctx.step(|ctx| {
        sampling.add_bias(ctx, &logits.view, &device_edits, &device_amounts)?;
        sampling.add_bias(ctx, &logits.view, &none.0, &none.1)
    })?;
    bench.check(At { op: "add_bias", case: "with padding" }, &logits, &expected, |i| {
        1e-6 * (1.0 + expected[i].abs())
    })?;
    Ok(())
}

/// Masks of all kinds (none, all, the ends, at random), over vocabularies that fill no word and over some that do.
fn check_masks(bench: &mut Bench<'_>) -> Result<()> {
    for vocab in [1, 31, 32, 33, 1000, 49_152, 151_669] {
        let (num_rows, words) = (6, mask_words(vocab));
        let slots = bench.rng.permutation(num_rows + 2);
        let masks: Vec<u32> = (0..(num_rows + 2) * words)
            .map(|i| match (i / words, i % words) {
                (0, _) => u32::MAX,
                (1, _) => 0,
                (2, 0) => 1,
                (2, _) => 0,
                (3, word) if word + 1 == words => 1 << ((vocab - 1) % 32),
                (3, _) => 0,
                // Here and there a whole word, as a real mask has them.
                (_, word) if word % 5 == 0 => u32::MAX,
                _ => bench.rng.next() as u32,
            })
            .collect();
        let state = SamplingState::new(bench.kernels.device().as_ref(), num_rows + 2, vocab)?;
        bench.ctx.write(&state.masks, &masks)?;
        let mut values = bench.normals_of(DType::F32, num_rows * vocab);
        // A token is forbidden or left as it is whatever its logit.
        (values[0], values[vocab]) = (f32::NEG_INFINITY, f32::INFINITY);
        let mut device_slots: Vec<i32> = slots[..num_rows].iter().map(|&slot| slot as i32).collect();
        device_slots[4] = -1;
        let mut expected = Vec::new();
        for (row, &slot) in widen(&values).chunks(vocab).zip(&device_slots) {
            match usize::try_from(slot) {
                Ok(slot) => expected.extend(oracle::masked(row, &masks[slot * words..][..words])),
                Err(_) => expected.extend(row),
            }
        }
        let logits = bench.matrix_of(DType::F32, [num_rows, vocab], Placement::Whole, &values)?;
        let device_slots = bench.i32s(&[num_rows], &device_slots)?;
        let positions = bench.i32s(&[num_rows], &vec![0; num_rows])?;
        let (rows, sampling) = (
            SamplingRows { logits: &logits.view, slots: &device_slots, positions: &positions },
            bench.kernels.sampling(),
        );
        bench.ctx.step(|ctx| sampling.mask(ctx, &state, &rows))?;
        bench.check(
            At { op: "mask", case: &format!("vocabulary of {vocab}") },
            &logits,
            &expected,
            |_| 0.0,
        )?;
    }
    Ok(())
}

fn check_count(bench: &mut Bench<'_>) -> Result<()> {
    let (num_slots, vocab) = (4, 6);
    let state = SamplingState::new(bench.kernels.device().as_ref(), num_slots, vocab)?;
    let mut expected = vec![0; num_slots * vocab];
    expected[2 * vocab + 5] = IN_PROMPT;
    bench.ctx.write(&state.counts, &expected)?;
    let slots = bench.i32s(&[4], &[2, -1, 0, 1])?;
    let tokens = bench.i32s(&[4], &[5, 1, 3, NO_TOKEN])?;
    let sampling = bench.kernels.sampling();
    for _ in 0..2 {
        bench.ctx.step(|ctx| sampling.count(ctx, &state, &slots, &tokens))?;
    }
    expected[2 * vocab + 5] = IN_PROMPT | 2;
    expected[3] = 2;
    let counts = bench.read_i32(&state.counts)?;
    bench.report.equal(At { op: "count", case: "twice, with padding" }, &counts, &expected);
    Ok(())
}

fn check_logprobs(bench: &mut Bench<'_>) -> Result<()> {
    for (vocab, num_top) in [(1, 0), (1, 1), (7, 3), (1000, 20), (49_152, 5), (33, 33)] {
        let found = bench.kernels.sampling().max_top_logprobs(vocab);
        bench.report.equal(
            At { op: "logprobs.max_top", case: "is enough for few" },
            &[found.min(num_top)],
            &[num_top],
        );
        let mut values = Vec::new();
        for _ in 0..4 {
            values.extend((0..vocab).map(|_| 2.0 * bench.rng.normal() as f32));
        }
        // Ties at the top and a forbidden token.
        values[..vocab].fill(0.5);
        values[vocab + vocab / 2] = 30.0;
        values[2 * vocab - 1] = 30.0;
        values[2 * vocab] = if vocab > 1 { f32::NEG_INFINITY } else { 0.0 };
        let chosen: Vec<i32> = (0..4).map(|i| (i * 5 % vocab) as i32).collect();
        check_logprobs_of(bench, &values, &chosen, num_top)?;
        check_logprobs_of(bench, &values, &[NO_TOKEN; 4], num_top)?;
        // Rows without a number, with few, and with a better one than all others.
        values[..3 * vocab].fill(f32::NAN);
        values[vocab..2 * vocab].fill(f32::NEG_INFINITY);
        values[2 * vocab + vocab / 2] = -2.0;
        values[3 * vocab + vocab / 3] = f32::INFINITY;
        check_logprobs_of(bench, &values, &chosen, num_top)?;
    }
    Ok(())
}

fn check_logprobs_of(bench: &mut Bench<'_>, values: &[f32], chosen: &[i32], num_top: usize) -> Result<()> {
    check_values_of(bench, values, chosen, num_top, TokenValues::Logprobs)?;
    check_values_of(bench, values, chosen, num_top, TokenValues::Logits)
}

fn check_values_of(
    bench: &mut Bench<'_>,
    values: &[f32],
    chosen: &[i32],
    num_top: usize,
    told: TokenValues,
) -> Result<()> {
    let n = chosen.len();
    let vocab = values.len() / n;
    let (mut tokens, mut logprobs, mut ranks) = (Vec::new(), Vec::new(), Vec::new());
    for (row, &chosen) in widen(values).chunks(vocab).zip(chosen) {
        let all = match told {
            TokenValues::Logprobs => oracle::log_softmax(row),
            TokenValues::Logits => oracle::numbers(row),
        };
        let best = oracle::ranked(row).into_iter().take(num_top).map(|token| token as i32);
        for token in std::iter::once(chosen).chain(best) {
            tokens.push(token);
            logprobs.push(usize::try_from(token).map_or(f64::NEG_INFINITY, |token| all[token]));
        }
        ranks.push(usize::try_from(chosen).map_or(0, |chosen| oracle::rank(row, chosen) as i32));
    }
    let logits = bench.f32s(&[n, vocab], values)?;
    let device_chosen = bench.i32s(&[n], chosen)?;
    let token_ids = bench.i32s(&[n, 1 + num_top], &vec![-7; n * (1 + num_top)])?;
    let out_logprobs: Tensor = bench.f32s(&[n, 1 + num_top], &vec![f32::NAN; n * (1 + num_top)])?;
    let out_ranks = bench.i32s(&[n], &vec![-7; n])?;
    let out = LogprobsOut { values: told, token_ids: &token_ids, logprobs: &out_logprobs, ranks: &out_ranks };
    let sampling = bench.kernels.sampling();
    bench.ctx.step(|ctx| sampling.logprobs(ctx, &logits, &device_chosen, &out))?;
    let case = format!("{num_top} best of {vocab}, {told:?}");
    let actual = bench.read_i32(&token_ids)?;
    bench.report.equal(At { op: "logprobs.token_ids", case: &case }, &actual, &tokens);
    let actual = bench.read_i32(&out_ranks)?;
    bench.report.equal(At { op: "logprobs.ranks", case: &case }, &actual, &ranks);
    let actual = bench.read_f32(&out_logprobs)?;
    bench.report.compare(At { op: "logprobs", case: &case }, &actual, &logprobs, |i| {
        if logprobs[i].is_finite() { 1e-5 * (1.0 + logprobs[i].abs()) } else { 0.0 }
    });
    Ok(())
}

fn check_scatter(bench: &mut Bench<'_>) -> Result<()> {
    let src = bench.i32s(&[5], &[10, 11, 12, 13, NO_TOKEN])?;
    let dst = bench.i32s(&[6], &[9, 1, 2, 3, 4, 5])?;
    let src_idx = bench.i32s(&[6], &[3, -1, 0, 2, 3, 4])?;
    let dst_idx = bench.i32s(&[6], &[0, 1, -1, 5, 2, 4])?;
    let none = src_idx.rows(0, 0);
    let sampling = bench.kernels.sampling();
    bench.ctx.step(|ctx| {
        sampling.scatter(ctx, &src, &src_idx, &dst, &dst_idx)?;
        sampling.scatter(ctx, &src, &none, &dst, &none)
    })?;
    let actual = bench.read_i32(&dst)?;
    bench.report.equal(At { op: "scatter", case: "with skips" }, &actual, &[13, 1, 13, 3, 0, 12]);
    Ok(())
}
