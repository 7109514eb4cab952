//! Embeds the kernel images that `cargo xtask build-kernels` made.
//!
//! An image is a file `FAMILY.ARCH.cubin` (machine code, `rms_norm.sm_90a.cubin`) or `FAMILY.ARCH.ptx` (for
//! devices newer than all of them, `rms_norm.compute_120.ptx`) in `target/kernels-cuda`, or in the folder that
//! `QUIRE_CUDA_KERNELS` names. Without any the crate builds too; its kernels are then missing at run time.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=QUIRE_CUDA_KERNELS");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let folder = env::var_os("QUIRE_CUDA_KERNELS").map_or_else(default_folder, PathBuf::from);
    // A folder that is not there would make Cargo build this crate anew every time.
    fs::create_dir_all(&folder)?;
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut images = fs::read_dir(&folder).map_or_else(|_| Ok(Vec::new()), images_in)?;
    images.sort();
    fs::write(out_dir.join("images.rs"), table(&images))
}

/// `target/kernels-cuda` of the workspace, whatever folder Cargo builds in.
fn default_folder() -> PathBuf {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    manifest.join("../target/kernels-cuda")
}

fn images_in(entries: fs::ReadDir) -> io::Result<Vec<PathBuf>> {
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| row(path).is_some()).collect())
}

fn table(images: &[PathBuf]) -> String {
    let rows: String = images.iter().filter_map(|path| row(path)).collect();
    format!("/// The embedded images.\npub(super) const IMAGES: &[Image] = &[\n{rows}];\n")
}

/// One row of the table, or `None` for a file that is no image.
fn row(path: &Path) -> Option<String> {
    let (stem, kind) = path.file_name()?.to_str()?.rsplit_once('.')?;
    let (family, arch) = stem.rsplit_once('.')?;
    let data = match kind {
        "cubin" => format!("include_bytes!({path:?})"),
        // The driver reads PTX as a C string.
        "ptx" => format!("concat!(include_str!({path:?}), \"\\0\").as_bytes()"),
        _ => return None,
    };
    Some(format!("    Image {{ family: {family:?}, arch: {arch:?}, data: {data} }},\n"))
}
