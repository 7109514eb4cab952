//! The policies that ship, the loop they share, and the registry that strangers extend.

mod fcfs;
mod registry;
mod standard;

pub use fcfs::Fcfs;
pub use registry::PolicyRegistry;
pub use standard::standard_plan;
