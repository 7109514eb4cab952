//! Kernel backends by the name that a user gives, `--device NAME`.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use quire_kernels::{DType, Kernels};
use quire_kernels_cuda::{CudaConfig, KernelTuning};

use crate::error::with_causes;

/// What a user may say about a backend, beside its name.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct BackendOptions {
    /// Threads of a backend that computes on the host; `None` leaves the number to it.
    pub num_threads: Option<usize>,
    /// Which device of the backend, for one that has several: the `N` of `--device NAME:N`.
    pub ordinal: usize,
    /// What activations are computed in, where the backend has a choice; `None` leaves it to the backend.
    pub dtype: Option<DType>,
    /// Whether a row's result must not depend on the rows beside it, bit for bit.
    pub deterministic: bool,
    /// What `quire tune-kernels` found, for the CUDA backend.
    pub kernel_tuning: Option<Arc<KernelTuning>>,
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
    /// A device number that is none.
    #[error("the device `{given}` is none: expected a name, or a name and a number such as cuda:1")]
    Ordinal {
        /// The text.
        given: String,
    },
    /// Kernels are tuned for a GPU alone.
    #[error("no kernels are tuned for the device `{given}`: --device takes cuda or cuda:N here")]
    NotTunable {
        /// The device.
        given: String,
    },
    /// The device whose kernels were to be tuned cannot be used.
    #[error("the device `{name}` cannot be used, so nothing was tuned")]
    NotTuned {
        /// Its name, with its number where one was given.
        name: String,
        /// What the backend says.
        #[source]
        source: BoxedError,
    },
    /// The backend cannot be used on this machine or in this program.
    #[error("the device `{name}` cannot be used{}", other_device(name))]
    Unusable {
        /// Its name, with its number where one was given.
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
/// backends.register("mine", quire::cpu_kernels);
/// assert_eq!(backends.names().collect::<Vec<_>>(), ["cpu", "cuda", "mine"]);
/// ```
pub struct BackendRegistry {
    constructors: BTreeMap<String, Constructor>,
}

impl Default for BackendRegistry {
    /// `cpu` and `cuda`.
    fn default() -> Self {
        let mut registry = Self { constructors: BTreeMap::new() };
        registry.register("cpu", |options: &BackendOptions| match options.ordinal {
            0 => cpu_kernels(options).map_err(BoxedError::from),
            other => Err(format!("there is one CPU device, cpu or cpu:0, not cpu:{other}").into()),
        });
        registry.register("cuda", cuda_kernels);
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

    /// Whether `device` names a backend, whatever becomes of it: `NAME` or `NAME:N`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] with the names known; [`BackendError::Ordinal`].
    pub fn check(&self, device: &str) -> Result<(), BackendError> {
        let (name, _) = split_device(device)?;
        if name == "auto" { Ok(()) } else { self.constructor(name).map(drop) }
    }

    /// The backend that `device` names, `NAME` or `NAME:N`. `auto` is CUDA where this program has it and a device is
    /// there, else the CPU.
    ///
    /// # Errors
    ///
    /// [`BackendError`]; for an unknown name with those known.
    pub fn build(&self, device: &str, options: &BackendOptions) -> Result<Kernels, BackendError> {
        let (name, ordinal) = split_device(device)?;
        let options = BackendOptions { ordinal: ordinal.unwrap_or(options.ordinal), ..options.clone() };
        if name == "auto" {
            return self.build_auto(&options);
        }
        let constructor = self.constructor(name)?;
        constructor(&options).map_err(|source| BackendError::Unusable { name: device.to_owned(), source })
    }

    /// Whether a backend that `device` may mean can choose what activations are computed in. The CPU computes in float32,
    /// whatever a model is stored in.
    pub fn chooses_dtype(&self, device: &str) -> bool {
        match split_device(device) {
            Ok(("cpu", _)) => false,
            Ok(("auto", _)) => quire_kernels_cuda::IS_BUILT,
            _ => true,
        }
    }

    /// The names there are, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.constructors.keys().map(String::as_str)
    }

    fn constructor(&self, name: &str) -> Result<&Constructor, BackendError> {
        let known = || self.names().map(str::to_owned).collect();
        let unknown = || BackendError::Unknown { given: name.to_owned(), known: known() };
        self.constructors.get(name).ok_or_else(unknown)
    }

    fn build_auto(&self, options: &BackendOptions) -> Result<Kernels, BackendError> {
        if quire_kernels_cuda::IS_BUILT {
            match self.build("cuda", options) {
                Ok(kernels) => return Ok(kernels),
                Err(error) => {
                    tracing::info!(
                        target: "quire::kernels",
                        "device auto: no CUDA ({}), taking cpu",
                        with_causes(error.source().unwrap_or(&error))
                    )
                }
            }
        }
        self.build("cpu", &BackendOptions { ordinal: 0, ..options.clone() })
    }
}

impl fmt::Debug for BackendRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// What works on every machine, for what does not work on this one.
fn other_device(name: &str) -> &'static str {
    if name == "cpu" { "" } else { " (--device cpu can)" }
}

