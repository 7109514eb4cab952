//! The clients: streams over connections that are kept, counted as they come.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a load is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) num_requests: usize,
    pub(crate) num_streams: usize,
    /// Tokens of an answer, in the mean: from half of it to one and a half. If all were alike, all streams would end and begin
    /// together for ever.
    pub(crate) num_tokens: usize,
    /// One request out of so many has a prompt of 100 kB.
    pub(crate) long_every: usize,
}

/// What came of it; on one line, from the clients' process to the server's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) num_answers: usize,
    pub(crate) num_pieces: usize,
    /// Answers that were not whole, or not answers.
    pub(crate) num_errors: usize,
}

const LONG_BYTES: usize = 100_000;

/// The last bytes of a whole answer: its end as events, and as a body in chunks.
const END: &[u8] = b"data: [DONE]\n\n\r\n0\r\n\r\n";

impl Load {
    /// Tokens of one of the answers.
    fn num_tokens_of(&self, place: usize) -> usize {
        // Multiples of an odd number close to the golden section of its range, so that lengths are spread evenly.
        let spread = (place as u32).wrapping_mul(2_654_435_769) >> 16;
        self.num_tokens / 2 + ((spread as usize * self.num_tokens) >> 16)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.num_answers, self.num_pieces, self.num_errors)
    }
}

impl Counts {
    /// Reads what `Display` wrote.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { num_answers: next()?, num_pieces: next()?, num_errors: next()? })
    }
}

/// Puts the load on a server: so many streams at any time, each a connection.
pub(crate) async fn run(address: SocketAddr, load: Load) -> Counts {
    let next = Arc::new(AtomicUsize::new(0));
    let streams: Vec<_> =
        (0..load.num_streams).map(|_| tokio::spawn(stream(address, load, Arc::clone(&next)))).collect();
    let mut counts = Counts::default();
    for stream in streams {
        let of_stream = stream.await.expect("clients do not panic");
        counts.num_answers += of_stream.num_answers;
        counts.num_pieces += of_stream.num_pieces;
        counts.num_errors += of_stream.num_errors;
    }
    counts
}

/// One request after the other, until all have been sent.
async fn stream(address: SocketAddr, load: Load, next: Arc<AtomicUsize>) -> Counts {
    let mut counts = Counts::default();
    let mut connection = None;
    loop {
        let place = next.fetch_add(1, Ordering::Relaxed);
        if place >= load.num_requests {
            return counts;
        }
        match answer(&mut connection, address, &request(place, load)).await {
            Ok(num_pieces) => {
                counts.num_answers += 1;
                counts.num_pieces += num_pieces;
                counts.num_errors += usize::from(num_pieces != load.num_tokens_of(place));
            }
            Err(error) => {
                eprintln!("request {place}: {error}");
                counts.num_errors += 1;
                connection = None;
            }
        }
    }
}

fn request(place: usize, load: Load) -> Vec<u8> {
    let is_long = place % load.long_every == load.long_every - 1;
    let num_bytes = if is_long { LONG_BYTES } else { 100 };
    // No two prompts begin alike.
    let mut prompt = format!("{place} ");
    prompt.extend("to be or not to be, ".chars().cycle().take(num_bytes));
    let num_tokens = load.num_tokens_of(place);
    let body = format!(
        r#"{{"prompt":"{prompt}","max_tokens":{num_tokens},"temperature":0,"ignore_eos":true,"stream":true}}"#
    );
    let head = "POST /v1/completions HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\n";
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Sends a request and reads its answer to the end: the pieces that had text.
async fn answer(
    connection: &mut Option<TcpStream>,
    address: SocketAddr,
    request: &[u8],
) -> std::io::Result<usize> {
    if connection.is_none() {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        *connection = Some(stream);
    }
    let stream = connection.as_mut().expect("it was made above");
    stream.write_all(request).await?;
    let mut counter = Counter::default();
    let mut bytes = [0; 8192];
    loop {
        let num = stream.read(&mut bytes).await?;
        if num == 0 {
            return Err(std::io::Error::other("the connection was closed"));
        }
        counter.take(&bytes[..num]);
        if counter.is_bad() {
            return Err(std::io::Error::other(String::from_utf8_lossy(&counter.rest).into_owned()));
        }
        if counter.rest.ends_with(END) {
            return Ok(counter.num_pieces);
        }
    }
}

/// Counts what came, and keeps as much of it as a mark may begin in.
#[derive(Default)]
struct Counter {
    rest: Vec<u8>,
    num_pieces: usize,
    has_head: bool,
}

/// What a piece with text has, once.
const MARK: &[u8] = br#""text":"a"#;

impl Counter {
    fn take(&mut self, bytes: &[u8]) {
        let num_old = self.rest.len().min(MARK.len() - 1);
        let from = self.rest.len() - num_old;
        self.rest.extend_from_slice(bytes);
        self.num_pieces += self.rest[from..].windows(MARK.len()).filter(|window| *window == MARK).count();
        self.has_head |= self.rest.starts_with(b"HTTP/1.1 200");
        let num_kept = self.rest.len().min(END.len());
        if self.has_head {
            self.rest.drain(..self.rest.len() - num_kept);
        }
    }

    fn is_bad(&self) -> bool {
        !self.has_head && self.rest.len() > 12
    }
}
