//! The calls of a scheduler, as bytes and back.

use super::codec::{Reader, put, put_signed};
use crate::cost::StepWork;
use crate::sequence::FinishReason;

/// A call with all that a replay needs, and what came of it as far as a reader wants to know without one.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Call {
    /// Where a chunk begins.
    Base(Base),
    Add(Added),
    Schedule {
        now: u64,
        planned: Option<Planned>,
    },
    Commit(Committed),
    Abort {
        seq: u64,
    },
    Fork {
        parent: u64,
        num_tokens: u32,
        num_children: u32,
        /// The names of each child's blocks.
        hashes: Vec<u64>,
    },
    ResetPrefixCache,
    /// A beginning of full blocks that is kept, by its salt and names.
    Pin {
        salt: u64,
        num_tokens: u32,
        hashes: Vec<u64>,
    },
    Unpin {
        pin: u64,
    },
    FailOpenSteps,
    /// Transfers that are done.
    FinishTransfers {
        transfers: Vec<u64>,
    },
    /// What was measured: bytes and tokens a second.
    SetRates {
        swap_bytes_per_s: f64,
        prefill_tokens_per_s: f64,
    },
    /// Not a call: the whole state as it is here, from which a replay can begin.
    Checkpoint {
        words: Vec<u64>,
    },
}

/// What differences are taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Base {
    pub(super) now: u64,
    pub(super) next_seq: u64,
    pub(super) step: u64,
    pub(super) context_tokens: u64,
    pub(super) digest: u64,
    pub(super) gauges: Gauges,
}

