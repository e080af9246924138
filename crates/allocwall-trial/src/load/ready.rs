//! Checks whether the server is ready. Before the start its port must be free, otherwise another server would be loaded. After the
//! start it is polled until it answers.

use crate::load::failure::Failure;
use crate::load::request::{Address, Ask, Request};
use crate::load::response::Reader;
use allocwall_host::clock::{monotonic_ns, sleep_until};
use allocwall_model::error::{Error, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause between two polls: short compared with the start of a server, and too rare to slow it down.
pub const PAUSE: Duration = Duration::from_millis(20);
/// Where the time of the start itself is compared, it must not depend on when the server is polled.
pub const SHORT_PAUSE: Duration = Duration::from_millis(2);
/// Timeout of one poll; then the server is polled again.
const PATIENCE: Duration = Duration::from_secs(2);
/// A server that was ended keeps its port until it has given back its memory.
const ENDING: Duration = Duration::from_secs(1);

/// When a server counts as ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A GET has an answer with a status below 400.
    Http(Request),
    /// A TCP connection is accepted.
    Tcp(Address),
}

impl Ready {
    /// From `http://HOST[:PORT]/path` or `tcp:HOST:PORT`.
    ///
    /// # Errors
    /// `Refused`: another form, or a host that isn't this machine without `allow_remote`.
    pub fn parse(text: &str, allow_remote: bool) -> Result<Self> {
        match text.strip_prefix("tcp:") {
            Some(address) => Address::parse(address, allow_remote).map(Ready::Tcp),
            None if text.contains("://") => {
                let ask = Ask { allow_remote, ..Ask::get(text) };
                Request::new(&ask).map(Ready::Http)
            }
            None => Err(Error::Refused(format!(
                "{} is not a readiness check; write http://127.0.0.1:PORT/path or tcp:127.0.0.1:PORT",
                text.escape_debug()
            ))),
        }
    }

    pub fn address(&self) -> Address {
        match self {
            Ready::Http(request) => request.address,
            Ready::Tcp(address) => *address,
        }
    }

    /// Polls once. The error says why the server is not ready.
    fn ask(&self, patience: Duration) -> std::result::Result<(), String> {
        let mut stream = TcpStream::connect_timeout(&self.address().0, patience).map_err(|e| seen(&e))?;
        let Ready::Http(request) = self else { return Ok(()) };
        let status = status(&mut stream, request, patience).map_err(|e| seen(&e))?;
        match Failure::of_status(status) {
            None => Ok(()),
            Some(_) => Err(format!("status {status}")),
        }
    }
}

fn status(stream: &mut TcpStream, request: &Request, patience: Duration) -> io::Result<u16> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(&request.bytes)?;
    let until = monotonic_ns() + patience.as_nanos() as u64;
    let mut reader = Reader::default();
    let mut buffer = [0; 4096];
    loop {
        // Limits a server that sends without end.
        if monotonic_ns() > until {
            return Err(ErrorKind::TimedOut.into());
        }
        let answer = match stream.read(&mut buffer)? {
            0 => Some(reader.closed().ok_or(ErrorKind::UnexpectedEof)?),
            read => reader.feed(&buffer[..read], false).map_err(|_| ErrorKind::InvalidData)?,
        };
        if let Some(answer) = answer {
            return Ok(answer.status);
        }
    }
}

fn seen(error: &io::Error) -> String {
    match error.kind() {
        // A read timeout is EAGAIN (socket(7), SO_RCVTIMEO).
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer".to_string(),
        ErrorKind::UnexpectedEof => Failure::Closed.text().to_string(),
        ErrorKind::InvalidData => Failure::Malformed.text().to_string(),
        _ => match Failure::of(error) {
            Failure::Other => error.to_string(),
            known => known.text().to_string(),
        },
    }
}

/// Polls until the server is ready, and returns the time that it took. `pause`: between two polls. `ended` returns how the started
/// command ended, if it did: then the wait ends at once.
///
/// # Errors
/// `Refused`, with the last observation: `timeout` passed, the command ended, or `stop` was set.
pub fn wait(
    ready: &Ready,
    timeout: Duration,
    pause: Duration,
    mut ended: impl FnMut() -> Option<String>,
    stop: &AtomicBool,
) -> Result<Duration> {
    let address = ready.address();
    let from = monotonic_ns();
    let until = from.saturating_add(timeout.as_nanos() as u64);
    loop {
        let left = Duration::from_nanos(until.saturating_sub(monotonic_ns())).max(Duration::from_millis(1));
        let answer = ready.ask(left.min(PATIENCE));
        // Checked after the answer: if the command has ended, another server answered.
        if let Some(how) = ended() {
            return Err(Error::Refused(format!(
                "the command ended ({how}) before {address} was ready; check its output, and the port that it listens on"
            )));
        }
        let now = monotonic_ns();
        let last = match answer {
            Ok(()) => return Ok(Duration::from_nanos(now - from)),
            Err(last) => last,
        };
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Refused(format!(
                "interrupted while waiting for {address}; last state: {last}"
            )));
        }
        if now >= until {
            return Err(Error::Refused(format!(
                "{address} was not ready after {:.1} s; last state: {last}; use a longer --ready-timeout, or another --ready",
                timeout.as_secs_f64()
            )));
        }
        sleep_until((now + pause.as_nanos() as u64).min(until));
    }
}

