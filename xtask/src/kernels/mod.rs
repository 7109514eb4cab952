//! `build-kernels`: the CUDA kernels, compiled family by family and target by target.
//!
//! What it leaves in `target/kernels-cuda` is what `quire-kernels-cuda` embeds when it is built.

mod build;
mod driver;
mod error;
#[cfg(test)]
mod fake;
mod image;
mod pip;
mod resources;
mod source;
mod target;
mod toolkit;

use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) use error::Error;

use build::{Row, size};
use driver::Driver;
use error::Result;
use image::Image;
use source::Family;
use target::Target;
use toolkit::{Places, Toolkit};

use crate::print::{note, out};

#[derive(Clone, clap::Args)]
pub(crate) struct Options {
    /// What to compile for: sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120, compute_100 (PTX), or all
    #[arg(long, value_delimiter = ',', default_value = "all")]
    arch: Vec<String>,
    /// `auto` (CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda, one that pip brought), `pip` (brings one), or its folder
    #[arg(long, default_value = "auto")]
    toolkit: PathBuf,
    /// Print registers, shared memory, stack and spills, and fail where a hot kernel spills
    #[arg(long)]
    verify: bool,
    /// Compilers at once; one a core where not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Where the images go; target/kernels-cuda where not given
    #[arg(long)]
    out: Option<PathBuf>,
    /// Where the .cu files are; kernels-cuda/cuda where not given
    #[arg(long)]
    source: Option<PathBuf>,
    /// Say what would be compiled, and compile nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep line numbers in the images, for profilers and sanitizers
    #[arg(long)]
    line_info: bool,
}

impl Options {
    /// For these targets, with the toolkit that is there, or else the one of pip.
    pub(crate) fn for_targets<S: AsRef<str>>(targets: &[S]) -> Self {
        let is_there = Places::of_environment(pip::cached()).find().is_ok();
        Self {
            arch: targets.iter().map(|target| target.as_ref().to_owned()).collect(),
            toolkit: if is_there { "auto" } else { "pip" }.into(),
            verify: false,
            jobs: None,
            out: None,
            source: None,
            dry_run: false,
            line_info: false,
        }
    }

    /// Verifies what is built too.
    pub(crate) fn verify(self) -> Self {
        Self { verify: true, ..self }
    }
}

/// Checks everything, then compiles what has changed.
pub(crate) fn run(options: &Options) -> crate::error::Result<()> {
    let source = options.source.clone().unwrap_or_else(|| crate::process::root().join("kernels-cuda/cuda"));
    let out = options.out.clone().unwrap_or_else(default_out);
    let toolkit = match options.toolkit.to_str() {
        Some("auto") => Places::of_environment(pip::cached()).find(),
        Some("pip") => Toolkit::at(&pip::bring()?, "brought by pip"),
        _ => Toolkit::at(&options.toolkit, "--toolkit"),
    };
    let (toolkit, targets, families) = check(options, toolkit, &source)?;
    note!("nvcc {} at {} ({})", toolkit.release, toolkit.nvcc.display(), toolkit.origin);
    for warning in
        Driver::of_this_machine().iter().flat_map(|driver| driver.warnings(toolkit.release, &targets))
    {
        note!("warning: {warning}");
    }
    Ok(make(options, &toolkit, &targets, &families, &out)?)
}

/// Copies the images for some targets, and makes the folder hold nothing else. What is there already keeps its time.
pub(crate) fn copy_images<S: AsRef<str>>(targets: &[S], to: &Path) -> crate::error::Result<()> {
    let targets = Target::parse_list(targets)?;
    Ok(build::mirror(&default_out(), to, |name| {
        targets.iter().any(|target| name.ends_with(&format!(".{}", target.file_suffix())))
    })?)
}

fn default_out() -> PathBuf {
    crate::process::root().join("target/kernels-cuda")
}

