//! Bytes as calls.

use super::call::{Added, Base, Call, Committed, Exception, Gauges, Planned, tag};
use super::codec::Reader;
use crate::cost::StepWork;
use crate::hold::HoldReason;
use crate::sequence::FinishReason;

impl Base {
    /// Reads the next call; `None` for bytes that are none.
    pub(super) fn decode(&mut self, reader: &mut Reader<'_>) -> Option<Call> {
        Some(match reader.byte()? {
            tag::BASE => {
                let mut number = || reader.number();
                let (now, next_seq, step) = (number()?, number()?, number()?);
                let (context_tokens, digest) = (number()?, number()?);
                let mut small = || reader.small();
                let gauges = Gauges::from_list([small()?, small()?, small()?, small()?]);
                *self = Self { now, next_seq, step, context_tokens, digest, gauges };
                Call::Base(*self)
            }
            tag::ADD => Call::Add(self.decode_add(reader)?),
            tag::IDLE => Call::Schedule { now: self.now(reader)?, planned: None },
            tag::PLAN_OF_DECODES => self.decode_plan(reader, true)?,
            tag::PLAN => self.decode_plan(reader, false)?,
            tag::COMMIT_AS_USUAL => {
                let (now, device_us) = (self.now(reader)?, reader.number()?);
                Call::Commit(Committed { now, device_us, ..Committed::default() })
            }
            tag::COMMIT => Call::Commit(self.decode_commit(reader)?),
            tag::ABORT => Call::Abort { seq: self.seq(reader)? },
            tag::HOLD => Call::Hold { seq: self.seq(reader)?, reason: HoldReason::of_code(reader.byte()?)? },
            tag::RELEASE => {
                Call::Release { seq: self.seq(reader)?, reason: HoldReason::of_code(reader.byte()?)? }
            }
            tag::FORK => {
                let (parent, num_tokens) = (self.seq(reader)?, reader.small()?);
                let (num_children, hashes) = (reader.small()?, words(reader)?);
                self.next_seq = self.next_seq.wrapping_add(num_children.into());
                Call::Fork { parent, num_tokens, num_children, hashes }
            }
            tag::FORK_WITH => {
                let (parent, num_tokens, hashes) = (self.seq(reader)?, reader.small()?, words(reader)?);
                self.next_seq = self.next_seq.wrapping_add(1);
                Call::ForkWith { parent, num_tokens, hashes }
            }
            tag::REPLACE_LAST => Call::ReplaceLast { seq: self.seq(reader)?, hashes: words(reader)? },
            tag::RESET_PREFIX_CACHE => Call::ResetPrefixCache,
            tag::PIN => {
                Call::Pin { salt: reader.number()?, num_tokens: reader.small()?, hashes: words(reader)? }
            }
            tag::UNPIN => Call::Unpin { pin: reader.number()? },
            tag::FAIL_OPEN_STEPS => Call::FailOpenSteps,
            tag::FINISH_TRANSFERS => Call::FinishTransfers { transfers: numbers(reader)? },
            tag::CHECKPOINT => Call::Checkpoint { words: numbers(reader)? },
            tag::SET_RATES => Call::SetRates {
                swap_bytes_per_s: f64::from_bits(reader.word()?),
                prefill_tokens_per_s: f64::from_bits(reader.word()?),
            },
            _ => return None,
        })
    }

    fn decode_add(&mut self, reader: &mut Reader<'_>) -> Option<Added> {
        let mut added = Added {
            seq: self.seq(reader)?,
            arrival: self.now.wrapping_add(reader.signed()? as u64),
            prompt_tokens: reader.small()?,
            max_output_tokens: reader.small()?,
            tenant: reader.number()?,
            priority: reader.signed()?.try_into().ok()?,
            salt: reader.number()?,
            runs_ahead: false,
            is_sibling: false,
            hashes: Vec::new(),
        };
        let flags = reader.byte()?;
        (added.runs_ahead, added.is_sibling) = (flags & 1 != 0, flags & 2 != 0);
        added.hashes = words(reader)?;
        self.next_seq = added.seq.wrapping_add(1);
        Some(added)
    }

    fn decode_plan(&mut self, reader: &mut Reader<'_>, only_decodes: bool) -> Option<Call> {
        let (now, check, num_decodes) = (self.now(reader)?, reader.half()?, reader.number()?);
        let context_tokens = self.context_tokens.wrapping_add(reader.signed()? as u64);
        let mut work = StepWork { num_rows: num_decodes, num_decodes, context_tokens, ..StepWork::default() };
        if !only_decodes {
            (work.num_rows, work.prefill_tokens) = (reader.number()?, reader.number()?);
            (work.prefill_pairs, work.swapped_blocks) = (reader.number()?, reader.number()?);
        }
        let gauges = self.decode_gauges(reader)?;
        (self.context_tokens, self.step) = (context_tokens, self.step.wrapping_add(1));
        Some(Call::Schedule { now, planned: Some(Planned { work, check, gauges }) })
    }

    fn decode_commit(&mut self, reader: &mut Reader<'_>) -> Option<Committed> {
        let mut committed =
            Committed { now: self.now(reader)?, device_us: reader.number()?, ..Committed::default() };
        for _ in 0..reader.len()? {
            let (place, num_tokens) = (reader.small()?, reader.small()?);
            let finish = finish_of(reader.byte()?)?;
            committed.exceptions.push(Exception { place, num_tokens, finish });
        }
        for _ in 0..reader.len()? {
            committed.hashes.push((self.seq(reader)?, reader.word()?));
        }
        for _ in 0..reader.len()? {
            committed.finished.push((self.seq(reader)?, reader.small()?));
        }
        Some(committed)
    }

