use std::fmt;
use std::str::FromStr;

/// A model of the Hugging Face hub: `ORG/NAME`, or one file of it, `ORG/NAME/FILE.gguf`, with an optional
/// `@REVISION` (branch, tag or commit).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubId {
    repo: String,
    file: Option<String>,
    revision: Option<String>,
}

/// Why a text is not a [`HubId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubIdError {
    /// Not two names with a slash between.
    #[error("that is ORG/NAME or ORG/NAME/FILE.gguf, with an optional @REVISION")]
    Form,
    /// A character that no repository, file or revision has.
    #[error(
        "`{part}` holds a character other than letters, digits, `-`, `_` and `.`, or begins or ends in a dot"
    )]
    Character {
        /// The part with that character.
        part: String,
    },
}

impl HubId {
    /// `ORG/NAME`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// One GGUF file of the repository.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The same at a revision.
    ///
    /// # Errors
    ///
    /// [`HubIdError::Character`] for what is no name of one.
    pub fn at_revision(self, revision: &str) -> Result<Self, HubIdError> {
        revision.split('/').try_for_each(check_segment)?;
        Ok(Self { revision: Some(revision.to_owned()), ..self })
    }

    /// Branch, tag or commit; `main` where none was given.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl FromStr for HubId {
    type Err = HubIdError;

    fn from_str(text: &str) -> Result<Self, HubIdError> {
        let (path, revision) = match text.split_once('@') {
            Some((path, revision)) => (path, Some(revision)),
            None => (text, None),
        };
        let mut parts = path.splitn(3, '/');
        let (Some(org), Some(name)) = (parts.next(), parts.next()) else { return Err(HubIdError::Form) };
        let file = parts.next();
        if org.is_empty() || name.is_empty() || file.is_some_and(|file| !file.ends_with(".gguf")) {
            return Err(HubIdError::Form);
        }
        let segments = [org, name].into_iter().chain(file.iter().flat_map(|f| f.split('/')));
        segments.chain(revision.iter().flat_map(|r| r.split('/'))).try_for_each(check_segment)?;
        Ok(Self {
            repo: format!("{org}/{name}"),
            file: file.map(str::to_owned),
            revision: revision.map(str::to_owned),
        })
    }
}

/// A name that is safe in a URL and as one component of a path.
fn check_segment(part: &str) -> Result<(), HubIdError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let has_edge_dot = part.starts_with('.') || part.ends_with('.');
    if part.is_empty() || has_edge_dot || !part.chars().all(is_plain) {
        return Err(HubIdError::Character { part: part.to_owned() });
    }
    Ok(())
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        self.file.iter().try_for_each(|file| write!(f, "/{file}"))?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, Option<&str>, &str)>) {
        let id = text.parse::<HubId>();
        let parts = id.as_ref().ok().map(|id| (id.repo(), id.file(), id.revision()));
        assert_eq!(parts, expected, "{text}: {id:?}");
        if let Ok(id) = &id {
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn ids_are_read() {
        check("org/name", Some(("org/name", None, "main")));
        check("org/name@v1.0", Some(("org/name", None, "v1.0")));
        check("org/name@refs/pr/3", Some(("org/name", None, "refs/pr/3")));
        check("org/na.me/file.Q4_1.gguf@0a1b", Some(("org/na.me", Some("file.Q4_1.gguf"), "0a1b")));
    }

    #[test]
    fn what_could_leave_the_cache_folder_or_the_url_is_refused() {
        for text in [
            "",
            "name",
            "/name",
            "org/",
            "org/name/x",
            "../name",
            "org/..",
            "org/a b",
            "org/n?x=1",
            "org/name@",
            "org/n@..",
        ] {
            check(text, None);
        }
    }
}