/// Counts after a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Gauges {
    pub(super) num_running: u32,
    pub(super) num_waiting: u32,
    pub(super) num_swapped: u32,
    pub(super) live_blocks: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Added {
    pub(super) seq: u64,
    pub(super) arrival: u64,
    pub(super) prompt_tokens: u32,
    pub(super) max_output_tokens: u32,
    pub(super) tenant: u64,
    pub(super) priority: i32,
    pub(super) salt: u64,
    pub(super) hashes: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Planned {
    pub(super) work: StepWork,
    /// The low bits of the digest of all plans so far.
    pub(super) check: u16,
    pub(super) gauges: Gauges,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Committed {
    pub(super) now: u64,
    pub(super) device_us: u64,
    /// Results, by their place among those that counted, that were not one token and no finish.
    pub(super) exceptions: Vec<Exception>,
    /// Names of the blocks that became full, each with its sequence.
    pub(super) hashes: Vec<(u64, u64)>,
    /// Sequences that ended, with the number of tokens they had generated.
    pub(super) finished: Vec<(u64, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Exception {
    pub(super) place: u32,
    pub(super) num_tokens: u32,
    pub(super) finish: Option<FinishReason>,
}

const BASE: u8 = 0;
const ADD: u8 = 1;
const IDLE: u8 = 2;
const PLAN_OF_DECODES: u8 = 3;
const PLAN: u8 = 4;
const COMMIT_AS_USUAL: u8 = 5;
const COMMIT: u8 = 6;
const ABORT: u8 = 7;
const FORK: u8 = 8;
const RESET_PREFIX_CACHE: u8 = 9;
const FAIL_OPEN_STEPS: u8 = 10;
const FINISH_TRANSFERS: u8 = 11;
const SET_RATES: u8 = 12;
const CHECKPOINT: u8 = 13;
const PIN: u8 = 14;
const UNPIN: u8 = 15;

impl Base {
    /// Appends a call, as a difference to what came before.
    pub(super) fn encode(&mut self, call: &Call, bytes: &mut Vec<u8>) {
        match call {
            Call::Base(base) => {
                bytes.push(BASE);
                let Base { now, next_seq, step, context_tokens, digest, gauges } = *base;
                for number in [now, next_seq, step, context_tokens, digest] {
                    put(bytes, number);
                }
                gauges.list().iter().for_each(|&gauge| put(bytes, gauge.into()));
                *self = *base;
            }
            Call::Add(added) => self.encode_add(added, bytes),
            Call::Schedule { now, planned: None } => {
                bytes.push(IDLE);
                self.put_now(*now, bytes);
            }
            Call::Schedule { now, planned: Some(planned) } => self.encode_plan(*now, planned, bytes),
            Call::Commit(committed) => self.encode_commit(committed, bytes),
            Call::Abort { seq } => {
                bytes.push(ABORT);
                self.put_seq(*seq, bytes);
            }
            Call::Fork { parent, num_tokens, num_children, hashes } => {
                bytes.push(FORK);
                self.put_seq(*parent, bytes);
                put(bytes, (*num_tokens).into());
                put(bytes, (*num_children).into());
                put_words(bytes, hashes);
                self.next_seq += u64::from(*num_children);
            }
            Call::ResetPrefixCache => bytes.push(RESET_PREFIX_CACHE),
            Call::Pin { salt, num_tokens, hashes } => {
                bytes.push(PIN);
                put(bytes, *salt);
                put(bytes, (*num_tokens).into());
                put_words(bytes, hashes);
            }
            Call::Unpin { pin } => {
                bytes.push(UNPIN);
                put(bytes, *pin);
            }
            Call::FailOpenSteps => bytes.push(FAIL_OPEN_STEPS),
            Call::FinishTransfers { transfers } => {
                bytes.push(FINISH_TRANSFERS);
                put_numbers(bytes, transfers);
            }
            Call::SetRates { swap_bytes_per_s, prefill_tokens_per_s } => {
                bytes.push(SET_RATES);
                for rate in [swap_bytes_per_s, prefill_tokens_per_s] {
                    bytes.extend_from_slice(&rate.to_bits().to_le_bytes());
                }
            }
            Call::Checkpoint { words } => {
                bytes.push(CHECKPOINT);
                put_numbers(bytes, words);
            }
        }
    }

    fn encode_add(&mut self, added: &Added, bytes: &mut Vec<u8>) {
        bytes.push(ADD);
        self.put_seq(added.seq, bytes);
        put_signed(bytes, added.arrival.wrapping_sub(self.now) as i64);
        put(bytes, added.prompt_tokens.into());
        put(bytes, added.max_output_tokens.into());
        put(bytes, added.tenant);
        put_signed(bytes, added.priority.into());
        put(bytes, added.salt);
        put_words(bytes, &added.hashes);
        self.next_seq = added.seq.wrapping_add(1);
    }

    fn encode_plan(&mut self, now: u64, planned: &Planned, bytes: &mut Vec<u8>) {
        let work = &planned.work;
        let only_decodes = work.num_rows == work.num_decodes && work.swapped_blocks == 0;
        bytes.push(if only_decodes { PLAN_OF_DECODES } else { PLAN });
        self.put_now(now, bytes);
        bytes.extend_from_slice(&planned.check.to_le_bytes());
        put(bytes, work.num_decodes);
        put_signed(bytes, work.context_tokens.wrapping_sub(self.context_tokens) as i64);
        if !only_decodes {
            let rest = [work.num_rows, work.prefill_tokens, work.prefill_pairs, work.swapped_blocks];
            rest.iter().for_each(|&number| put(bytes, number));
        }
        self.put_gauges(planned.gauges, bytes);
        self.context_tokens = work.context_tokens;
        self.step += 1;
    }

    fn encode_commit(&mut self, committed: &Committed, bytes: &mut Vec<u8>) {
        let Committed { now, device_us, exceptions, hashes, finished } = committed;
        let as_usual = exceptions.is_empty() && hashes.is_empty() && finished.is_empty();
        bytes.push(if as_usual { COMMIT_AS_USUAL } else { COMMIT });
        self.put_now(*now, bytes);
        put(bytes, *device_us);
        if as_usual {
            return;
        }
        put(bytes, exceptions.len() as u64);
        for exception in exceptions {
            put(bytes, exception.place.into());
            put(bytes, exception.num_tokens.into());
            bytes.push(exception.finish.map_or(0, finish_code));
        }
        put(bytes, hashes.len() as u64);
        for (seq, hash) in hashes {
            self.put_seq(*seq, bytes);
            bytes.extend_from_slice(&hash.to_le_bytes());
        }
        put(bytes, finished.len() as u64);
        for (seq, num_output) in finished {
            self.put_seq(*seq, bytes);
            put(bytes, (*num_output).into());
        }
    }

    fn put_now(&mut self, now: u64, bytes: &mut Vec<u8>) {
        put_signed(bytes, now.wrapping_sub(self.now) as i64);
        self.now = now;
    }

    /// Sequences are named by how long ago they came.
    fn put_seq(&self, seq: u64, bytes: &mut Vec<u8>) {
        put_signed(bytes, self.next_seq.wrapping_sub(seq) as i64);
    }

    fn put_gauges(&mut self, gauges: Gauges, bytes: &mut Vec<u8>) {
        let (before, after) = (self.gauges.list(), gauges.list());
        let changed = (0..4).filter(|&place| before[place] != after[place]);
        bytes.push(changed.clone().fold(0, |bits, place| bits | 1 << place));
        changed.for_each(|place| put_signed(bytes, i64::from(after[place]) - i64::from(before[place])));
        self.gauges = gauges;
    }

    /// Reads the next call; `None` for bytes that are none.
    pub(super) fn decode(&mut self, reader: &mut Reader<'_>) -> Option<Call> {
        Some(match reader.byte()? {
            BASE => {
                let mut number = || reader.number();
                let (now, next_seq, step) = (number()?, number()?, number()?);
                let (context_tokens, digest) = (number()?, number()?);
                let mut small = || reader.small();
                let gauges = Gauges::from_list([small()?, small()?, small()?, small()?]);
                *self = Self { now, next_seq, step, context_tokens, digest, gauges };
                Call::Base(*self)
            }
            ADD => Call::Add(self.decode_add(reader)?),
            IDLE => Call::Schedule { now: self.now(reader)?, planned: None },
            PLAN_OF_DECODES => self.decode_plan(reader, true)?,
            PLAN => self.decode_plan(reader, false)?,
            COMMIT_AS_USUAL => {
                let (now, device_us) = (self.now(reader)?, reader.number()?);
                Call::Commit(Committed { now, device_us, ..Committed::default() })
            }
            COMMIT => Call::Commit(self.decode_commit(reader)?),
            ABORT => Call::Abort { seq: self.seq(reader)? },
            FORK => {
                let (parent, num_tokens) = (self.seq(reader)?, reader.small()?);
                let (num_children, hashes) = (reader.small()?, words(reader)?);
                self.next_seq = self.next_seq.wrapping_add(num_children.into());
                Call::Fork { parent, num_tokens, num_children, hashes }
            }
            RESET_PREFIX_CACHE => Call::ResetPrefixCache,
            PIN => Call::Pin { salt: reader.number()?, num_tokens: reader.small()?, hashes: words(reader)? },
            UNPIN => Call::Unpin { pin: reader.number()? },
            FAIL_OPEN_STEPS => Call::FailOpenSteps,
            FINISH_TRANSFERS => Call::FinishTransfers { transfers: numbers(reader)? },
            CHECKPOINT => Call::Checkpoint { words: numbers(reader)? },
            SET_RATES => Call::SetRates {
                swap_bytes_per_s: f64::from_bits(reader.word()?),
                prefill_tokens_per_s: f64::from_bits(reader.word()?),
            },
            _ => return None,
        })
    }

    fn decode_add(&mut self, reader: &mut Reader<'_>) -> Option<Added> {
        let added = Added {
            seq: self.seq(reader)?,
            arrival: self.now.wrapping_add(reader.signed()? as u64),
            prompt_tokens: reader.small()?,
            max_output_tokens: reader.small()?,
            tenant: reader.number()?,
            priority: reader.signed()?.try_into().ok()?,
            salt: reader.number()?,
            hashes: words(reader)?,
        };
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

impl Gauges {
    fn list(&self) -> [u32; 4] {
        [self.num_running, self.num_waiting, self.num_swapped, self.live_blocks]
    }

    fn from_list([num_running, num_waiting, num_swapped, live_blocks]: [u32; 4]) -> Self {
        Self { num_running, num_waiting, num_swapped, live_blocks }
    }
}

fn put_words(bytes: &mut Vec<u8>, words: &[u64]) {
    put(bytes, words.len() as u64);
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
}

fn words(reader: &mut Reader<'_>) -> Option<Vec<u64>> {
    (0..reader.len()?).map(|_| reader.word()).collect()
}

fn put_numbers(bytes: &mut Vec<u8>, numbers: &[u64]) {
    put(bytes, numbers.len() as u64);
    numbers.iter().for_each(|number| put(bytes, *number));
}

fn numbers(reader: &mut Reader<'_>) -> Option<Vec<u64>> {
    (0..reader.len()?).map(|_| reader.number()).collect()
}

fn finish_code(reason: FinishReason) -> u8 {
    match reason {
        FinishReason::Stop => 1,
        FinishReason::Length => 2,
        FinishReason::Abort => 3,
        FinishReason::Error => 4,
    }
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
            Call::Abort { seq: 8 },
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
