//! Logits processors by name.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::Value;

use crate::{LogitsProcessor, ProcessorCall};

/// Logits processors by name. Rows call them by their place in here, and they run in the order in which they came.
///
/// ```
/// use quire_executor::{LogitsProcessor, LogitsProcessors, RowLogits};
///
/// /// Adds to the logit of token 0.
/// struct Favour;
///
/// impl LogitsProcessor for Favour {
///     fn check_args(&self, args: &serde_json::Value) -> Result<(), String> {
///         args.as_f64().map(drop).ok_or_else(|| "a number".to_owned())
///     }
///
///     fn process(&mut self, rows: &mut [RowLogits<'_>]) {
///         for row in rows {
///             row.logits[0] += row.args.as_f64().unwrap_or(0.0) as f32;
///         }
///     }
/// }
///
/// let processors = LogitsProcessors::new().with("favour", || Favour);
/// assert_eq!(processors.call("favour", 2.5.into())?.processor, 0);
/// let unknown = processors.call("disfavour", 2.5.into()).unwrap_err();
/// assert_eq!(unknown.to_string(), "unknown logits processor disfavour, known are: favour");
/// let wrong = processors.call("favour", "much".into()).unwrap_err();
/// assert_eq!(wrong.to_string(), "logits processor favour is given \"much\": expected a number");
/// # Ok::<(), quire_executor::ProcessorError>(())
/// ```
#[derive(Clone, Default)]
pub struct LogitsProcessors(Vec<(String, MakeProcessor)>);

type MakeProcessor = Arc<dyn Fn() -> Box<dyn LogitsProcessor> + Send + Sync>;

/// Why a row may not have a logits processor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessorError {
    /// None of that name was registered.
    #[error("unknown logits processor {name}, known are: {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    Unknown {
        /// The name given.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Arguments that it does not take.
    #[error("logits processor {name} is given {args}: expected {rule}")]
    Args {
        /// The processor.
        name: String,
        /// What it was given.
        args: String,
        /// What it takes.
        rule: String,
    },
}

impl LogitsProcessors {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// These and one more; one of the same name is replaced. `make` is called when a device starts or is reset, and for
    /// each request whose arguments are checked.
    #[must_use]
    pub fn with<P: LogitsProcessor + 'static>(
        mut self,
        name: impl Into<String>,
        make: impl Fn() -> P + Send + Sync + 'static,
    ) -> Self {
        let (name, make): (String, MakeProcessor) = (name.into(), Arc::new(move || Box::new(make())));
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = make,
            None => self.0.push((name, make)),
        }
        self
    }

    /// The call of a processor with these arguments.
    ///
    /// # Errors
    ///
    /// [`ProcessorError`]; a panic of its [`check_args`](LogitsProcessor::check_args) is a refusal as well.
    pub fn call(&self, name: &str, args: Value) -> Result<ProcessorCall, ProcessorError> {
        let Some(idx) = self.names().position(|known| known == name) else {
            let known = self.names().map(str::to_owned).collect();
            return Err(ProcessorError::Unknown { name: name.to_owned(), known });
        };
        let make = &self.0[idx].1;
        let checked = catch_unwind(AssertUnwindSafe(|| make().check_args(&args)));
        match checked.unwrap_or_else(|_| Err("arguments that its check does not panic on".to_owned())) {
            Ok(()) => Ok(ProcessorCall { processor: idx as u32, args }),
            Err(rule) => Err(ProcessorError::Args { name: name.to_owned(), args: args.to_string(), rule }),
        }
    }

    /// Their names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn make(&self) -> Vec<Box<dyn LogitsProcessor>> {
        self.0.iter().map(|(_, make)| make()).collect()
    }
}

impl fmt::Debug for LogitsProcessors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RowLogits;

    struct Picky;

    impl LogitsProcessor for Picky {
        fn check_args(&self, args: &Value) -> Result<(), String> {
            assert!(args.is_null(), "nobody may ask");
            Ok(())
        }

        fn process(&mut self, _rows: &mut [RowLogits<'_>]) {}
    }

    #[test]
    fn a_check_that_panics_is_a_refusal() {
        let processors = LogitsProcessors::new().with("picky", || Picky);
        assert!(processors.call("picky", Value::Null).is_ok());
        assert!(matches!(processors.call("picky", 1.into()), Err(ProcessorError::Args { .. })));
    }

    #[test]
    fn one_of_the_same_name_takes_its_place() {
        let processors = LogitsProcessors::new().with("a", || Picky).with("b", || Picky).with("a", || Picky);
        assert_eq!(processors.names().collect::<Vec<_>>(), ["a", "b"]);
        let known = LogitsProcessors::new().call("a", Value::Null).unwrap_err().to_string();
        assert_eq!(known, "unknown logits processor a, known are: none");
    }
}
