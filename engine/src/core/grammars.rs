//! Requests whose grammars are being compiled: they wait in the scheduler, in nobody's way.

use std::time::Duration;

use quire_scheduler::{HoldReason, SeqId};

use super::engine_core::EngineCore;
use super::inbox::RequestKey;
use crate::structured::{Grammar, GrammarError};

/// How often compilations are looked at that may be past their time.
const LOOK: Duration = Duration::from_millis(50);

impl EngineCore {
    /// Keeps the first sequence of a request back until [`take_grammar`](Self::take_grammar).
    pub(super) fn await_grammar(&mut self, seq: SeqId) {
        if let Err(error) = self.scheduler.hold(seq, HoldReason::Grammar) {
            self.fail([seq], &quire_scheduler::Error::from(error).into());
        }
    }

    /// A grammar is ready, or wrong. Its request may be gone.
    pub(super) fn take_grammar(&mut self, key: RequestKey, outcome: Result<Grammar, GrammarError>) {
        self.num_awaited_grammars -= 1;
        let Some(&seq) = self.requests.seqs_of(key).first() else { return };
        match (outcome, self.requests.get_mut(seq)) {
            (Ok(grammar), Some(request)) => {
                request.set_grammar(grammar);
                self.scheduler.release(seq, HoldReason::Grammar);
            }
            (Err(error), _) => self.fail([seq], &error.into()),
            (Ok(_), None) => {}
        }
    }

    /// Fails grammars that take too long, where any is waited for.
    pub(super) fn expire_grammars(&self) {
        if self.num_awaited_grammars > 0 {
            self.grammars.expire();
        }
    }

    /// How long to wait for a command.
    pub(super) fn patience(&self) -> Duration {
        if self.num_awaited_grammars > 0 { LOOK } else { Duration::MAX }
    }
}