/// Checks that a server that is started now can listen at this address. Waits a moment for a server that was just ended.
///
/// # Errors
/// `Refused`: another process listens there already, or the address is not one of this machine.
pub fn port_is_free(address: &Address) -> Result<()> {
    let until = Instant::now() + ENDING;
    while is_taken(address)? {
        if Instant::now() >= until {
            return Err(Error::Refused(format!(
                "{address} is in use before the command starts, so the load would go to another server; end that server (find it with \
                 ss -ltnp), or use another port"
            )));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn is_taken(address: &Address) -> Result<bool> {
    match TcpListener::bind(address.0) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(true),
        // Only root may bind a port below 1024; a connection shows whether it is in use.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Ok(TcpStream::connect_timeout(&address.0, PATIENCE).is_ok())
        }
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Err(Error::Refused(format!(
            "{address} is not an address of this machine, on which the command runs; use 127.0.0.1 or [::1]"
        ))),
        Err(error) => Err(Error::Refused(format!("could not check whether {address} is in use: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::test_server::{Server, answer};
    use std::cell::Cell;
    use std::thread::sleep;

    const SHORT: Duration = Duration::from_millis(150);
    const LONG: Duration = Duration::from_secs(60);

    fn running() -> impl FnMut() -> Option<String> {
        || None
    }

    fn wait_for(text: &str, timeout: Duration) -> Result<Duration> {
        wait(&Ready::parse(text, false).unwrap(), timeout, PAUSE, running(), &AtomicBool::new(false))
    }

    #[test]
    fn a_server_that_fails_at_first_is_waited_for() {
        let server = Server::start(|number, stream| answer(stream, if number < 3 { 503 } else { 200 }));
        wait_for(&server.url(), LONG).unwrap();
        assert_eq!(server.requests.load(Ordering::Relaxed), 4);
        // For tcp a connection is enough; the status does not matter.
        wait_for(&format!("tcp:{}", server.address), LONG).unwrap();
    }

    #[test]
    fn a_server_that_starts_late_is_waited_for() {
        let address = Server::closed_address();
        let late = std::thread::spawn(move || {
            sleep(Duration::from_millis(100));
            TcpListener::bind(address).unwrap().accept().unwrap();
        });
        let took = wait_for(&format!("tcp:{address}"), LONG).unwrap();
        assert!(took >= Duration::from_millis(50), "{took:?}");
        late.join().unwrap();
    }

    #[test]
    fn the_last_state_is_reported() {
        let closed = format!("tcp:{}", Server::closed_address());
        let bad = Server::start(|_, stream| answer(stream, 503));
        let silent = Server::start(|_, _| {
            sleep(Duration::from_secs(1));
            Ok(())
        });
        let foreign = Server::start(|_, stream| stream.write_all(b"+PONG\r\n"));
        // Long enough for an answer, even on a busy machine.
        let answered = Duration::from_secs(2);
        for (text, timeout, seen) in [
            (closed, SHORT, "connection refused"),
            (bad.url(), answered, "status 503"),
            (silent.url(), SHORT, "no answer"),
            (foreign.url(), answered, "not HTTP/1.1"),
        ] {
            let message = wait_for(&text, timeout).unwrap_err().to_string();
            // The advice for a timeout.
            assert!(message.contains(seen) && message.contains("--ready-timeout"), "{text}: {message}");
        }
    }

    #[test]
    fn an_ended_command_is_not_waited_for_even_if_another_server_answers() {
        let server = Server::start(|_, stream| answer(stream, 200));
        for text in [server.url(), format!("tcp:{}", Server::closed_address())] {
            let asked = Cell::new(0);
            let ended = || {
                asked.set(asked.get() + 1);
                Some("exit status 3".to_string())
            };
            let message =
                wait(&Ready::parse(&text, false).unwrap(), LONG, PAUSE, ended, &AtomicBool::new(false))
                    .unwrap_err()
                    .to_string();
            assert!(message.contains("exit status 3"), "{message}");
            assert_eq!(asked.get(), 1);
        }
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let ready = Ready::Tcp(Address(Server::closed_address()));
        let message = wait(&ready, LONG, PAUSE, running(), &AtomicBool::new(true)).unwrap_err().to_string();
        assert!(message.contains("interrupted"), "{message}");
    }

    #[test]
    fn other_forms_are_refused() {
        for text in
            ["", "8080", "127.0.0.1:8080", "tcp:8080", "tcp:10.0.0.1:80", "unix:/x", "https://127.0.0.1/"]
        {
            assert!(Ready::parse(text, false).is_err(), "{text}");
        }
    }

    #[test]
    fn a_taken_port_is_refused_and_a_free_one_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address(listener.local_addr().unwrap());
        let message = port_is_free(&address).unwrap_err().to_string();
        // The command that shows which process listens there.
        assert!(message.contains("ss -ltnp"), "{message}");
        // A port with connections of the last run in TIME_WAIT is free.
        let client = TcpStream::connect(address.0).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        drop((accepted, listener));
        drop(client);
        port_is_free(&address).unwrap();
    }

    #[test]
    fn a_server_that_is_ending_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address(listener.local_addr().unwrap());
        let ends = std::thread::spawn(move || {
            std::thread::sleep(ENDING / 4);
            drop(listener);
        });
        port_is_free(&address).unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn an_address_elsewhere_is_refused() {
        // TEST-NET-1 (RFC 5737): an address that no machine has.
        let message = port_is_free(&Address::parse("192.0.2.1:80", true).unwrap()).unwrap_err().to_string();
        // An address that can be used instead.
        assert!(message.contains("127.0.0.1"), "{message}");
    }
}