/// A device's name, and its number where one is given.
pub(crate) fn split_device(device: &str) -> Result<(&str, Option<usize>), BackendError> {
    let Some((name, number)) = device.split_once(':') else { return Ok((device, None)) };
    let ordinal = number.parse().map_err(|_| BackendError::Ordinal { given: device.to_owned() })?;
    Ok((name, Some(ordinal)))
}

/// The kernels of an NVIDIA GPU.
///
/// # Errors
///
/// [`quire_kernels_cuda::Error`]: not in this program, no driver, no such device, ...
pub fn cuda_kernels(options: &BackendOptions) -> Result<Kernels, quire_kernels_cuda::Error> {
    let config = cuda_config(options);
    match &options.kernel_tuning {
        Some(tuning) => quire_kernels_cuda::tuned_kernels(config, tuning),
        None => quire_kernels_cuda::kernels(config),
    }
}

/// The options as the backend knows them.
pub(crate) fn cuda_config(options: &BackendOptions) -> CudaConfig {
    let default = CudaConfig::default();
    CudaConfig {
        ordinal: options.ordinal,
        activation_dtype: options.dtype.unwrap_or(default.activation_dtype),
        deterministic: options.deterministic,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_name_and_perhaps_a_number() {
        assert_eq!(split_device("cuda").unwrap(), ("cuda", None));
        assert_eq!(split_device("cuda:1").unwrap(), ("cuda", Some(1)));
        let message = split_device("cuda:one").unwrap_err().to_string();
        assert_eq!(
            message,
            "the device `cuda:one` is none: expected a name, or a name and a number such as cuda:1"
        );
    }

    #[test]
    fn a_device_that_cannot_be_used_is_told_by_name_and_number_and_with_what_works() {
        let mut registry = BackendRegistry::default();
        registry.register("none", |_: &BackendOptions| Err("nothing there"));
        let text = |device| with_causes(&registry.build(device, &BackendOptions::default()).err().unwrap());
        assert_eq!(text("none:3"), "the device `none:3` cannot be used (--device cpu can): nothing there");
        registry.register("cpu", |_: &BackendOptions| Err("no memory"));
        let error = registry.build("cpu", &BackendOptions::default()).err().unwrap();
        assert_eq!(with_causes(&error), "the device `cpu` cannot be used: no memory");
    }

    #[test]
    fn the_number_reaches_the_backend_and_unknown_names_are_told_early() {
        let mut registry = BackendRegistry::default();
        registry.register("second", |options: &BackendOptions| match options.ordinal {
            1 => cpu_kernels(options).map_err(|error| error.to_string()),
            other => Err(format!("device {other}")),
        });
        assert!(registry.build("second:1", &BackendOptions::default()).is_ok());
        assert!(registry.build("second", &BackendOptions::default()).is_err());
        assert!(registry.check("second:7").is_ok() && registry.check("auto").is_ok());
        assert!(registry.chooses_dtype("second:7") && !registry.chooses_dtype("cpu:0"));
        assert!(matches!(registry.check("third"), Err(BackendError::Unknown { .. })));
    }
}
