//! Policies by name.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::UnknownPolicy;
use crate::policies::{Fair, Fcfs, LengthBucket, PrefixAware, Priority, ShortestFirst};
use crate::policy::SchedulerPolicy;

type Constructor = Box<dyn Fn() -> Box<dyn SchedulerPolicy> + Send + Sync>;

/// Constructors of policies by the name that a user gives, `--scheduling-policy NAME`.
///
/// ```
/// use quire_scheduler::{Fcfs, PolicyRegistry};
///
/// let mut policies = PolicyRegistry::default();
/// policies.register("mine", || Fcfs);
/// assert!(policies.build("mine").is_ok());
/// let error = policies.build("yours").err().unwrap();
/// assert_eq!(error.to_string(), "unknown scheduling policy `yours`, known are: fair, fcfs, \
///     length-bucket, mine, prefix-aware, priority, shortest-first");
/// ```
pub struct PolicyRegistry {
    constructors: BTreeMap<String, Constructor>,
}

impl Default for PolicyRegistry {
    /// The policies that ship with this crate.
    fn default() -> Self {
        let mut registry = Self { constructors: BTreeMap::new() };
        registry.register("fcfs", || Fcfs);
        registry.register("priority", Priority::default);
        registry.register("fair", Fair::default);
        registry.register("shortest-first", ShortestFirst::default);
        registry.register("prefix-aware", PrefixAware::default);
        registry.register("length-bucket", LengthBucket::default);
        registry
    }
}

impl PolicyRegistry {
    /// Adds a policy; one of the same name is replaced.
    pub fn register<P: SchedulerPolicy + 'static>(
        &mut self,
        name: impl Into<String>,
        constructor: impl Fn() -> P + Send + Sync + 'static,
    ) {
        self.constructors.insert(name.into(), Box::new(move || Box::new(constructor())));
    }

    /// Makes the policy of that name.
    ///
    /// # Errors
    /// [`UnknownPolicy`], which lists those known.
    pub fn build(&self, name: &str) -> Result<Box<dyn SchedulerPolicy>, UnknownPolicy> {
        let unknown =
            || UnknownPolicy { name: name.to_owned(), known: self.names().map(str::to_owned).collect() };
        self.constructors.get(name).map(|constructor| constructor()).ok_or_else(unknown)
    }

    /// The names there are, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.constructors.keys().map(String::as_str)
    }
}

impl fmt::Debug for PolicyRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
