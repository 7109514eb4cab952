//! Embeds the kernel images that `cargo xtask build-kernels` made.
//!
//! An image is a file `FAMILY.ARCH.cubin` (machine code, `rms_norm.sm_90a.cubin`) or `FAMILY.ARCH.ptx` (for
//! devices that none of them is for, `rms_norm.compute_100.ptx`) in `target/kernels-cuda`, or in the folder that
//! `QUIRE_CUDA_KERNELS` names. Without any the crate builds too, with a warning; its kernels are then missing at run
//! time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

/// The variable that names another folder of images.
const VARIABLE: &str = "QUIRE_CUDA_KERNELS";

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn embed() -> Result<(), String> {
    let by_cargo = |name| PathBuf::from(env::var_os(name).expect("cargo sets it for build scripts"));
    let folder = folder(env::var_os(VARIABLE), &by_cargo("CARGO_MANIFEST_DIR"))?;
    println!("cargo:rerun-if-changed={}", folder.display());
    let failed = |path: &Path| format!("{} cannot be read or written", path.display());
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", failed(&folder)))?;
    let mut images = images_in(entries).map_err(|error| format!("{}: {error}", failed(&folder)))?;
    images.sort();
    if let Some(warning) = warning(&images, &folder) {
        println!("cargo:warning={warning}");
    }
    let list = by_cargo("OUT_DIR").join("images.rs");
    fs::write(&list, table(&images)).map_err(|error| format!("{}: {error}", failed(&list)))
}

/// The folder of the images: the one that is named, which must be there, else `target/kernels-cuda` of the workspace,
/// whatever folder Cargo builds in.
pub(crate) fn folder(named: Option<OsString>, manifest: &Path) -> Result<PathBuf, String> {
    let Some(named) = named.filter(|named| !named.is_empty()).map(PathBuf::from) else {
        let folder = manifest.parent().unwrap_or(manifest).join("target/kernels-cuda");
        // A folder that is not there would make Cargo build this crate anew every time.
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        return Ok(folder);
    };
    let name = named.display();
    if named.is_relative() {
        // Build scripts run in the folder of their package, which may lie in Cargo's cache: not what is meant.
        return Err(format!(
            "{VARIABLE}={name} is relative to no folder in particular; write the whole path, or in .cargo/config.toml \
             `{VARIABLE} = {{ value = \"{name}\", relative = true }}`"
        ));
    }
    match fs::metadata(&named) {
        Ok(metadata) if metadata.is_dir() => Ok(named),
        Ok(_) => Err(format!("{VARIABLE}={name} is no folder; name the folder that holds the kernel images")),
        Err(error) => Err(format!(
            "{VARIABLE}={name} cannot be used ({error}); correct it, or make the folder by `cargo xtask build-kernels \
             --out {name}`"
        )),
    }
}

/// What a person should know who builds a program without kernels.
pub(crate) fn warning(images: &[PathBuf], folder: &Path) -> Option<String> {
    images.is_empty().then(|| {
        format!(
            "there are no CUDA kernels in {}, so the program will have none and use no GPU: run `cargo xtask \
             build-kernels` and build again",
            folder.display()
        )
    })
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
