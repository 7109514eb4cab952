//! Names of calls.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Makes the names of the calls of one output: as random as its seed, and the same for the same seed.
#[derive(Clone, Debug)]
pub(super) struct CallIds {
    seed: u64,
    form: CallIdForm,
}

/// How the names look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallIdForm {
    /// `chatcmpl-tool-` and 32 hexadecimal digits.
    Long,
    /// Nine letters and digits: the only form that Mistral's templates take back.
    Nine,
}

impl CallIds {
    pub(super) fn new(seed: u64, form: CallIdForm) -> Self {
        Self { seed, form }
    }

    pub(super) fn id(&self, index: u32) -> String {
        match self.form {
            CallIdForm::Long => {
                format!("chatcmpl-tool-{:016x}{:016x}", self.word(index, 0), self.word(index, 1))
            }
            CallIdForm::Nine => letters(self.word(index, 0)),
        }
    }

    fn word(&self, index: u32, part: u8) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, index, part).hash(&mut hasher);
        hasher.finish()
    }
}

fn letters(mut word: u64) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let next = || {
        let letter = LETTERS[(word % 62) as usize];
        word /= 62;
        char::from(letter)
    };
    std::iter::repeat_with(next).take(9).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_forms_and_differ() {
        let long = CallIds::new(1, CallIdForm::Long);
        assert_eq!(long.id(0).len(), "chatcmpl-tool-".len() + 32);
        assert_ne!(long.id(0), long.id(1));
        assert_ne!(long.id(0), CallIds::new(2, CallIdForm::Long).id(0));
        let nine = CallIds::new(1, CallIdForm::Nine).id(0);
        assert!(nine.len() == 9 && nine.chars().all(|c| c.is_ascii_alphanumeric()));
    }
}
