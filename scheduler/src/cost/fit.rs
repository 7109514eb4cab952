//! A cost model from measured steps.

use serde::Serialize;

use super::{CostModel, StepWork, factors};

/// A step with its measured time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepSample {
    /// What it computed.
    pub work: StepWork,
    /// How long the device worked on it.
    pub device_us: f64,
}

/// How well a fitted model says what was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FitReport {
    /// The model.
    pub model: CostModel,
    /// Steps that were measured.
    pub num_steps: usize,
    /// The mean of the steps' relative errors, without signs.
    pub mean_error: f64,
    /// Of ten steps nine are not further off.
    pub p90_error: f64,
    /// The error of the sum of all steps, relative to the measured sum.
    pub total_error: f64,
    /// The share of the variance that the model explains, at most 1.
    pub r_squared: f64,
    /// What the host adds to a step on average, in microseconds; it is in `step_us`.
    pub host_us: f64,
}

/// Why nothing can be fitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// Too few steps say how long they took.
    #[error("{given} steps with a measured time, expected at least {expected}")]
    TooFew {
        /// Steps there are.
        given: usize,
        /// Steps needed.
        expected: usize,
    },
}

const NUM_TERMS: usize = 6;
const MIN_STEPS: usize = 16;
/// Huber's constant: 95 % as good as least squares where errors are normal.
const TOLERANCE: f64 = 1.345;
/// Weights have settled by then.
const NUM_ROUNDS: usize = 8;

/// The measured steps of one recording.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Run {
    /// The steps.
    pub samples: Vec<StepSample>,
    /// What a step takes beyond the device's time, on average, in microseconds.
    pub host_us: f64,
}

/// Fits the terms to the steps of one recording: see [`fit_runs`]. `host_us` is what a step takes beyond the device's time,
/// on average.
///
/// # Errors
/// [`FitError::TooFew`].
pub fn fit(samples: &[StepSample], host_us: f64, name: &str) -> Result<FitReport, FitError> {
    fit_runs(&[Run { samples: samples.to_vec(), host_us }], name)
}

/// Fits the terms by least squares, each step weighted by the inverse of its time, so that short steps count, too; no term is
/// negative. Machines are shared: steps that took much longer than others of their kind count less (Huber, "Robust
/// estimation of a location parameter", 1964), a recording made in a slow minute is brought to the speed of the others,
/// and the model is that of the recording of median speed, whose sum it meets.
///
/// # Errors
/// [`FitError::TooFew`].
pub fn fit_runs(runs: &[Run], name: &str) -> Result<FitReport, FitError> {
    let measured = |run: &Run| -> Vec<_> {
        run.samples.iter().filter(|sample| sample.device_us > 0.0).copied().collect()
    };
    let runs_of_samples: Vec<_> = runs.iter().map(measured).filter(|samples| !samples.is_empty()).collect();
    let measured: Vec<_> = runs_of_samples.concat();
    if measured.len() < MIN_STEPS {
        return Err(FitError::TooFew { given: measured.len(), expected: MIN_STEPS });
    }
    let [step_us, prefill_token_us, decode_us, context_token_us, prefill_pair_us, swapped_block_us] =
        terms_of_runs(&runs_of_samples);
    let model = CostModel {
        name: name.to_owned(),
        source: format!("fitted from {} recorded steps", measured.len()),
        step_us,
        prefill_token_us,
        decode_us,
        context_token_us,
        prefill_pair_us,
        swapped_block_us,
        kv_pool_tokens: None,
    };
    Ok(report(model, &measured, median(runs.iter().map(|run| run.host_us).collect())))
}

/// The terms at the median speed of all runs. A run's speed is its sum over that of the model, which is fitted to all runs
/// brought to one speed, in turns.
fn terms_of_runs(runs: &[Vec<StepSample>]) -> [f64; NUM_TERMS] {
    let mut speeds = vec![1.0; runs.len()];
    let mut terms = [0.0; NUM_TERMS];
    for _ in 0..if runs.len() == 1 { 1 } else { NUM_ROUNDS } {
        let at_one_speed = runs.iter().zip(&speeds).flat_map(|(samples, speed)| {
            samples.iter().map(move |sample| StepSample { device_us: sample.device_us / speed, ..*sample })
        });
        terms = non_negative(&at_one_speed.collect::<Vec<_>>());
        let found: Vec<f64> = runs.iter().map(|samples| speed(samples, &terms)).collect();
        let middle = median(found.clone());
        speeds = found.into_iter().map(|speed| speed / middle).collect();
        terms = terms.map(|term| term * middle);
    }
    terms
}

/// How much longer steps took than the terms say.
fn speed(samples: &[StepSample], terms: &[f64; NUM_TERMS]) -> f64 {
    let total: f64 = samples.iter().map(|sample| sample.device_us).sum();
    let predicted: f64 = samples.iter().map(|sample| predict(terms, &sample.work)).sum();
    if predicted > 0.0 { total / predicted } else { 1.0 }
}

fn predict(terms: &[f64; NUM_TERMS], work: &StepWork) -> f64 {
    terms.iter().zip(factors(work)).map(|(term, factor)| term * factor).sum()
}

