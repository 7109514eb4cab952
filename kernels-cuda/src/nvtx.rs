//! Named ranges of host time for NVIDIA's profilers, by the protocol of NVTX 3.
//!
//! A profiler names its library in `NVTX_INJECTION64_PATH`. Whoever has ranges to tell loads it and passes a function
//! that gives tables of function slots; the library fills the slots that it wants to hear of. Without a profiler there
//! is no library, nothing is loaded, and a range costs a look at an `Option`. The layout is that of `nvtxTypes.h` of
//! NVTX 3.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::trampoline::Library;

/// Names the profiler's library, by the protocol.
const INJECTION_VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// Says that ranges are wanted.
const SWITCH_VARIABLE: &str = "QUIRE_NVTX";

/// Slots a module, by the module's number: core, CUDA, OpenCL, CUDA runtime, domains, synchronization. Only two of the
/// first are called here; a library may want to see the others.
const NUM_SLOTS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const CORE: usize = 1;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

const CALLBACKS_TABLE: u32 = 1;
const VERSION_TABLE: u32 = 3;

/// A place for a function of the profiler.
type Slot = AtomicPtr<c_void>;
type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;

/// A profiler that listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nvtx {
    push: Push,
    pop: Pop,
}

impl Nvtx {
    /// The profiler of this process, where ranges are wanted and there is one.
    pub(crate) fn of_process() -> Option<Self> {
        static FOUND: OnceLock<Option<Nvtx>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let is_wanted = std::env::var_os(SWITCH_VARIABLE).is_some_and(|value| value == "1");
            let path = std::env::var(INJECTION_VARIABLE).ok().filter(|_| is_wanted)?;
            let found = Self::load(&path);
            match &found {
                Some(_) => tracing::info!(target: "quire::kernels", "ranges go to the profiler {path}"),
                None => tracing::warn!(target: "quire::kernels", "the profiler {path} takes no ranges"),
            }
            found
        })
    }

    fn load(path: &str) -> Option<Self> {
        let library = Library::open("the profiler's library", &[path]).ok()?;
        let initialize = library.symbol("InitializeInjectionNvtx2")?;
        // SAFETY: a function of this name has this type, by the protocol.
        let initialize = unsafe { std::mem::transmute::<*mut c_void, Initialize>(initialize) };
        Self::attach(initialize)
    }

    /// Lets a profiler fill the slots.
    fn attach(initialize: Initialize) -> Option<Self> {
        // SAFETY: the function asks for tables and fills slots, which live as long as the process.
        if unsafe { initialize(export_table) } == 0 {
            return None;
        }
        let slot = |index: usize| {
            let function = tables().slots[CORE][index].load(Ordering::Acquire);
            (!function.is_null()).then_some(function)
        };
        let (push, pop) = (slot(RANGE_PUSH)?, slot(RANGE_POP)?);
        // SAFETY: what a profiler puts in these slots has these types, by the protocol.
        let (push, pop) = unsafe {
            (std::mem::transmute::<*mut c_void, Push>(push), std::mem::transmute::<*mut c_void, Pop>(pop))
        };
        Some(Self { push, pop })
    }

    /// Starts a range on this thread, inside of those that it has open.
    pub(crate) fn push(&self, name: fmt::Arguments<'_>) {
        // A name never holds a zero; one that did would be cut there.
        let name = CString::new(name.to_string()).unwrap_or_default();
        // SAFETY: a text that ends with a zero; the profiler copies it.
        unsafe { (self.push)(name.as_ptr()) };
    }

    /// Ends the innermost range of this thread.
    pub(crate) fn pop(&self) {
        // SAFETY: no argument.
        unsafe { (self.pop)() };
    }
}

/// The slots, and for each module the table of where they are, with a null at its end.
struct Tables {
    slots: [Vec<Slot>; 7],
    addresses: [Vec<*const Slot>; 7],
}

