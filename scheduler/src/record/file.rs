//! A recording as a file.
//!
//! ```text
//! QUIREREC, version u16, header length u32, header (JSON), its checksum u64,
//! number of chunks u32, for each: length u32, checksum u64, calls; QUIREEND
//! ```
//!
//! Numbers are little-endian. A checksum is FNV-1a.

use std::sync::Arc;

use quire_kvcache::{KvCacheConfig, KvCacheManager, KvGroup};
use serde::{Deserialize, Serialize};

use super::call::{Base, Call};
use super::codec::Reader;
use super::error::RecordingError;
use crate::config::SchedulerConfig;
use crate::policies::PolicyRegistry;
use crate::policy::SchedulerPolicy;
use crate::scheduler::Scheduler;

/// The version that files are written in, and the only one that is read.
pub const FORMAT_VERSION: u16 = 5;

const MAGIC: &[u8; 8] = b"QUIREREC";
const END: &[u8; 8] = b"QUIREEND";

/// What a flight recorder has kept.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    pub(super) header: Header,
    pub(super) chunks: Vec<Arc<[u8]>>,
}

/// What a scheduler was made of, and how far it came.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) policy: String,
    pub(super) scheduler: SchedulerConfig,
    pub(super) pool: Pool,
    /// Bytes at the beginning that were overwritten.
    pub(super) dropped_bytes: u64,
    /// Steps planned, and the digest of their plans.
    pub(super) num_steps: u64,
    pub(super) digest: u64,
}

/// The pool, without the key of its hashes, which is nobody else's business.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Pool {
    num_blocks: u32,
    block_size: u32,
    block_bytes: u64,
    watermark: f64,
    enable_prefix_caching: bool,
    num_swap_blocks: u32,
    #[serde(default)]
    max_pinned_bytes: u64,
}

impl Header {
    pub(super) fn of(scheduler: &Scheduler) -> Self {
        let cache = scheduler.cache().config();
        Self {
            policy: scheduler.policy_name().to_owned(),
            scheduler: scheduler.effective_config().clone(),
            pool: Pool {
                num_blocks: cache.num_blocks,
                block_size: cache.block_size,
                block_bytes: cache.groups.iter().map(|group| group.block_bytes).sum(),
                watermark: cache.watermark,
                enable_prefix_caching: cache.enable_prefix_caching,
                num_swap_blocks: cache.num_swap_blocks,
                max_pinned_bytes: cache.max_pinned_bytes,
            },
            dropped_bytes: 0,
            num_steps: 0,
            digest: 0,
        }
    }
}

impl Recording {
    /// The limits of the recorded scheduler.
    pub fn scheduler_config(&self) -> &SchedulerConfig {
        &self.header.scheduler
    }

    /// The recorded pool.
    pub fn cache_config(&self) -> KvCacheConfig {
        let Pool { num_blocks, block_size, block_bytes, watermark, .. } = self.header.pool;
        KvCacheConfig {
            watermark,
            enable_prefix_caching: self.header.pool.enable_prefix_caching,
            num_swap_blocks: self.header.pool.num_swap_blocks,
            max_pinned_bytes: self.header.pool.max_pinned_bytes,
            groups: vec![KvGroup { block_bytes, ..KvGroup::default() }],
            ..KvCacheConfig::new(num_blocks, block_size)
        }
    }

    /// The name of the recorded policy.
    pub fn policy_name(&self) -> &str {
        &self.header.policy
    }

    /// The recorded policy, as it was at its beginning.
    ///
    /// # Errors
    /// [`RecordingError::Policy`] where nobody registered it.
    pub fn policy(&self, policies: &PolicyRegistry) -> Result<Box<dyn SchedulerPolicy>, RecordingError> {
        Ok(policies.build(&self.header.policy)?)
    }

