//! Whether a host answers at all, asked before a client that has no time limit of its own.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A connection attempt takes no longer; a machine without network is told so in this time.
const LIMIT: Duration = Duration::from_secs(4);

/// Tries a TCP connection to the host of an `http` or `https` URL.
///
/// # Errors
///
/// Why there is none, in words.
pub(super) fn check(url: &str) -> Result<(), String> {
    let (host, port) =
        host_and_port(url).ok_or_else(|| format!("`{url}` is not an http or https address"))?;
    let (sender, receiver) = mpsc::channel();
    // Looking a name up cannot be cut short, so it gets a thread that may outlive the question.
    thread::spawn(move || sender.send((host.as_str(), port).to_socket_addrs().map(Vec::from_iter)));
    let addresses = match receiver.recv_timeout(LIMIT) {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return Err(format!("its name cannot be resolved ({error})")),
        Err(_) => return Err(format!("its name was not resolved within {} s", LIMIT.as_secs())),
    };
    connect(&addresses)
}

fn connect(addresses: &[SocketAddr]) -> Result<(), String> {
    let mut reason = "its name has no address".to_owned();
    let limit = LIMIT / addresses.len().clamp(1, 4) as u32;
    for address in addresses.iter().take(4) {
        match TcpStream::connect_timeout(address, limit) {
            Ok(_) => return Ok(()),
            Err(error) => reason = format!("no connection to {address} ({error})"),
        }
    }
    Err(reason)
}

fn host_and_port(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let default_port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority = rest.split(['/', '?']).next()?;
    let authority = authority.rsplit('@').next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (authority, default_port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_read() {
        for (url, expected) in [
            ("https://huggingface.co", Some(("huggingface.co", 443))),
            ("http://127.0.0.1:8080/x", Some(("127.0.0.1", 8080))),
            ("http://[::1]:90", Some(("::1", 90))),
            ("http://[::1]", Some(("::1", 80))),
            ("ftp://host", None),
            ("host", None),
            ("http://", None),
            ("http://host:x", None),
        ] {
            let expected = expected.map(|(host, port): (&str, u16)| (host.to_owned(), port));
            assert_eq!(host_and_port(url), expected, "{url}");
        }
    }

    #[test]
    fn a_closed_port_is_told_at_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        assert_eq!(check(&url), Ok(()));
        drop(listener);
        assert!(check(&url).expect_err("closed").contains("no connection"), "{url}");
    }
}