// SAFETY: the addresses are those of the slots, which live as long and are atomic.
unsafe impl Sync for Tables {}
// SAFETY: as above.
unsafe impl Send for Tables {}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let slots = NUM_SLOTS.map(|n| (0..n).map(|_| Slot::default()).collect::<Vec<_>>());
        let addresses = std::array::from_fn(|module: usize| {
            let of_slot = |(i, slot): (usize, &Slot)| if i == 0 { null() } else { slot as *const Slot };
            slots[module].iter().enumerate().map(of_slot).chain([null()]).collect()
        });
        Tables { slots, addresses }
    })
}

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_bytes: usize,
    module_table: unsafe extern "C" fn(c_int, *mut *const *const Slot, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct Version {
    struct_bytes: usize,
    version: u32,
    reserved: u32,
    set_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { struct_bytes: size_of::<Callbacks>(), module_table };
static VERSION: Version =
    Version { struct_bytes: size_of::<Version>(), version: 3, reserved: 0, set_version };

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        CALLBACKS_TABLE => (&raw const CALLBACKS).cast(),
        VERSION_TABLE => (&raw const VERSION).cast(),
        _ => null(),
    }
}

/// Where the slots of a module are, and how many; 0 for a module that there is not.
///
/// # Safety
///
/// Where the two are not null, an address and a number can be written there.
unsafe extern "C" fn module_table(module: c_int, table: *mut *const *const Slot, size: *mut c_uint) -> c_int {
    let Some(module) = usize::try_from(module).ok().filter(|m| (1..NUM_SLOTS.len()).contains(m)) else {
        return 0;
    };
    // SAFETY: as the caller promises.
    unsafe {
        if !table.is_null() {
            *table = tables().addresses[module].as_ptr();
        }
        if !size.is_null() {
            *size = NUM_SLOTS[module] as c_uint;
        }
    }
    1
}

/// A profiler says which version it knows, which changes nothing.
extern "C" fn set_version(_version: u32) {}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ffi::CStr;
    use std::ptr::null_mut;

    use super::*;

    thread_local! {
        static HEARD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn hear_push(name: *const c_char) -> c_int {
        // SAFETY: ranges have names that end with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        HEARD.with_borrow_mut(|heard| heard.push(name));
        0
    }

    unsafe extern "C" fn hear_pop() -> c_int {
        HEARD.with_borrow_mut(|heard| heard.push("end".to_owned()));
        0
    }

    /// What a profiler does.
    unsafe extern "C" fn listen(export_table: extern "C" fn(u32) -> *const c_void) -> c_int {
        assert!(export_table(2).is_null());
        // SAFETY: the tables of these numbers have these types.
        let (callbacks, version) =
            unsafe { (&*export_table(1).cast::<Callbacks>(), &*export_table(3).cast::<Version>()) };
        assert_eq!((callbacks.struct_bytes, version.struct_bytes, version.version), (16, 24, 3));
        (version.set_version)(3);
        let (mut table, mut size) = (null(), 0);
        // SAFETY: an address and a number are written.
        let is_there = unsafe { (callbacks.module_table)(1, &mut table, &mut size) };
        assert_eq!((is_there, size), (1, 16));
        // SAFETY: no place to write to.
        assert_eq!(unsafe { (callbacks.module_table)(7, null_mut(), null_mut()) }, 0);
        // SAFETY: the table has so many addresses of slots, and a null behind them.
        unsafe {
            assert!((*table).is_null() && (*table.add(16)).is_null());
            (**table.add(RANGE_PUSH)).store(hear_push as *mut c_void, Ordering::Release);
            (**table.add(RANGE_POP)).store(hear_pop as *mut c_void, Ordering::Release);
        }
        1
    }

    unsafe extern "C" fn refuse(_: extern "C" fn(u32) -> *const c_void) -> c_int {
        0
    }

    #[test]
    fn a_profiler_hears_of_ranges() {
        assert!(Nvtx::attach(refuse).is_none());
        let nvtx = Nvtx::attach(listen).unwrap();
        nvtx.push(format_args!("step {}", 12));
        nvtx.push(format_args!("layer 3"));
        nvtx.pop();
        nvtx.pop();
        assert_eq!(HEARD.take(), ["step 12", "layer 3", "end", "end"]);
    }

    #[test]
    fn a_library_that_is_not_there_is_no_profiler() {
        assert!(Nvtx::load("/nowhere/libprofiler.so").is_none());
    }
}
