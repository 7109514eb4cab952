use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::SourceError;

/// SHA-256 of a file, in lower-case hex.
pub(super) fn of_file(path: &Path) -> Result<String, SourceError> {
    let mut file = File::open(path).map_err(SourceError::io(path))?;
    copy(&mut file, &mut io::sink(), |_| ()).map_err(SourceError::io(path))
}

/// Compares a file's content with a SHA-256.
pub(super) fn expect(path: &Path, sha256: &str) -> Result<(), SourceError> {
    let given = of_file(path)?;
    if given == sha256 {
        return Ok(());
    }
    Err(SourceError::WrongHash { what: path.display().to_string(), given, expected: sha256.to_owned() })
}

/// Copies all of `from` and returns the SHA-256 of what passed, in lower-case hex.
pub(super) fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    mut on_progress: impl FnMut(u64),
) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let num_bytes = match from.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            Ok(num_bytes) => num_bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..num_bytes]);
        to.write_all(&buffer[..num_bytes])?;
        on_progress(num_bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hash_of_abc_is_that_of_fips_180() {
        let mut copied = Vec::new();
        let hash = super::copy(&mut &b"abc"[..], &mut copied, |_| ()).expect("memory does not fail");
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(copied, b"abc");
    }
}
