//! The policies that ship, the loop they share, and the registry that strangers extend.

mod ageing;
mod class_order;
mod fair;
mod fcfs;
mod length_bucket;
mod prefix_aware;
mod priority;
mod registry;
mod shortest_first;
mod standard;

pub use fair::Fair;
pub use fcfs::Fcfs;
pub use length_bucket::LengthBucket;
pub use prefix_aware::PrefixAware;
pub use priority::Priority;
pub use registry::PolicyRegistry;
pub use shortest_first::ShortestFirst;
pub use standard::{standard_admit, standard_plan, standard_serve};
