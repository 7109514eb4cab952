//! Places in the work of a device that others can wait for.

use std::any::Any;
use std::sync::Arc;

use crate::Result;

/// A place in a queue: it is reached when everything that was enqueued before it has been executed.
///
/// Fences order queues of one device among each other without the host: [`Queue::wait_for`](crate::Queue::wait_for)
/// lets a queue wait for work of another. A device that failed reaches none: asking and waiting return its error.
pub trait Fence: Any + Send + Sync {
    /// Whether it is reached. Whoever asks again and again sees it happen.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](crate::Error::DeviceLost); the first error of the work in front of it.
    fn is_reached(&self) -> Result<bool>;

    /// Waits on the host.
    ///
    /// # Errors
    ///
    /// As [`is_reached`](Self::is_reached).
    fn wait(&self) -> Result<()>;
}

/// A fence that is reached: what a device hands out that executes at once.
pub fn reached() -> Arc<dyn Fence> {
    struct Reached;
    impl Fence for Reached {
        fn is_reached(&self) -> Result<bool> {
            Ok(true)
        }

        fn wait(&self) -> Result<()> {
            Ok(())
        }
    }
    Arc::new(Reached)
}
