//! Why the hub refuses: its answers 401, 403 and 404 mean little, headers beside them say more.

use std::fmt;

use ureq::http::HeaderMap;

/// The hub's own word for a refusal (`X-Error-Code`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Denial {
    /// Who wants to read it must have been let in.
    Gated,
    /// No such repository, or a private one: the hub does not tell which.
    NoRepository,
    /// No such branch, tag or commit.
    NoRevision,
    /// No such file.
    NoFile,
    /// The repository was disabled.
    Disabled,
    /// The hub gave no reason that is known.
    Unsaid,
}

impl Denial {
    /// The reason that the headers of an answer give.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        header(headers, "x-error-code").map_or(Self::Unsaid, Self::of_code)
    }

    /// The hub's own words.
    pub(super) fn words(headers: &HeaderMap) -> Option<String> {
        header(headers, "x-error-message").map(shortened)
    }

    fn of_code(code: &str) -> Self {
        match code {
            "GatedRepo" => Self::Gated,
            "RepoNotFound" => Self::NoRepository,
            "RevisionNotFound" => Self::NoRevision,
            "EntryNotFound" => Self::NoFile,
            "DisabledRepo" => Self::Disabled,
            _ => Self::Unsaid,
        }
    }

    /// Whether the name may have been meant as something else than a repository of the hub.
    pub(super) fn leaves_the_name_open(self) -> bool {
        matches!(self, Self::NoRepository | Self::Unsaid)
    }
}

/// What a refusal means and what can be done.
pub(super) struct Advice<'a> {
    pub(super) reason: Denial,
    pub(super) endpoint: &'a str,
    pub(super) repo: &'a str,
    pub(super) has_token: bool,
}

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TOKEN: &str = "the token in use (HF_TOKEN or `hf auth login`)";
        let Self { reason, endpoint, repo, has_token } = self;
        let page = format!("{endpoint}/{repo}");
        match (reason, has_token) {
            (Denial::Gated, false) => write!(
                f,
                "the repository is gated: ask for access at {page}, then set HF_TOKEN to a token of that account"
            ),
            (Denial::Gated, true) => write!(
                f,
                "the repository is gated and {TOKEN} has no access to it: ask for access at {page} with that account"
            ),
            (Denial::NoRepository, false) => f.write_str(
                "no repository of this name is public: the name is wrong, or it is private and needs HF_TOKEN",
            ),
            (Denial::NoRepository, true) => {
                write!(f, "no repository of this name, or a private one that {TOKEN} has no access to")
            }
            (Denial::NoRevision, _) => {
                write!(f, "the repository has no such branch, tag or commit; {page}/commits lists them")
            }
            (Denial::NoFile, _) => write!(f, "the repository has no such file; {page}/tree/main lists them"),
            (Denial::Disabled, _) => f.write_str("the hub has disabled the repository"),
            (Denial::Unsaid, false) => f.write_str(
                "it does not exist there, or it is private or gated; for a private or gated one set HF_TOKEN",
            ),
            (Denial::Unsaid, true) => {
                write!(f, "it does not exist there, or it is private or gated; {TOKEN} has no access to it")
            }
        }
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// One line of the hub's words.
fn shortened(words: &str) -> String {
    const MOST: usize = 200;
    words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect()
}
