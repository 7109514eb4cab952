//! `quire generate --beam-width`.

use clap::Args;
use quire_engine::{BeamSearchParams, SamplingParams};

use super::sampling::SamplingFlags;
use crate::error::Result;

/// A search for the most probable texts in place of drawing one.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Beam search")]
pub(crate) struct BeamFlags {
    /// Searches for the N most probable texts, and writes them, the best first.
    #[arg(long, value_name = "N", conflicts_with_all = [
        "input", "n", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "stop",
        "stop_token_ids", "min_tokens", "logprobs", "prompt_logprobs", "logits_processors", "json_schema", "regex", "choice",
        "grammar",
    ])]
    beam_width: Option<u32>,
    /// What the length counts in the score of a text, its log-probability over length ^ X: above 0 prefers long texts.
    #[arg(long, value_name = "X", allow_negative_numbers = true, requires = "beam_width")]
    length_penalty: Option<f64>,
}

impl BeamFlags {
    /// The search that is asked for, if one is. What else the flags of sampling say holds for it.
    pub(crate) fn search(
        &self,
        flags: &SamplingFlags,
        defaults: &SamplingParams,
    ) -> Result<Option<BeamSearchParams>> {
        let Some(beam_width) = self.beam_width else { return Ok(None) };
        // The temperature that a model's makers recommend is for drawing.
        let params = flags.over(&SamplingParams { temperature: 0.0, ..defaults.clone() })?;
        let plain = BeamSearchParams::new(beam_width, params.max_tokens.unwrap_or(u64::MAX));
        Ok(Some(BeamSearchParams {
            ignore_eos: params.ignore_eos,
            temperature: params.temperature,
            length_penalty: self.length_penalty.unwrap_or(plain.length_penalty),
            include_stop_str_in_output: params.include_stop_str_in_output,
            ..plain
        }))
    }
}
