//! Calls as bytes, each as a difference to what came before.

use super::call::{Added, Base, Call, Committed, Gauges, Planned, tag};
use super::codec::{put, put_signed};
use crate::sequence::FinishReason;

impl Base {
    /// Appends a call, as a difference to what came before.
    pub(super) fn encode(&mut self, call: &Call, bytes: &mut Vec<u8>) {
        match call {
            Call::Base(base) => {
                *self = *base;
                self.encode_base(bytes);
            }
            Call::Add(added) => self.encode_add(added, bytes),
            Call::Schedule { now, planned: None } => {
                bytes.push(tag::IDLE);
                self.put_now(*now, bytes);
            }
            Call::Schedule { now, planned: Some(planned) } => self.encode_plan(*now, planned, bytes),
            Call::Commit(committed) => self.encode_commit(committed, bytes),
            Call::Abort { seq } => self.put_of(tag::ABORT, *seq, bytes),
            Call::Hold { seq, reason } => {
                self.put_of(tag::HOLD, *seq, bytes);
                bytes.push(reason.code());
            }
            Call::Release { seq, reason } => {
                self.put_of(tag::RELEASE, *seq, bytes);
                bytes.push(reason.code());
            }
            Call::Fork { parent, num_tokens, num_children, hashes } => {
                self.put_of(tag::FORK, *parent, bytes);
                put(bytes, (*num_tokens).into());
                put(bytes, (*num_children).into());
                put_words(bytes, hashes);
                self.next_seq += u64::from(*num_children);
            }
            Call::ForkWith { parent, num_tokens, hashes } => {
                self.put_of(tag::FORK_WITH, *parent, bytes);
                put(bytes, (*num_tokens).into());
                put_words(bytes, hashes);
                self.next_seq += 1;
            }
            Call::ReplaceLast { seq, hashes } => {
                self.put_of(tag::REPLACE_LAST, *seq, bytes);
                put_words(bytes, hashes);
            }
            Call::ResetPrefixCache => bytes.push(tag::RESET_PREFIX_CACHE),
            Call::Pin { salt, num_tokens, hashes } => {
                bytes.push(tag::PIN);
                put(bytes, *salt);
                put(bytes, (*num_tokens).into());
                put_words(bytes, hashes);
            }
            Call::Unpin { pin } => {
                bytes.push(tag::UNPIN);
                put(bytes, *pin);
            }
            Call::FailOpenSteps => bytes.push(tag::FAIL_OPEN_STEPS),
            Call::FinishTransfers { transfers } => {
                bytes.push(tag::FINISH_TRANSFERS);
                put_numbers(bytes, transfers);
            }
            Call::SetRates { swap_bytes_per_s, prefill_tokens_per_s } => {
                bytes.push(tag::SET_RATES);
                for rate in [swap_bytes_per_s, prefill_tokens_per_s] {
                    bytes.extend_from_slice(&rate.to_bits().to_le_bytes());
                }
            }
            Call::Checkpoint { words } => {
                bytes.push(tag::CHECKPOINT);
                put_numbers(bytes, words);
            }
        }
    }

    fn encode_base(&self, bytes: &mut Vec<u8>) {
        bytes.push(tag::BASE);
        let Self { now, next_seq, step, context_tokens, digest, gauges } = *self;
        for number in [now, next_seq, step, context_tokens, digest] {
            put(bytes, number);
        }
        gauges.list().iter().for_each(|&gauge| put(bytes, gauge.into()));
    }

    fn encode_add(&mut self, added: &Added, bytes: &mut Vec<u8>) {
        bytes.push(tag::ADD);
        self.put_seq(added.seq, bytes);
        put_signed(bytes, added.arrival.wrapping_sub(self.now) as i64);
        put(bytes, added.prompt_tokens.into());
        put(bytes, added.max_output_tokens.into());
        put(bytes, added.tenant);
        put_signed(bytes, added.priority.into());
        put(bytes, added.salt);
        bytes.push(u8::from(added.runs_ahead) | u8::from(added.is_sibling) << 1);
        put_words(bytes, &added.hashes);
        self.next_seq = added.seq.wrapping_add(1);
    }

    fn encode_plan(&mut self, now: u64, planned: &Planned, bytes: &mut Vec<u8>) {
        let work = &planned.work;
        let only_decodes = work.num_rows == work.num_decodes && work.swapped_blocks == 0;
        bytes.push(if only_decodes { tag::PLAN_OF_DECODES } else { tag::PLAN });
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
        bytes.push(if as_usual { tag::COMMIT_AS_USUAL } else { tag::COMMIT });
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

    /// The beginning of a call about a sequence.
    fn put_of(&self, tag: u8, seq: u64, bytes: &mut Vec<u8>) {
        bytes.push(tag);
        self.put_seq(seq, bytes);
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
}

fn put_words(bytes: &mut Vec<u8>, words: &[u64]) {
    put(bytes, words.len() as u64);
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
}

fn put_numbers(bytes: &mut Vec<u8>, numbers: &[u64]) {
    put(bytes, numbers.len() as u64);
    numbers.iter().for_each(|number| put(bytes, *number));
}

fn finish_code(reason: FinishReason) -> u8 {
    match reason {
        FinishReason::Stop => 1,
        FinishReason::Length => 2,
        FinishReason::Abort => 3,
        FinishReason::Error => 4,
    }
}