    fn now(&mut self, reader: &mut Reader<'_>) -> Option<u64> {
        self.now = self.now.wrapping_add(reader.signed()? as u64);
        Some(self.now)
    }

    fn seq(&self, reader: &mut Reader<'_>) -> Option<u64> {
        Some(self.next_seq.wrapping_sub(reader.signed()? as u64))
    }

    fn decode_gauges(&mut self, reader: &mut Reader<'_>) -> Option<Gauges> {
        let bits = reader.byte()?;
        let mut list = self.gauges.list();
        for (place, gauge) in list.iter_mut().enumerate() {
            if bits >> place & 1 == 1 {
                *gauge = u32::try_from(i64::from(*gauge).checked_add(reader.signed()?)?).ok()?;
            }
        }
        self.gauges = Gauges::from_list(list);
        Some(self.gauges)
    }
}

fn words(reader: &mut Reader<'_>) -> Option<Vec<u64>> {
    (0..reader.len()?).map(|_| reader.word()).collect()
}

fn numbers(reader: &mut Reader<'_>) -> Option<Vec<u64>> {
    (0..reader.len()?).map(|_| reader.number()).collect()
}

fn finish_of(code: u8) -> Option<Option<FinishReason>> {
    Some(match code {
        0 => None,
        1 => Some(FinishReason::Stop),
        2 => Some(FinishReason::Length),
        3 => Some(FinishReason::Abort),
        4 => Some(FinishReason::Error),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Vec<Call> {
        let gauges = Gauges { num_running: 3, num_waiting: 9, num_swapped: 0, live_blocks: 40 };
        let added = Added {
            seq: 7,
            arrival: 12_345,
            prompt_tokens: 33,
            max_output_tokens: u32::MAX,
            tenant: 2,
            priority: -4,
            salt: u64::MAX,
            runs_ahead: false,
            is_sibling: true,
            hashes: vec![1, u64::MAX],
        };
        let work = StepWork { num_rows: 3, num_decodes: 3, context_tokens: 900, ..StepWork::default() };
        let mixed =
            StepWork { num_rows: 4, prefill_tokens: 70, prefill_pairs: 5000, swapped_blocks: 2, ..work };
        let committed = Committed {
            now: 30_000_000,
            device_us: 1234,
            exceptions: vec![Exception { place: 2, num_tokens: 0, finish: Some(FinishReason::Stop) }],
            hashes: vec![(7, 99)],
            finished: vec![(6, 12)],
        };
        vec![
            Call::Base(Base { now: 20_000, next_seq: 7, step: 4, context_tokens: 890, digest: 5, gauges }),
            Call::Add(added),
            Call::Schedule { now: 21_000, planned: None },
            Call::Schedule { now: 22_000, planned: Some(Planned { work, check: 77, gauges }) },
            Call::Commit(Committed { now: 25_000, device_us: 3, ..Committed::default() }),
            Call::Schedule {
                now: 26_000,
                planned: Some(Planned {
                    work: mixed,
                    check: 78,
                    gauges: Gauges { live_blocks: 1, ..gauges },
                }),
            },
            Call::Commit(committed),
            Call::Fork { parent: 7, num_tokens: 34, num_children: 3, hashes: vec![4] },
            Call::ForkWith { parent: 8, num_tokens: 35, hashes: vec![4, 5] },
            Call::ReplaceLast { seq: 8, hashes: vec![6] },
            Call::Abort { seq: 8 },
            Call::Hold { seq: 7, reason: HoldReason::Adapter },
            Call::Release { seq: 7, reason: HoldReason::Grammar },
            Call::ResetPrefixCache,
            Call::Pin { salt: 3, num_tokens: 32, hashes: vec![7, u64::MAX] },
            Call::Unpin { pin: 300 },
            Call::FailOpenSteps,
            Call::FinishTransfers { transfers: vec![0, 300] },
            Call::SetRates { swap_bytes_per_s: 1.5e10, prefill_tokens_per_s: 0.25 },
            Call::Checkpoint { words: vec![3, 0, u64::MAX] },
        ]
    }

    #[test]
    fn calls_come_back_as_they_were() {
        let (mut bytes, mut base) = (Vec::new(), Base::default());
        calls().iter().for_each(|call| base.encode(call, &mut bytes));
        let (mut reader, mut decoded) = (Reader { bytes: &bytes }, Base::default());
        for call in calls() {
            assert_eq!(decoded.decode(&mut reader), Some(call));
        }
        assert!(reader.is_empty());
        assert_eq!(decoded, base);
    }

    #[test]
    fn bytes_that_are_no_calls_are_refused_wherever_they_break() {
        let (mut bytes, mut base) = (Vec::new(), Base::default());
        calls().iter().for_each(|call| base.encode(call, &mut bytes));
        for place in 0..bytes.len() {
            for value in [0x00, 0x7f, 0xff] {
                let mut broken = bytes.clone();
                broken[place] = value;
                let (mut reader, mut base) = (Reader { bytes: &broken }, Base::default());
                while base.decode(&mut reader).is_some() {}
            }
        }
    }
}
