use quire_scheduler::{Rank, SchedulerPolicy, SequenceView};

/// Who asks for less is served first. A thousand tokens of prompt count like ten seconds of arriving later, so that
/// nobody is overtaken for ever.
pub(crate) struct ShortPromptsFirst;

impl SchedulerPolicy for ShortPromptsFirst {
    fn name(&self) -> &str {
        "short-prompts-first"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        let Rank(arrival, _) = Rank::from(seq.arrival());
        Rank(arrival.saturating_add(10_000_000 * i64::from(seq.num_prompt_tokens())), 0)
    }
}
