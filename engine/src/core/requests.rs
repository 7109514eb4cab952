//! The requests inside the engine: which sequences they have.

use std::time::Instant;

use foldhash::{HashMap, HashMapExt};
use quire_scheduler::{FinishedSequence, SeqId};

use super::active::{ActiveRequest, NewRequest};
use super::beams::BeamGroup;
use super::inbox::RequestKey;
use crate::output::FinishReason;
use crate::request::RequestId;
use crate::text::Detokenizer;

/// All requests of the engine, by name and by sequence.
pub(super) struct Requests {
    // Boxed: what is looked up for each token is then a few pages of keys. Hashed, since keys are numbers that nobody chooses.
    by_key: HashMap<RequestKey, Box<ActiveRequest>>,
    by_seq: HashMap<SeqId, RequestKey>,
}

impl Default for Requests {
    fn default() -> Self {
        Self { by_key: HashMap::new(), by_seq: HashMap::new() }
    }
}

impl Requests {
    /// A request comes, with its first sequence.
    pub(super) fn insert(&mut self, seq: SeqId, new: NewRequest) {
        self.by_seq.insert(seq, new.key);
        self.by_key.insert(new.key, Box::new(ActiveRequest::new(seq, new)));
    }

    /// The request that a sequence belongs to.
    pub(super) fn get(&self, seq: SeqId) -> Option<&ActiveRequest> {
        self.by_key.get(self.by_seq.get(&seq)?).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, seq: SeqId) -> Option<&mut ActiveRequest> {
        self.by_key.get_mut(self.by_seq.get(&seq)?).map(Box::as_mut)
    }

    /// The sequences of a request that have not ended.
    pub(super) fn seqs_of(&self, key: RequestKey) -> Vec<SeqId> {
        self.by_key.get(&key).map_or_else(Vec::new, |request| request.seqs().map(|(seq, _)| seq).collect())
    }

    /// The sequences of the requests that their clients call by that name. O(requests).
    pub(super) fn named(&self, id: &RequestId) -> Vec<SeqId> {
        let mut named: Vec<_> = self.by_key.values().filter(|request| request.id == *id).collect();
        named.sort_unstable_by_key(|request| request.key);
        named.into_iter().flat_map(|request| request.seqs().map(|(seq, _)| seq)).collect()
    }

    /// The requests in the order in which they came. O(requests · log requests).
    fn in_order(&self) -> Vec<&ActiveRequest> {
        let mut requests: Vec<_> = self.by_key.values().map(Box::as_ref).collect();
        requests.sort_unstable_by_key(|request| request.key);
        requests
    }

    /// Requests that have not ended and have several sequences, in any order.
    pub(super) fn shared(&self) -> impl Iterator<Item = impl Iterator<Item = SeqId>> {
        let has_several = self.by_seq.len() > self.by_key.len();
        let requests = has_several.then(|| self.by_key.values()).into_iter().flatten();
        requests
            .filter(|request| request.seqs().count() > 1)
            .map(|request| request.seqs().map(|(seq, _)| seq))
    }

    /// All sequences that have not ended, with their requests and which output of those they are.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SeqId, &ActiveRequest, u32)> {
        let requests = self.in_order().into_iter();
        requests.flat_map(|request| request.seqs().map(move |(seq, index)| (seq, request, index)))
    }

    /// A request gets another sequence, for its next output.
    pub(super) fn branch(&mut self, key: RequestKey, seq: SeqId, detokenizer: Box<dyn Detokenizer>) {
        let Some(request) = self.by_key.get_mut(&key) else { return };
        request.branch(seq, detokenizer);
        self.by_seq.insert(seq, key);
    }

    /// A request gets the beams that it goes on with.
    pub(super) fn set_beams(&mut self, key: RequestKey, beams: Box<BeamGroup>) {
        let Some(request) = self.by_key.get_mut(&key) else { return };
        self.by_seq.extend(beams.seqs().map(|(seq, _)| (seq, key)));
        request.beams = Some(beams);
    }

    /// A sequence has ended. The request comes back with its last one.
    pub(super) fn end(
        &mut self,
        finished: FinishedSequence,
        reason: FinishReason,
        moment: Instant,
    ) -> Option<Box<ActiveRequest>> {
        let key = self.by_seq.remove(&finished.id)?;
        let request = self.by_key.get_mut(&key)?;
        request.end(finished, reason, moment);
        if !request.is_complete() {
            return None;
        }
        // Whoever hears of the end may come with the next one.
        request.place = None;
        self.by_key.remove(&key)
    }

    /// Takes a request out, with the sequences of it that have not ended.
    pub(super) fn remove(&mut self, seq: SeqId) -> Option<(Box<ActiveRequest>, Vec<SeqId>)> {
        let mut request = self.by_key.remove(self.by_seq.get(&seq)?)?;
        request.place = None;
        let seqs: Vec<_> = request.seqs().map(|(seq, _)| seq).collect();
        for seq in &seqs {
            self.by_seq.remove(seq);
        }
        Some((request, seqs))
    }

    /// Takes all of them out, in the order in which they came.
    pub(super) fn drain(&mut self) -> Vec<ActiveRequest> {
        self.by_seq.clear();
        let mut requests: Vec<_> = self.by_key.drain().map(|(_, request)| *request).collect();
        requests.sort_unstable_by_key(|request| request.key);
        requests
    }
}