    /// Bytes of the recorded calls.
    pub fn num_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len()).sum()
    }

    /// Bytes at the beginning that were overwritten.
    pub fn dropped_bytes(&self) -> u64 {
        self.header.dropped_bytes
    }

    pub(super) fn scheduler(&self, policy: Box<dyn SchedulerPolicy>) -> Result<Scheduler, RecordingError> {
        let config = |reason: &dyn std::fmt::Display| RecordingError::Config { reason: reason.to_string() };
        let cache = KvCacheManager::new(self.cache_config()).map_err(|error| config(&error))?;
        Scheduler::new(self.header.scheduler.clone(), policy, cache).map_err(|error| config(&error))
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.num_bytes() + 4096);
        let header = serde_json::to_vec(&self.header).expect("a header is plain data with text keys");
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&checksum(&header).to_le_bytes());
        bytes.extend_from_slice(&(self.chunks.len() as u32).to_le_bytes());
        for chunk in &self.chunks {
            bytes.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&checksum(chunk).to_le_bytes());
            bytes.extend_from_slice(chunk);
        }
        bytes.extend_from_slice(END);
        bytes
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// [`RecordingError`]: it is no recording, of another version, or torn.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordingError> {
        let mut file = File { bytes, at: 0 };
        if file.bytes.get(..MAGIC.len()) != Some(MAGIC) {
            return Err(RecordingError::NotARecording);
        }
        file.at = MAGIC.len();
        let version = u16::from_le_bytes(file.array("the version is missing")?);
        if version != FORMAT_VERSION {
            return Err(RecordingError::Version { found: version, known: FORMAT_VERSION });
        }
        let len = file.length()?;
        let header = file.take(len)?;
        if file.word()? != checksum(header) {
            return Err(file.torn("the header's checksum is another"));
        }
        let header = serde_json::from_slice(header)
            .map_err(|error| RecordingError::Header { reason: error.to_string() })?;
        let mut chunks = Vec::new();
        for _ in 0..file.length()? {
            let (len, expected) = (file.length()?, file.word()?);
            let chunk = file.take(len)?;
            if checksum(chunk) != expected {
                return Err(file.torn("a chunk's checksum is another"));
            }
            chunks.push(Arc::from(chunk));
        }
        if file.bytes.get(file.at..) != Some(END) {
            return Err(file.torn("the end mark is missing"));
        }
        Ok(Self { header, chunks })
    }

    /// The calls, in order.
    pub(super) fn calls(&self) -> Calls<'_> {
        Calls { chunks: self.chunks.iter(), reader: Reader { bytes: &[] }, base: Base::default() }
    }
}

/// Reads a file from its front.
struct File<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> File<'a> {
    fn torn(&self, what: &'static str) -> RecordingError {
        RecordingError::Torn { at: self.at, len: self.bytes.len(), what }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], RecordingError> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.torn("it ends too early"))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], RecordingError> {
        self.take(N)?.try_into().map_err(|_| self.torn(what))
    }

    fn length(&mut self) -> Result<usize, RecordingError> {
        Ok(u32::from_le_bytes(self.array("a length is missing")?) as usize)
    }

    fn word(&mut self) -> Result<u64, RecordingError> {
        Ok(u64::from_le_bytes(self.array("a checksum is missing")?))
    }
}

/// FNV-1a (Fowler, Noll and Vo), 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Decodes calls.
pub(super) struct Calls<'a> {
    chunks: std::slice::Iter<'a, Arc<[u8]>>,
    reader: Reader<'a>,
    base: Base,
}

impl Calls<'_> {
    /// The state after the call given last.
    pub(super) fn base(&self) -> &Base {
        &self.base
    }
}

impl Iterator for Calls<'_> {
    type Item = Result<Call, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.reader.is_empty() {
            self.reader = Reader { bytes: self.chunks.next()? };
        }
        let left = self.reader.bytes.len();
        let call = self.base.decode(&mut self.reader);
        Some(call.ok_or_else(|| {
            self.reader = Reader { bytes: &[] };
            self.chunks = [].iter();
            RecordingError::Torn { at: 0, len: left, what: "a chunk holds bytes that are no call" }
        }))
    }
}
