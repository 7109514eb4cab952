//! Addresses of servers.

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// Host and port.
    pub(super) authority: String,
    /// What paths begin with.
    pub(super) base: String,
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority, self.base)
    }
}

impl std::str::FromStr for Url {
    type Err = &'static str;

    /// `http://HOST:PORT`, with or without `/v1` behind it.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let expected = "expected http://HOST:PORT";
        let rest = text.strip_prefix("http://").ok_or(expected)?;
        let (authority, base) = rest.split_once('/').unwrap_or((rest, ""));
        let base = base.trim_end_matches('/').trim_end_matches("v1").trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        match (host.is_empty(), port.parse::<u16>()) {
            (false, Ok(port)) => {
                let base = if base.is_empty() { String::new() } else { format!("/{base}") };
                Ok(Self { authority: format!("{host}:{port}"), base })
            }
            _ => Err(expected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read() {
        let of = |text: &str| text.parse::<Url>().map(|url| (url.authority, url.base));
        let there = |authority: &str, base: &str| Ok((authority.to_owned(), base.to_owned()));
        assert_eq!(of("http://127.0.0.1:8000"), there("127.0.0.1:8000", ""));
        assert_eq!(of("http://host/v1/"), there("host:80", ""));
        assert_eq!(of("http://host:1/base/v1"), there("host:1", "/base"));
        for wrong in ["https://host", "host:80", "http://:80", "http://host:x"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
