//! Kernel backends by the name that a user gives, `--device NAME`.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;

use quire_kernels::Kernels;

/// What a user may say about a backend, beside its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendOptions {
    /// Threads of a backend that computes on the host; `None` leaves the number to it.
    pub num_threads: Option<usize>,
}

type BoxedError = Box<dyn StdError + Send + Sync>;
type Constructor = Box<dyn Fn(&BackendOptions) -> Result<Kernels, BoxedError> + Send + Sync>;

/// Why there is no backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// A name that nobody registered.
    #[error("unknown device `{given}`, known are: auto, {}", known.join(", "))]
    Unknown {
        /// The name.
        given: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The backend cannot be used on this machine or in this program.
    #[error("the device `{name}` cannot be used")]
    Unusable {
        /// Its name.
        name: String,
        /// What the backend says.
        #[source]
        source: BoxedError,
    },
}

/// Constructors of backends by name.
///
/// ```
/// let mut backends = quire::BackendRegistry::default();
/// backends.register("mine", |_| quire_kernels_cuda::kernels(quire_kernels_cuda::CudaConfig::default()));
/// assert_eq!(backends.names().collect::<Vec<_>>(), ["cpu", "cuda", "mine"]);
/// ```
pub struct BackendRegistry {
    constructors: BTreeMap<String, Constructor>,
}

impl Default for BackendRegistry {
    /// `cpu` and `cuda`.
    fn default() -> Self {
        let mut registry = Self { constructors: BTreeMap::new() };
        registry.register("cpu", cpu_kernels);
        registry.register("cuda", |_| quire_kernels_cuda::kernels(quire_kernels_cuda::CudaConfig::default()));
        registry
    }
}

impl BackendRegistry {
    /// Adds a backend; one of the same name is replaced.
    pub fn register<E: Into<BoxedError>>(
        &mut self,
        name: impl Into<String>,
        constructor: impl Fn(&BackendOptions) -> Result<Kernels, E> + Send + Sync + 'static,
    ) {
        let constructor = move |options: &BackendOptions| constructor(options).map_err(Into::into);
        self.constructors.insert(name.into(), Box::new(constructor));
    }

    /// The backend of that name. `auto` is CUDA where this program has it and a device is there, else the CPU.
    ///
    /// # Errors
    ///
    /// [`BackendError`]; for an unknown name with those known.
    pub fn build(&self, name: &str, options: &BackendOptions) -> Result<Kernels, BackendError> {
        if name == "auto" {
            return self.build_auto(options);
        }
        let unknown = || BackendError::Unknown {
            given: name.to_owned(),
            known: self.names().map(str::to_owned).collect(),
        };
        let constructor = self.constructors.get(name).ok_or_else(unknown)?;
        constructor(options).map_err(|source| BackendError::Unusable { name: name.to_owned(), source })
    }

    /// The names there are, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.constructors.keys().map(String::as_str)
    }

    fn build_auto(&self, options: &BackendOptions) -> Result<Kernels, BackendError> {
        if quire_kernels_cuda::IS_BUILT {
            match self.build("cuda", options) {
                Ok(kernels) => return Ok(kernels),
                Err(error) => {
                    tracing::info!(target: "quire::kernels", "device auto: no CUDA ({error:?}), taking cpu")
                }
            }
        }
        self.build("cpu", options)
    }
}

impl fmt::Debug for BackendRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// The kernels of the CPU.
///
/// # Errors
///
/// [`quire_kernels::Error`] where the system refuses threads or memory.
pub fn cpu_kernels(options: &BackendOptions) -> Result<Kernels, quire_kernels::Error> {
    let config = quire_kernels_cpu::CpuConfig { threads: options.num_threads, ..Default::default() };
    quire_kernels_cpu::kernels(config)
}
