//! Compiling what has changed, on all cores.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Mutex, mpsc};

use super::error::{Error, Result};
use super::image::{Built, Image, Outcome};
use super::source::Family;

use crate::print::{note, to_stderr};

/// An image and what became of it.
pub(crate) struct Row<'a> {
    pub(crate) image: Image<'a>,
    pub(crate) built: Built,
    /// Compiled by this call, rather than found.
    pub(crate) is_new: bool,
}

/// The images that are there and those to compile, the longest first.
pub(crate) fn split(images: Vec<Image<'_>>) -> (Vec<Row<'_>>, Vec<Image<'_>>) {
    let (mut found, mut stale) = (Vec::new(), Vec::new());
    for image in images {
        match image.up_to_date() {
            Some(built) => found.push(Row { image, built, is_new: false }),
            None => stale.push(image),
        }
    }
    let source_bytes = |image: &Image<'_>| image.family.files.values().map(Vec::len).sum::<usize>();
    let seconds = |image: &Image<'_>| image.last_build().map_or(f64::INFINITY, |built| built.seconds);
    stale.sort_by(|a, b| {
        seconds(b).total_cmp(&seconds(a)).then_with(|| source_bytes(b).cmp(&source_bytes(a)))
    });
    (found, stale)
}

/// Compiles the images on `jobs` threads. One that fails leaves nothing behind, nor an older image, its family's
/// further targets are left out, and the others go on.
pub(crate) fn compile<'a>(stale: Vec<Image<'a>>, jobs: usize, folder: &Path) -> Result<Vec<Row<'a>>> {
    let partial = folder.join("partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).map_err(Error::io(&partial))?;
    let result = compile_into(&partial, stale, jobs);
    fs::remove_dir_all(&partial).map_err(Error::io(&partial))?;
    result
}

fn compile_into<'a>(partial: &Path, stale: Vec<Image<'a>>, jobs: usize) -> Result<Vec<Row<'a>>> {
    let num_images = stale.len();
    let queue = Mutex::new(stale.into_iter());
    let failed_families = Mutex::new(BTreeSet::new());
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, num_images.max(1)) {
            let (sender, queue, failed) = (sender.clone(), &queue, &failed_families);
            scope.spawn(move || {
                while let Some(image) = next(queue) {
                    let outcome = compile_unless_failed(&image, partial, failed);
                    if sender.send((image, outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        report(done, num_images)
    })
}

fn next<'a>(queue: &Mutex<std::vec::IntoIter<Image<'a>>>) -> Option<Image<'a>> {
    queue.lock().expect("no thread panics while it holds the queue").next()
}

fn compile_unless_failed(
    image: &Image<'_>,
    partial: &Path,
    failed: &Mutex<BTreeSet<String>>,
) -> Result<Option<Outcome>> {
    let failed = || failed.lock().expect("no thread panics while it holds the set");
    if failed().contains(&image.family.name) {
        return Ok(None);
    }
    let outcome = image.compile(partial)?;
    if matches!(outcome, Outcome::Failed { .. }) {
        failed().insert(image.family.name.clone());
    }
    Ok(Some(outcome))
}

type Done<'a> = (Image<'a>, Result<Option<Outcome>>);

/// Prints a line for each image as it comes.
fn report<'a>(done: mpsc::Receiver<Done<'a>>, num_images: usize) -> Result<Vec<Row<'a>>> {
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for (i, (image, outcome)) in done.into_iter().enumerate() {
        let name = image.name();
        let place = format!("[{}/{num_images}] {name}", i + 1);
        match outcome? {
            Some(Outcome::Built { built, warnings }) => {
                note!("{place}: {:.1} s, {}", built.seconds, size(built.bytes));
                to_stderr(format_args!("{}", prefixed(&name, &warnings)));
                rows.push(Row { image, built, is_new: true });
            }
            Some(Outcome::Failed { messages }) => {
                note!("{place}: FAILED\n{}", prefixed(&name, &messages).trim_end());
                image.remove()?;
                failed.push(name);
            }
            None => {
                note!("{place}: left out, since {} has failed for another target", image.family.name);
                image.remove()?;
                failed.push(name);
            }
        }
    }
    if failed.is_empty() { Ok(rows) } else { Err(Error::Failed(failed)) }
}

fn prefixed(name: &str, text: &str) -> String {
    text.lines().map(|line| format!("{name}: {line}\n")).collect()
}

/// Bytes in the unit that suits them.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// Takes a lock file for this process, until the file is dropped; another call waits here, and says so.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    fs::create_dir_all(path.parent().expect("a lock lies in a folder"))?;
    let file = File::options().create(true).append(true).open(path)?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            note!(
                "another `cargo xtask` works here and holds {}; waiting until it has ended",
                path.display()
            );
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.lock()?;
    Ok(file)
}

/// Deletes the images whose source is gone or is another now: the program must not embed them.
pub(crate) fn remove_outdated(folder: &Path, families: &[Family], images: &[Image<'_>]) -> Result<()> {
    for image in images {
        if image.remove_if_outdated()? {
            note!("removed {}: its source has changed", image.name());
        }
    }
    for entry in fs::read_dir(folder).map_err(Error::io(folder))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let [family, _target, ending] = name.split('.').collect::<Vec<_>>()[..] else { continue };
        if !["cubin", "ptx", "log", "stamp"].contains(&ending)
            || families.iter().any(|known| known.name == family)
        {
            continue;
        }
        fs::remove_file(entry.path()).map_err(Error::io(entry.path()))?;
        note!("removed {name}: its source is gone");
    }
    Ok(())
}

/// Makes `to` hold the chosen files of `from` and nothing else. A file that is the same is left as it is.
pub(crate) fn mirror(from: &Path, to: &Path, is_chosen: impl Fn(&str) -> bool) -> Result<()> {
    fs::create_dir_all(to).map_err(Error::io(to))?;
    let names = fs::read_dir(from).map_err(Error::io(from))?.flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let wanted: Vec<String> = names.filter(|name| is_chosen(name)).collect();
    for name in &wanted {
        let (source, copy) = (from.join(name), to.join(name));
        let bytes = fs::read(&source).map_err(Error::io(&source))?;
        if fs::read(&copy).ok().as_ref() != Some(&bytes) {
            fs::write(&copy, bytes).map_err(Error::io(&copy))?;
        }
    }
    for entry in fs::read_dir(to).map_err(Error::io(to))?.flatten() {
        if !wanted.iter().any(|name| entry.file_name() == name.as_str()) {
            fs::remove_file(entry.path()).map_err(Error::io(entry.path()))?;
        }
    }
    Ok(())
}
