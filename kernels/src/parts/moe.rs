use super::Part;

/// Mixture of experts: route, permute, grouped product.
///
/// The place is kept; no backend has one yet, and a model that needs it gets
/// [`Error::Unsupported`](crate::Error::Unsupported) from [`Kernels::moe`](crate::Kernels::moe).
pub trait MoeKernels: Part {}
