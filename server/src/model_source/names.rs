//! What a hub says becomes names of files: only what cannot leave the folder it is meant for.

use sha2::{Digest, Sha256};

/// A longer ETag is no name of a file.
const MAX_ETAG: usize = 128;

/// Whether a text is the id of a commit: the hexadecimal digits of a SHA-1 or of a SHA-256.
pub(super) fn is_commit(id: &str) -> bool {
    matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a file of a repository stays below the folder that its name is joined to.
pub(super) fn is_file_name(name: &str) -> bool {
    const MAX_PART: usize = 255;
    const MAX_NAME: usize = 1024;
    let is_plain = |part: &str| {
        let leads_elsewhere = matches!(part, "" | "." | "..") || part.contains('\\');
        !leads_elsewhere && part.len() <= MAX_PART && !part.chars().any(char::is_control)
    };
    name.len() <= MAX_NAME && name.split('/').all(is_plain)
}

/// The hub's ETag of a large file is its SHA-256; of a small one it is the 40 digits of a git object.
pub(super) fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The name of a file's content in the cache: its ETag, as all clients of the hub have it. What is no plain name is
/// hashed to one, and a mirror that gives no ETag has the file known by its commit.
pub(super) fn of_blob(etag: Option<&str>, commit: &str, file: &str) -> String {
    match etag {
        Some(etag) if is_plain_etag(etag) => etag.to_owned(),
        Some(etag) => format!("etag-{}", sha256(etag)),
        None => format!("file-{}", sha256(&format!("{commit}/{file}"))),
    }
}

fn is_plain_etag(etag: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=MAX_ETAG).contains(&etag.len()) && etag.bytes().all(is_plain)
}

/// A file's name in the path of a URL.
pub(super) fn in_url(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    let escaped =
        name.bytes().map(|b| if is_plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") });
    escaped.collect()
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_leave_its_folder_is_no_name() {
        for name in
            ["config.json", "sub/model-00001-of-00002.safetensors", ".gitattributes", "ä b.gguf", "a..b"]
        {
            assert!(is_file_name(name), "{name}");
        }
        let long = "x".repeat(256);
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a/",
            "./a",
            "..",
            "a\\..\\b",
            "a\0b",
            "a\nb",
            &long,
        ] {
            assert!(!is_file_name(name), "{name}");
        }
    }

    #[test]
    fn a_commit_is_digits() {
        assert!(is_commit(&"0a".repeat(20)) && is_commit(&"F9".repeat(32)));
        for id in ["", "main", "../../x", &"0".repeat(39), &"g".repeat(40), &format!("{}/", "0".repeat(39))] {
            assert!(!is_commit(id), "{id}");
        }
    }

    #[test]
    fn the_name_of_a_content_is_plain_whatever_the_etag() {
        let name = |etag| of_blob(etag, "c0", "config.json");
        assert_eq!(name(Some("0123-a_B")), "0123-a_B");
        let others = [Some("../../x"), Some(""), Some("a.part"), Some(".."), Some("a/b"), Some("\0"), None];
        let names: std::collections::BTreeSet<String> = others.into_iter().map(name).collect();
        assert_eq!(names.len(), others.len(), "each has a name of its own");
        assert!(names.iter().all(|name| is_file_name(name) && !name.contains(['/', '.'])), "{names:?}");
    }

    #[test]
    fn names_are_escaped_in_urls() {
        assert_eq!(in_url("a b/c#?d%.gguf"), "a%20b/c%23%3Fd%25.gguf");
    }
}