/// All that can be wrong before the compiler is called, at once.
fn check(
    options: &Options,
    toolkit: Result<Toolkit>,
    source: &Path,
) -> Result<(Toolkit, Vec<Target>, Vec<Family>)> {
    let targets = Target::parse_list(&options.arch);
    let families = Family::read_all(source);
    let version = match (&toolkit, &targets) {
        (Ok(toolkit), Ok(targets)) => toolkit.check(targets),
        _ => Ok(()),
    };
    let named = std::env::var("NVCC_CCBIN").ok().filter(|name| !name.is_empty());
    let host = host_compiler(&Places::of_environment(None), named.as_deref());
    match (toolkit, targets, families, version, host) {
        (Ok(toolkit), Ok(targets), Ok(families), Ok(()), Ok(())) => Ok((toolkit, targets, families)),
        (toolkit, targets, families, version, host) => {
            let faults = [toolkit.err(), targets.err(), families.err(), version.err(), host.err()];
            Err(Error::Faults(faults.into_iter().flatten().collect()))
        }
    }
}

/// nvcc reads headers with the machine's own compiler; it calls gcc, which without g++ knows no C++.
fn host_compiler(places: &Places, named: Option<&str>) -> Result<()> {
    let name = named.unwrap_or("g++");
    let is_there = Path::new(name).exists() || places.program(name).is_some();
    if is_there { Ok(()) } else { Err(Error::NoHostCompiler(name.to_owned())) }
}

fn make(
    options: &Options,
    toolkit: &Toolkit,
    targets: &[Target],
    families: &[Family],
    out: &Path,
) -> Result<()> {
    let started = Instant::now();
    let _lock =
        build::lock(&out.join("lock")).map_err(|source| Error::Out { folder: out.to_owned(), source })?;
    let mut flags = vec!["-std=c++17".to_owned(), "-O3".to_owned()];
    flags.extend(options.line_info.then(|| "-lineinfo".to_owned()));
    let pairs = families.iter().flat_map(|family| target::TARGETS.map(|target| (family, target)));
    let images = pairs.map(|(family, target)| Image::new(family, target, toolkit, &flags, out));
    let (chosen, others): (Vec<_>, Vec<_>) = images.partition(|image| targets.contains(&image.target));
    let (mut rows, stale) = build::split(chosen);
    if options.dry_run {
        stale.iter().for_each(|image| out!("would compile {}", image.name()));
        out!("{} of {} images are up to date; nothing was done", rows.len(), rows.len() + stale.len());
        return Ok(());
    }
    build::remove_outdated(out, families, &others)?;
    if stale.is_empty() {
        out!("all {} images are up to date: {}", rows.len(), out.display());
    } else {
        rows.extend(build::compile(stale, num_jobs(options), out)?);
        sort(&mut rows);
        summary(&rows, started, out);
    }
    sort(&mut rows);
    if options.verify {
        resources::verify(&rows.iter().map(|row| &row.image).collect::<Vec<_>>())
    } else {
        Ok(())
    }
}

fn num_jobs(options: &Options) -> usize {
    options.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, Into::into), usize::from)
}

/// By family, then in the order of the targets.
fn sort(rows: &mut [Row<'_>]) {
    let place = |target: &Target| target::TARGETS.iter().position(|known| known == target);
    rows.sort_by(|a, b| {
        let names = a.image.family.name.cmp(&b.image.family.name);
        names.then(place(&a.image.target).cmp(&place(&b.image.target)))
    });
}

fn summary(rows: &[Row<'_>], started: Instant, out: &Path) {
    out!("{:24} {:12} {:>8} {:>10}", "family", "target", "seconds", "bytes");
    for Row { image, built, is_new } in rows {
        let note = if *is_new { "" } else { "  up to date" };
        out!(
            "{:24} {:12} {:>8.1} {:>10}{note}",
            image.family.name,
            image.target.name,
            built.seconds,
            built.bytes
        );
    }
    let num_new = rows.iter().filter(|row| row.is_new).count();
    let bytes = rows.iter().map(|row| row.built.bytes).sum();
    out!(
        "{num_new} compiled, {} up to date, {} in {}, {:.1} s",
        rows.len() - num_new,
        size(bytes),
        out.display(),
        started.elapsed().as_secs_f64()
    );
}

#[cfg(test)]
mod tests;
