//! The progress bar of long work.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{RequestOutput, Result};

/// Work that is done sooner shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows on standard error, where that is a terminal, how many requests are done.
pub(crate) struct Progress {
    started: Instant,
    num_requests: usize,
    num_done: usize,
    num_tokens: usize,
    bar: Option<ProgressBar>,
    is_shown: bool,
}

impl Progress {
    pub(crate) fn start(num_requests: usize) -> Self {
        let is_shown = num_requests > 1 && std::io::stderr().is_terminal();
        Self { started: Instant::now(), num_requests, num_done: 0, num_tokens: 0, bar: None, is_shown }
    }

    /// Notes the end of a request.
    pub(crate) fn note(&mut self, result: &Result<RequestOutput>) {
        self.num_done += 1;
        let outputs = result.iter().flat_map(|output| &output.outputs);
        self.num_tokens += outputs.map(|output| output.token_ids.len()).sum::<usize>();
        let elapsed = self.started.elapsed();
        if !self.is_shown || elapsed < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| new_bar(self.num_requests).with_elapsed(elapsed));
        bar.set_message(format!("{:.1} tokens/s", self.num_tokens as f64 / elapsed.as_secs_f64()));
        bar.set_position(self.num_done as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}

fn new_bar(num_requests: usize) -> ProgressBar {
    let style = "{elapsed_precise} {bar:30} {pos}/{len} requests, {msg}, {eta} left";
    let style = ProgressStyle::with_template(style).expect("the template above is valid");
    ProgressBar::new(num_requests as u64).with_style(style)
}
