//! The connection with one device.

use std::ffi::c_int;
use std::sync::Arc;
use std::thread;

use cust::context::Context as PrimaryContext;
use cust::device::{Device, DeviceAttribute};
use quire_kernels::{DeviceId, Error as KernelError, Result};

use crate::Error;
use crate::ffi;
use crate::pace::Pace;
use crate::status::{DriverError, check};
use crate::trampoline::{self, Library};

/// The oldest driver that the kernels run on: cuLaunchKernelEx and the images need it.
const MIN_DRIVER: c_int = 12_000;

/// What a device is, as kernels are chosen by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) name: String,
    pub(crate) compute_capability: (u32, u32),
    pub(crate) num_sms: u32,
    /// Shared memory that a block may ask for.
    pub(crate) max_shared_bytes: u32,
    pub(crate) total_bytes: usize,
}

/// The primary context of a device, shared by all that lives on it.
pub(crate) struct Context {
    primary: PrimaryContext,
    id: DeviceId,
    ordinal: usize,
    /// `cuda:0`, for errors.
    name: String,
    properties: Properties,
    has_processors_to_spare: bool,
    pace: Pace,
}

impl Context {
    /// Opens device `ordinal`.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        let driver = trampoline::driver()?;
        tracing::debug!(target: "quire::kernels", library = driver.name(), "driver loaded");
        check_symbols(driver)?;
        check_driver()?;
        let num_devices = num_devices()?;
        if ordinal >= num_devices {
            return Err(Error::NoSuchDevice { ordinal, num_devices });
        }
        let failed =
            |call| move |error| Error::Driver { ordinal, source: DriverError::from_cust(call, error) };
        let device = Device::get_device(ordinal as u32).map_err(failed("cuDeviceGet"))?;
        let properties = properties(device).map_err(failed("cuDeviceGetAttribute"))?;
        let primary = PrimaryContext::new(device).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let name = format!("cuda:{ordinal}");
        let has_processors_to_spare = thread::available_parallelism().is_ok_and(|n| n.get() >= 4);
        Ok(Arc::new(Self {
            primary,
            id: DeviceId::unique(),
            ordinal,
            name,
            properties,
            has_processors_to_spare,
            pace: Pace::default(),
        }))
    }

    /// Which device, of this process.
    pub(crate) fn id(&self) -> DeviceId {
        self.id
    }

    /// Its name in errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The CUDA version that the driver supports.
    pub(crate) fn driver_version(&self) -> String {
        let mut found = 0;
        // SAFETY: one number is written.
        unsafe { ffi::cuDriverGetVersion(&mut found) };
        version(found)
    }

    /// Whether a thread that waits for the device may do so awake.
    pub(crate) fn has_processors_to_spare(&self) -> bool {
        self.has_processors_to_spare
    }

    /// How long its users wait.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Makes the context current on this thread. Every entry point does, since any thread may call it.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        self.check("cuCtxSetCurrent", unsafe { ffi::cuCtxSetCurrent(self.primary.as_raw()) })
    }

    /// Turns a result of the driver into an error of this device.
    pub(crate) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        check(call, code).map_err(|error| error.on(&self.name))
    }

    /// An error of `cust` as one of this device.
    pub(crate) fn failed(&self, call: &'static str, error: cust::error::CudaError) -> KernelError {
        DriverError::from_cust(call, error).on(&self.name)
    }

    /// An error of this device as one of setting it up.
    pub(crate) fn refused(&self, source: DriverError) -> Error {
        Error::Driver { ordinal: self.ordinal, source }
    }

    /// Free and total memory of the device.
    pub(crate) fn memory_info(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two numbers are written.
        self.check("cuMemGetInfo", unsafe { ffi::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// The refusal of an allocation.
    pub(crate) fn out_of_memory(&self, wanted_bytes: usize, free_bytes: usize) -> KernelError {
        KernelError::OutOfMemory { device: self.name.clone(), wanted_bytes, free_bytes }
    }
}

/// Whether the library is the driver, and new enough.
fn check_symbols(driver: &Library) -> Result<(), Error> {
    if driver.symbol("cuInit").is_none() {
        return Err(Error::NotADriver { library: driver.name().to_owned(), symbol: "cuInit" });
    }
    if driver.symbol("cuLaunchKernelEx").is_none() {
        return Err(Error::OldDriver { found: "11.7 or less".to_owned(), needed: version(MIN_DRIVER) });
    }
    Ok(())
}

fn check_driver() -> Result<(), Error> {
    // SAFETY: no pointers.
    let code = unsafe { ffi::cuInit(0) };
    check("cuInit", code).map_err(|error| Error::NoDevice { reason: error.to_string() })?;
    let mut found = 0;
    // SAFETY: one number is written.
    let code = unsafe { ffi::cuDriverGetVersion(&mut found) };
    check("cuDriverGetVersion", code).map_err(|error| Error::NoDevice { reason: error.to_string() })?;
    if found < MIN_DRIVER {
        return Err(Error::OldDriver { found: version(found), needed: version(MIN_DRIVER) });
    }
    Ok(())
}

fn num_devices() -> Result<usize, Error> {
    let mut count = 0;
    // SAFETY: one number is written.
    let code = unsafe { ffi::cuDeviceGetCount(&mut count) };
    check("cuDeviceGetCount", code).map_err(|error| Error::NoDevice { reason: error.to_string() })?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Error::NoDevice { reason: "it counts 0 devices".to_owned() }),
    }
}

fn properties(device: Device) -> cust::error::CudaResult<Properties> {
    let attribute = |which| device.get_attribute(which).map(|value| u32::try_from(value).unwrap_or(0));
    let (mut max_shared_bytes, id) = (0, ffi::MAX_SHARED_BYTES_OPT_IN);
    // SAFETY: one number is written.
    if unsafe { ffi::cuDeviceGetAttribute(&mut max_shared_bytes, id, device.as_raw()) } != ffi::SUCCESS {
        max_shared_bytes = 48 << 10;
    }
    Ok(Properties {
        name: device.name()?,
        compute_capability: (
            attribute(DeviceAttribute::ComputeCapabilityMajor)?,
            attribute(DeviceAttribute::ComputeCapabilityMinor)?,
        ),
        num_sms: attribute(DeviceAttribute::MultiprocessorCount)?,
        max_shared_bytes: u32::try_from(max_shared_bytes).unwrap_or(0),
        total_bytes: device.total_memory()?,
    })
}

/// 12040 as 12.4.
fn version(number: c_int) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_library_in_place_of_the_driver_is_said_to_be_none() {
        let library = Library::open("a test", &["libc.so.6"]).unwrap();
        let text = check_symbols(&library).unwrap_err().to_string();
        assert!(text.contains("libc.so.6") && text.contains("cuInit") && !text.contains("11.7"), "{text}");
    }

    #[test]
    fn versions_read_as_users_know_them() {
        assert_eq!(
            (version(12_000), version(12_080), version(13_000)),
            ("12.0".into(), "12.8".into(), "13.0".into())
        );
    }
}
