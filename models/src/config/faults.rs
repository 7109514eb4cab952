//! All that is wrong with a configuration.

use std::cell::RefCell;

use super::ConfigError;

/// What is wrong with a configuration, as far as it has been read. Reading goes on after a fault, with another value in place
/// of the one at fault, so that all faults are told at once.
#[derive(Debug, Default)]
pub(super) struct Faults(RefCell<Vec<ConfigError>>);

impl Faults {
    /// Takes a fault in. One that is about a field which has one already may be no more than what follows from that.
    pub(super) fn add(&self, fault: ConfigError) {
        let mut known = self.0.borrow_mut();
        let is_told = |field: &str| known.iter().any(|fault| fault.fields().any(|told| told == field));
        if !fault.fields().any(is_told) {
            known.push(fault);
        }
    }

    /// The value, or a fault taken in.
    pub(super) fn take<T>(&self, read: Result<T, ConfigError>) -> Option<T> {
        read.map_err(|fault| self.add(fault)).ok()
    }

    /// `read`, if nothing is wrong with it.
    pub(super) fn first_or<T>(self, read: T) -> Result<T, ConfigError> {
        self.into_vec().into_iter().next().map_or(Ok(read), Err)
    }

    /// All of them, in the order in which they were found.
    pub(super) fn into_vec(self) -> Vec<ConfigError> {
        self.0.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_one_fault_and_none_that_follows_from_it() {
        let faults = Faults::default();
        let missing = |field: &str| ConfigError::Missing { field: field.to_owned() };
        faults.add(missing("num_attention_heads"));
        faults.add(missing("num_attention_heads"));
        faults.add(ConfigError::HeadsNotDivisible {
            field: "num_attention_heads".to_owned(),
            kv_field: "num_key_value_heads".to_owned(),
            num_heads: 1,
            num_kv_heads: 2,
        });
        faults.add(missing("vocab_size"));
        assert_eq!(faults.into_vec(), [missing("num_attention_heads"), missing("vocab_size")]);
    }
}
