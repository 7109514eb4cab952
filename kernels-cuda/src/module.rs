//! Loaded kernel images.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Error;
use crate::context::{Context, Properties};
use crate::ffi::{self, CUfunction, CUmodule};
use crate::images::{self, Image};
use crate::status::check;

/// The kernel families that were asked for so far.
pub(crate) struct Modules {
    context: Arc<Context>,
    loaded: Mutex<BTreeMap<&'static str, Arc<Module>>>,
}

impl Modules {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), loaded: Mutex::new(BTreeMap::new()) }
    }

    /// A kernel; its family is loaded at the first request.
    pub(crate) fn kernel(&self, family: &'static str, name: &str) -> Result<Kernel, Error> {
        let mut loaded = self.loaded.lock();
        let module = match loaded.entry(family) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Module::load(&self.context, family)?),
        };
        module.kernel(name)
    }
}

/// A kernel family, loaded.
pub(crate) struct Module {
    context: Arc<Context>,
    family: &'static str,
    raw: CUmodule,
}

// SAFETY: a handle of the driver, which may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; a shared module is only asked for functions.
unsafe impl Sync for Module {}

impl Module {
    /// Loads the image of `family` that fits the device.
    pub(crate) fn load(context: &Arc<Context>, family: &'static str) -> Result<Arc<Self>, Error> {
        let properties = context.properties();
        let (major, minor) = properties.compute_capability;
        let image = images::select(images::embedded(), family, (major, minor));
        Self::load_image(context, image.ok_or_else(|| no_image(family, properties))?)
    }

    fn load_image(context: &Arc<Context>, image: &'static Image) -> Result<Arc<Self>, Error> {
        context.bind()?;
        let mut raw = null_mut();
        // SAFETY: the image is a whole cubin, or PTX that ends with a zero, and lives as long as the program.
        let code = unsafe { ffi::cuModuleLoadData(&mut raw, image.data.as_ptr().cast()) };
        check("cuModuleLoadData", code).map_err(|error| match error.code {
            200..=299 => {
                let (family, arch, driver) = (image.family, image.arch, context.driver_version());
                Error::ImageRefused { family, arch, driver, source: Box::new(error) }
            }
            _ => context.refused(error),
        })?;
        tracing::debug!(target: "quire::kernels", family = image.family, arch = image.arch, "kernels loaded");
        Ok(Arc::new(Self { context: context.clone(), family: image.family, raw }))
    }

    /// A kernel of the family.
    pub(crate) fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel, Error> {
        self.context.bind()?;
        let missing = || Error::NoKernel { family: self.family, kernel: name.to_owned() };
        let text = CString::new(name).map_err(|_| missing())?;
        let mut function = null_mut();
        // SAFETY: the module is loaded, the name ends with a zero.
        let code = unsafe { ffi::cuModuleGetFunction(&mut function, self.raw, text.as_ptr()) };
        if code == ffi::NOT_FOUND {
            return Err(missing());
        }
        check("cuModuleGetFunction", code).map_err(|error| self.context.refused(error))?;
        Ok(Kernel { function, module: self.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: every kernel holds its module, so none is left. A lost device has unloaded it already.
            unsafe { ffi::cuModuleUnload(self.raw) };
        }
    }
}

/// Why a device has no image: it is not built in, or the device is too old for any.
fn no_image(family: &'static str, properties: &Properties) -> Error {
    let (device, (major, minor)) = (properties.name.clone(), properties.compute_capability);
    match images::arch_of((major, minor)) {
        Some(arch) => {
            let built = images::built(images::embedded(), family);
            Error::NoImage { family, device, major, minor, built, arch }
        }
        None => Error::OldDevice { device, major, minor },
    }
}

/// A kernel that can be launched.
#[derive(Clone)]
pub(crate) struct Kernel {
    function: CUfunction,
    module: Arc<Module>,
}

// SAFETY: a handle of the driver, which may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; what a shared kernel does is ask the driver and be launched.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub(crate) fn function(&self) -> CUfunction {
        self.function
    }

    /// Lets launches ask for up to `bytes` of dynamic shared memory; without it 48 KiB are the limit.
    pub(crate) fn allow_shared_bytes(&self, bytes: u32) -> Result<(), Error> {
        let context = &self.module.context;
        context.bind()?;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function is one of a loaded module.
        let code = unsafe { ffi::cuFuncSetAttribute(self.function, ffi::MAX_DYNAMIC_SHARED_BYTES, bytes) };
        check("cuFuncSetAttribute", code).map_err(|error| context.refused(error))
    }
}

/// The address of a value as the driver takes the parameter of a kernel.
pub(crate) fn parameter<P>(params: &P) -> *mut c_void {
    (params as *const P).cast_mut().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;

    #[test]
    fn a_device_without_an_image_is_told_what_to_build_or_that_it_is_too_old() {
        let text = |compute_capability| {
            let name = "a GPU".to_owned();
            let (num_sms, max_shared_bytes, total_bytes) = (1, 0, 0);
            let properties = Properties { name, compute_capability, num_sms, max_shared_bytes, total_bytes };
            no_image("norm", &properties).to_string()
        };
        let newer = text((10, 3));
        assert!(newer.contains("build-kernels --arch compute_100`"), "{newer}");
        let older = text((7, 5));
        assert!(older.contains("7.5") && older.contains("8.0") && !older.contains("build"), "{older}");
    }

    #[test]
    fn an_image_that_the_driver_does_not_load_is_told_with_what_to_do() {
        let Some(device) = gpu() else { return };
        static BROKEN: Image = Image { family: "broken", arch: "sm_90a", data: b"no image at all\0" };
        let error = Module::load_image(device.context(), &BROKEN).err().unwrap();
        assert!(matches!(error, Error::ImageRefused { family: "broken", .. }), "{error}");
        device.set_current().unwrap();
    }
}
