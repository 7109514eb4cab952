//! Addresses of servers.

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// Whether connections are secured.
    pub(super) is_secure: bool,
    /// Host and port.
    pub(super) authority: String,
    /// What paths begin with.
    pub(super) base: String,
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.base)
    }
}

impl Url {
    /// The host without its port, and without the brackets of an address.
    pub(super) fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl std::str::FromStr for Url {
    type Err = &'static str;

    /// `http://HOST:PORT` or `https://HOST:PORT`, with or without `/v1` behind it.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let expected = "expected http://HOST:PORT or https://HOST:PORT";
        let (is_secure, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(expected),
        };
        let (authority, base) = rest.split_once('/').unwrap_or((rest, ""));
        let base = base.trim_end_matches('/').trim_end_matches("v1").trim_end_matches('/');
        let (host, port) =
            authority.rsplit_once(':').unwrap_or((authority, if is_secure { "443" } else { "80" }));
        match (host.is_empty(), port.parse::<u16>()) {
            (false, Ok(port)) => {
                let base = if base.is_empty() { String::new() } else { format!("/{base}") };
                Ok(Self { is_secure, authority: format!("{host}:{port}"), base })
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
        assert_eq!(of("https://host"), there("host:443", ""));
        let secure: Url = "https://[::1]:8000/v1".parse().expect("an address");
        assert_eq!((secure.host(), secure.to_string()), ("::1", "https://[::1]:8000".to_owned()));
        for wrong in ["ftp://host", "host:80", "http://:80", "http://host:x"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
