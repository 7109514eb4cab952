//! What each API key may use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use parking_lot::Mutex;

use super::auth::KeyId;
use super::error::ApiError;

/// Limits that hold for each key by itself; where there are no keys, for everybody together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyLimits {
    /// Requests at the same time.
    pub(crate) max_requests: Option<usize>,
    /// Tokens, of prompts and generated, over a minute.
    pub(crate) tokens_per_minute: Option<u64>,
}

/// What the keys use now. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyUse {
    limits: KeyLimits,
    keys: Arc<Mutex<HashMap<KeyId, Account>>>,
}

#[derive(Debug)]
struct Account {
    num_open: usize,
    /// Tokens that may be used; below zero after a request that used more than was left.
    tokens: f64,
    as_of: Instant,
}

/// A request of a key, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct KeyGuard {
    keys: KeyUse,
    key: KeyId,
}

impl KeyUse {
    pub(crate) fn new(limits: KeyLimits) -> Self {
        Self { limits, keys: Arc::default() }
    }

    /// Begins a request of `key`.
    ///
    /// # Errors
    ///
    /// 429 where the key has used up what it may.
    pub(crate) fn open(&self, key: KeyId, now: Instant) -> Result<KeyGuard, ApiError> {
        let mut keys = self.keys.lock();
        let full = self.limits.tokens_per_minute.unwrap_or(0) as f64;
        let account = keys.entry(key).or_insert(Account { num_open: 0, tokens: full, as_of: now });
        account.refill(full, now);
        if let Some(max_requests) = self.limits.max_requests
            && account.num_open >= max_requests
        {
            let message = format!("{max_requests} requests of this key are being answered, no more may be");
            return Err(too_many(message, Duration::from_secs(1)));
        }
        if full > 0.0 && account.tokens <= 0.0 {
            let message = format!("this key has used its {full} tokens a minute");
            return Err(too_many(message, Duration::from_secs_f64((1.0 - account.tokens) * 60.0 / full)));
        }
        account.num_open += 1;
        Ok(KeyGuard { keys: self.clone(), key })
    }
}

impl Account {
    /// A bucket that is full after a minute.
    fn refill(&mut self, full: f64, now: Instant) {
        let minutes = now.saturating_duration_since(self.as_of).as_secs_f64() / 60.0;
        self.tokens = (self.tokens + minutes * full).min(full);
        self.as_of = now;
    }
}

impl KeyGuard {
    /// Takes tokens off the key's account.
    pub(crate) fn charge(&self, num_tokens: u64) {
        if self.keys.limits.tokens_per_minute.is_some()
            && let Some(account) = self.keys.keys.lock().get_mut(&self.key)
        {
            account.tokens -= num_tokens as f64;
        }
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        if let Some(account) = self.keys.keys.lock().get_mut(&self.key) {
            account.num_open -= 1;
        }
    }
}

fn too_many(message: String, wait: Duration) -> ApiError {
    let retry_after_s = Some(wait.as_secs_f64().ceil() as u64);
    ApiError { retry_after_s, ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_take_from_each_other() {
        let keys = KeyUse::new(KeyLimits { max_requests: Some(1), tokens_per_minute: None });
        let now = Instant::now();
        let first = keys.open(KeyId(0), now).expect("the first");
        assert_eq!(keys.open(KeyId(0), now).expect_err("the second").retry_after_s, Some(1));
        assert!(keys.open(KeyId(1), now).is_ok());
        drop(first);
        assert!(keys.open(KeyId(0), now).is_ok());
    }

    #[test]
    fn tokens_come_back_over_a_minute() {
        let keys = KeyUse::new(KeyLimits { max_requests: None, tokens_per_minute: Some(600) });
        let now = Instant::now();
        keys.open(KeyId(0), now).expect("a full account").charge(700);
        // 101 tokens are missing, 10 come a second.
        assert_eq!(keys.open(KeyId(0), now).expect_err("an empty account").retry_after_s, Some(11));
        assert!(keys.open(KeyId(0), now + Duration::from_secs(9)).is_err());
        assert!(keys.open(KeyId(0), now + Duration::from_secs(11)).is_ok());
    }
}
