//! What requests and steps were like: the histograms that dashboards of vLLM show.

use serde::Serialize;

use crate::{Histogram, RequestMetrics};

/// Times in seconds, sizes in tokens. Each request is counted once, whatever was computed again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distributions {
    /// From arrival to a request's first token.
    pub ttft_s: Histogram,
    /// Between two tokens of a sequence.
    pub inter_token_s: Histogram,
    /// The mean of that over a request, where an output has two tokens.
    pub tpot_s: Histogram,
    /// From arrival to the end.
    pub e2e_s: Histogram,
    /// From arrival to the first step.
    pub queue_s: Histogram,
    /// From the first step to the end.
    pub inference_s: Histogram,
    /// From the first step to the first token.
    pub prefill_s: Histogram,
    /// From the first token to the end.
    pub decode_s: Histogram,
    /// Tokens of prompts.
    pub prompt_tokens: Histogram,
    /// Tokens generated for a request, over all its outputs.
    pub generation_tokens: Histogram,
    /// `max_tokens` of requests that gave one.
    pub max_tokens: Histogram,
    /// `n` of requests.
    pub n: Histogram,
    /// Tokens that a step computed.
    pub step_tokens: Histogram,
    /// Time that the device worked on a step.
    pub step_s: Histogram,
}

impl Distributions {
    /// Counts a request that has ended.
    pub(crate) fn note_end(
        &mut self,
        metrics: &RequestMetrics,
        num_prompt_tokens: u32,
        num_output_tokens: usize,
    ) {
        let RequestMetrics { queue_ms, ttft_ms, tpot_ms, e2e_ms, .. } = *metrics;
        let seconds = |ms: f64| ms.max(0.0) / 1e3;
        self.e2e_s.observe(seconds(e2e_ms));
        self.queue_s.observe(seconds(queue_ms));
        self.inference_s.observe(seconds(e2e_ms - queue_ms));
        if let Some(ttft_ms) = ttft_ms {
            self.prefill_s.observe(seconds(ttft_ms - queue_ms));
            self.decode_s.observe(seconds(e2e_ms - ttft_ms));
        }
        if let Some(tpot_ms) = tpot_ms {
            self.tpot_s.observe(seconds(tpot_ms));
        }
        self.prompt_tokens.observe(f64::from(num_prompt_tokens));
        self.generation_tokens.observe(num_output_tokens as f64);
    }
}

const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const PER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const STEP: &[f64] = &[
    0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5,
    10.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6,
    2e6, 5e6, 1e7,
];
const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const NUM_OUTPUTS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

impl Default for Distributions {
    fn default() -> Self {
        let [latency, tokens] = [LATENCY, TOKENS].map(Histogram::new);
        Self {
            ttft_s: Histogram::new(TTFT),
            inter_token_s: Histogram::new(PER_TOKEN),
            tpot_s: Histogram::new(PER_TOKEN),
            e2e_s: latency,
            queue_s: latency,
            inference_s: latency,
            prefill_s: latency,
            decode_s: latency,
            prompt_tokens: tokens,
            generation_tokens: tokens,
            max_tokens: tokens,
            n: Histogram::new(NUM_OUTPUTS),
            step_tokens: Histogram::new(STEP_TOKENS),
            step_s: Histogram::new(STEP),
        }
    }
}