/// The middle one; of an even number the mean of two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        None => 0.0,
        Some(value) if values.len() % 2 == 1 => *value,
        Some(value) => value.midpoint(values[middle - 1]),
    }
}

fn report(model: CostModel, samples: &[StepSample], host_us: f64) -> FitReport {
    let predicted = |sample: &StepSample| model.step_time(&sample.work).as_secs_f64() * 1e6;
    let mut errors: Vec<f64> =
        samples.iter().map(|sample| (predicted(sample) / sample.device_us - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let count = samples.len() as f64;
    let total: f64 = samples.iter().map(|sample| sample.device_us).sum();
    let mean = total / count;
    let squares = |of: &dyn Fn(&StepSample) -> f64| samples.iter().map(|s| of(s).powi(2)).sum::<f64>();
    let left = squares(&|sample| predicted(sample) - sample.device_us);
    let spread = squares(&|sample| sample.device_us - mean);
    FitReport {
        num_steps: samples.len(),
        mean_error: errors.iter().sum::<f64>() / count,
        p90_error: errors[(errors.len() * 9 / 10).min(errors.len() - 1)],
        total_error: samples.iter().map(predicted).sum::<f64>() / total - 1.0,
        r_squared: if spread > 0.0 { 1.0 - left / spread } else { 1.0 },
        host_us,
        model: CostModel { step_us: model.step_us + host_us, ..model },
    }
}

/// Least squares without negative terms: what comes out most negative is left out, until none is.
fn non_negative(samples: &[StepSample]) -> [f64; NUM_TERMS] {
    let mut is_used = [true; NUM_TERMS];
    loop {
        let terms = least_squares(samples, &is_used);
        let worst = (0..NUM_TERMS).filter(|&term| terms[term] < 0.0).min_by(|&a, &b| {
            let weight = |term: usize| terms[term] * mean_factor(samples, term);
            weight(a).total_cmp(&weight(b))
        });
        match worst {
            Some(term) => is_used[term] = false,
            None => return terms,
        }
    }
}

fn mean_factor(samples: &[StepSample], term: usize) -> f64 {
    samples.iter().map(|sample| factors(&sample.work)[term]).sum::<f64>() / samples.len() as f64
}

/// The normal equations of the used terms, weighted by the inverse of the time that the last round gave, so that a step
/// counts by how long it takes, and less if it is far off. Each column is divided by its mean, and solved for by
/// elimination with pivots. A term that the samples say nothing of is 0.
fn least_squares(samples: &[StepSample], is_used: &[bool; NUM_TERMS]) -> [f64; NUM_TERMS] {
    let scales: Vec<f64> = (0..NUM_TERMS).map(|term| mean_factor(samples, term)).collect();
    let used: Vec<usize> = (0..NUM_TERMS).filter(|&term| is_used[term] && scales[term] > 0.0).collect();
    let mut terms = [0.0; NUM_TERMS];
    let mut weights: Vec<f64> = samples.iter().map(|sample| sample.device_us.recip()).collect();
    for _ in 0..NUM_ROUNDS {
        let mut matrix = vec![vec![0.0; used.len() + 1]; used.len()];
        for (sample, weight) in samples.iter().zip(&weights) {
            let factors = factors(&sample.work);
            let row: Vec<f64> = used.iter().map(|&term| factors[term] / scales[term]).collect();
            for (i, equation) in matrix.iter_mut().enumerate() {
                let values = row.iter().chain([&sample.device_us]);
                equation.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * row[i] * value);
            }
        }
        let solved = solve(matrix);
        used.iter().zip(solved).for_each(|(&term, value)| terms[term] = value / scales[term]);
        weights = huber_weights(samples, &terms);
    }
    terms
}

/// One over the predicted time; times less than one for errors of more than `TOLERANCE` standard deviations, which are told
/// from the median of all errors.
fn huber_weights(samples: &[StepSample], terms: &[f64; NUM_TERMS]) -> Vec<f64> {
    let shortest = samples.iter().map(|sample| sample.device_us).fold(f64::INFINITY, f64::min);
    let predicted: Vec<f64> =
        samples.iter().map(|sample| predict(terms, &sample.work).max(shortest)).collect();
    let errors: Vec<f64> =
        samples.iter().zip(&predicted).map(|(sample, time)| (sample.device_us / time - 1.0).abs()).collect();
    let tolerated = (TOLERANCE * 1.4826 * median(errors.clone())).max(1e-6);
    errors.iter().zip(predicted).map(|(error, time)| (tolerated / error).min(1.0) / time).collect()
}

/// Gauss and Jordan; an unknown whose pivot vanishes is 0.
fn solve(mut matrix: Vec<Vec<f64>>) -> Vec<f64> {
    let size = matrix.len();
    let largest = matrix.iter().flatten().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let mut pivots = vec![None; size];
    let mut next = 0;
    for column in 0..size {
        let best = (next..size).max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()));
        let Some(best) = best.filter(|&row| matrix[row][column].abs() > largest * 1e-10) else { continue };
        matrix.swap(next, best);
        let pivot = matrix[next].clone();
        for (_, equation) in matrix.iter_mut().enumerate().filter(|(row, _)| *row != next) {
            let share = equation[column] / pivot[column];
            equation.iter_mut().zip(&pivot).for_each(|(value, of_pivot)| *value -= share * of_pivot);
        }
        pivots[column] = Some(next);
        next += 1;
    }
    let value = |(column, row): (usize, Option<usize>)| {
        row.map_or(0.0, |row: usize| matrix[row][size] / matrix[row][column])
    };
    pivots.into_iter().enumerate().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    fn work(rng: &mut Rng) -> StepWork {
        let (num_decodes, prefill_tokens) = (u64::from(rng.range(0..64)), u64::from(rng.range(0..512)));
        StepWork {
            num_rows: num_decodes + 1,
            prefill_tokens,
            num_decodes,
            context_tokens: num_decodes * u64::from(rng.range(1..2000)),
            prefill_pairs: prefill_tokens * u64::from(rng.range(1..500)),
            swapped_blocks: u64::from(rng.range(0..4)),
        }
    }

    fn samples(truth: &CostModel, noise: f64) -> Vec<StepSample> {
        let mut rng = Rng::new(5);
        let mut sample = || {
            let work = work(&mut rng);
            let factor = 1.0 + noise * (f64::from(rng.range(0..2001)) / 1000.0 - 1.0);
            StepSample { work, device_us: truth.step_time(&work).as_secs_f64() * 1e6 * factor }
        };
        (0..2000).map(|_| sample()).collect()
    }

    #[test]
    fn exact_samples_give_the_terms_back() {
        let truth = CostModel::default();
        let report = fit(&samples(&truth, 0.0), 0.0, "x").unwrap();
        for ((name, found), (_, expected)) in report.model.terms().iter().zip(truth.terms()) {
            assert!((found / expected - 1.0).abs() < 0.02, "{name}: {found} for {expected}");
        }
        assert!(report.r_squared > 0.999 && report.p90_error < 0.001);
    }

    #[test]
    fn noise_is_reported_and_the_sum_stays_right() {
        let report = fit(&samples(&CostModel::default(), 0.2), 100.0, "x").unwrap();
        assert!(report.total_error.abs() < 0.002, "{}", report.total_error);
        assert!((0.05..0.15).contains(&report.mean_error), "{}", report.mean_error);
        assert!(report.model.terms().iter().all(|(_, term)| *term >= 0.0));
        assert!(report.model.step_us > 3000.0);
    }

    /// A step in ten is interrupted and takes up to four times as long, and of seven recordings two are made at half speed.
    #[test]
    fn interruptions_and_slow_minutes_do_not_bend_the_terms() {
        let truth = CostModel { swapped_block_us: 0.0, ..CostModel::default() };
        let mut rng = Rng::new(3);
        let runs: Vec<_> = [1.0, 2.1, 1.0, 1.02, 1.9, 0.98, 1.0]
            .map(|speed| {
                let mut samples = samples(&truth, 0.05);
                for sample in &mut samples {
                    let interrupted = if rng.one_in(10) { f64::from(rng.range(2..5)) } else { 1.0 };
                    sample.device_us *= speed * interrupted;
                }
                Run { samples, host_us: 0.0 }
            })
            .to_vec();
        let model = fit_runs(&runs, "x").unwrap().model;
        let slow = fit(&runs.iter().flat_map(|run| run.samples.clone()).collect::<Vec<_>>(), 0.0, "x")
            .unwrap()
            .model;
        // The interruptions add a fifth to the whole, and to no term more than to the others.
        let work = StepWork { num_rows: 8, num_decodes: 8, context_tokens: 4000, ..StepWork::default() };
        let factor = |model: &CostModel, work: &StepWork| {
            model.step_time(work).as_secs_f64() / truth.step_time(work).as_secs_f64()
        };
        let prompt =
            StepWork { num_rows: 1, prefill_tokens: 512, prefill_pairs: 130_000, ..StepWork::default() };
        for work in [work, prompt] {
            assert!((1.15..1.25).contains(&factor(&model, &work)), "{}", factor(&model, &work));
            assert!(factor(&slow, &work) > 1.4, "{}", factor(&slow, &work));
        }
    }

    #[test]
    fn a_term_that_nothing_is_known_of_is_zero_and_few_steps_are_refused() {
        let only_decodes = |n| StepWork { num_rows: n, num_decodes: n, ..StepWork::default() };
        let sample = |n| StepSample { work: only_decodes(n), device_us: 100.0 + 10.0 * n as f64 };
        let report = fit(&(1..40).map(sample).collect::<Vec<_>>(), 0.0, "x").unwrap();
        assert!((report.model.decode_us - 10.0).abs() < 1e-3);
        assert_eq!(report.model.prefill_token_us, 0.0);
        let few: Vec<_> = (1..4).map(sample).collect();
        assert_eq!(fit(&few, 0.0, "x"), Err(FitError::TooFew { given: 3, expected: 16 }));
    }
}
