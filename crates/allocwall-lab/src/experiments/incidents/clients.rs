//! The clients of a service: each has one connection, and one request at a time.

use crate::histogram::Histogram;
use allocwall_host::clock::{monotonic_ns, sleep_until};
use anyhow::{Context, anyhow, ensure};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
/// The services answer with at most 64 KiB.
const LONGEST_ANSWER: usize = 128 << 10;
/// A service that needs longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Clients(Vec<TcpStream>);

impl Clients {
    /// # Errors
    /// Nothing accepts connections at this port.
    pub fn connect(port: u16, connections: usize) -> anyhow::Result<Clients> {
        let connect = |_| -> io::Result<TcpStream> {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let streams: io::Result<Vec<TcpStream>> = (0..connections).map(connect).collect();
        Ok(Clients(streams.context("cannot connect to the service")?))
    }

    /// `due` is asked for the time of each request. A client that gets none ends. Returns the times from when a request was due to
    /// the end of its answer.
    ///
    /// # Errors
    /// A connection or an answer is broken.
    pub fn run(&mut self, due: &(impl Fn() -> Option<u64> + Sync)) -> anyhow::Result<Histogram> {
        thread::scope(|scope| {
            let clients: Vec<_> =
                self.0.iter_mut().map(|stream| scope.spawn(move || requests(stream, due))).collect();
            // All are joined: the scope would pass on the panic of one that is not.
            let joined: Vec<_> = clients.into_iter().map(ScopedJoinHandle::join).collect();
            let mut times = Histogram::default();
            for client in joined {
                times.add(&client.map_err(|_| anyhow!("a client has failed"))??);
            }
            Ok(times)
        })
    }
}

fn requests(stream: &mut TcpStream, due: &impl Fn() -> Option<u64>) -> anyhow::Result<Histogram> {
    let mut times = Histogram::default();
    let mut room = vec![0; LONGEST_ANSWER];
    while let Some(due_ns) = due() {
        sleep_until(due_ns);
        stream.write_all(REQUEST).context("the service takes no request")?;
        receive(stream, &mut room)?;
        times.record(monotonic_ns().saturating_sub(due_ns));
    }
    Ok(times)
}

/// Reads one answer.
fn receive(from: &mut impl Read, room: &mut [u8]) -> anyhow::Result<()> {
    let (mut have, mut whole) = (0, None);
    loop {
        ensure!(have < room.len(), "the answer is longer than {} bytes", room.len());
        let got = match from.read(&mut room[have..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got.context("the service does not answer")?,
        };
        ensure!(got > 0, "the service closed the connection");
        have += got;
        if whole.is_none() {
            whole = length(&room[..have])?;
        }
        if whole.is_some_and(|whole| have >= whole) {
            return Ok(());
        }
    }
}

/// The length of an answer with its head; None before the end of the head.
fn length(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&bytes[..end]);
    ensure!(head.starts_with("HTTP/1.1 200 "), "the service answered {:?}", head.lines().next());
    let body = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
    let body = body.filter(|body| *body <= LONGEST_ANSWER).context("the answer has no valid length")?;
    Ok(Some(end + 4 + body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Gives out its parts, one with each read.
    struct Parts<'a>(&'a [&'a [u8]]);

    impl Read for Parts<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            self.0 = rest;
            into[..first.len()].copy_from_slice(first);
            Ok(first.len())
        }
    }

    #[test]
    fn an_answer_ends_with_its_length_and_a_broken_one_is_an_error() {
        let received = |parts: &[&[u8]]| receive(&mut Parts(parts), &mut [0; 256]);
        let head: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        assert!(
            received(&[head, b"a", b"bc"]).is_ok() && received(&[&head[..20], &head[20..], b"abc"]).is_ok()
        );
        let wrong: [(&[&[u8]], &str); 5] = [
            (&[head, b"ab"], "closed"),
            (&[b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"], "503"),
            (&[b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], "no valid length"),
            (&[b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n"], "no valid length"),
            (&[&[b'x'; 256]], "longer than 256"),
        ];
        for (parts, why) in wrong {
            let said = format!("{:#}", received(parts).unwrap_err());
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn requests_count_from_the_time_at_which_they_were_due() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut clients = Clients::connect(listener.local_addr().unwrap().port(), 1).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        thread::spawn(move || {
            let mut room = [0; 1000];
            while stream.read(&mut room).is_ok_and(|got| got > 0) {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
        });
        let left = AtomicU64::new(3);
        // They are sent now, and were due 50 ms ago.
        let due = || (left.fetch_sub(1, Relaxed) > 0).then(|| monotonic_ns() - 50_000_000);
        let times = clients.run(&due).unwrap();
        assert_eq!(times.count(), 3);
        assert!(times.quantile(0.0).is_some_and(|ns| ns >= 49e6));
    }
}
