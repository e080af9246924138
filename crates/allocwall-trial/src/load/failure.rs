//! The failures of requests. They are counted by kind, and every failed request stays in the distribution.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// No process listens on the port.
    Refused,
    Reset,
    /// The connection ended before the response was complete.
    Closed,
    /// No complete response within the timeout, from the intended start.
    TimedOut,
    /// The response is not HTTP/1.1.
    Malformed,
    /// Status 400 to 499.
    ClientError,
    /// Status 500 and above.
    ServerError,
    /// The generator's own limit: no local port or no file descriptor was left.
    LocalLimit,
    Other,
}

impl Failure {
    pub fn text(self) -> &'static str {
        match self {
            Failure::Refused => "connection refused",
            Failure::Reset => "connection reset",
            Failure::Closed => "connection closed before the response was complete",
            Failure::TimedOut => "no answer within the timeout",
            Failure::Malformed => "response is not HTTP/1.1",
            Failure::ClientError => "status 4xx",
            Failure::ServerError => "status 5xx",
            Failure::LocalLimit => "the generator has no local port or file descriptor left",
            Failure::Other => "other connection error",
        }
    }

    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
                Failure::Reset
            }
            io::ErrorKind::AddrNotAvailable => Failure::LocalLimit,
            _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Failure::LocalLimit,
            _ => Failure::Other,
        }
    }

    /// None for a successful status. Redirections are successful and are not followed.
    pub(super) fn of_status(status: u16) -> Option<Self> {
        match status {
            0..400 => None,
            400..500 => Some(Failure::ClientError),
            500.. => Some(Failure::ServerError),
        }
    }
}

/// Failed requests by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures(pub BTreeMap<Failure, u64>);

impl Failures {
    pub(super) fn add(&mut self, failure: Failure) {
        *self.0.entry(failure).or_default() += 1;
    }

    pub fn of(&self, failure: Failure) -> u64 {
        self.0.get(&failure).copied().unwrap_or(0)
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no failures");
        }
        for (at, (failure, count)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{count} × {}", failure.text())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_map_to_their_kind() {
        for (code, failure) in [
            (libc::ECONNREFUSED, Failure::Refused),
            (libc::ECONNRESET, Failure::Reset),
            (libc::EPIPE, Failure::Reset),
            (libc::EADDRNOTAVAIL, Failure::LocalLimit),
            (libc::EMFILE, Failure::LocalLimit),
            (libc::EHOSTUNREACH, Failure::Other),
        ] {
            assert_eq!(Failure::of(&io::Error::from_raw_os_error(code)), failure);
        }
    }

    #[test]
    fn a_status_fails_from_400_on() {
        assert_eq!(Failure::of_status(200), None);
        assert_eq!(Failure::of_status(399), None);
        assert_eq!(Failure::of_status(400), Some(Failure::ClientError));
        assert_eq!(Failure::of_status(500), Some(Failure::ServerError));
    }

    #[test]
    fn counts_are_printed_by_kind() {
        let mut failures = Failures::default();
        assert_eq!(failures.to_string(), "no failures");
        for failure in [Failure::TimedOut, Failure::Refused, Failure::TimedOut] {
            failures.add(failure);
        }
        assert_eq!(failures.to_string(), "1 × connection refused, 2 × no answer within the timeout");
        assert_eq!((failures.total(), failures.of(Failure::Reset)), (3, 0));
    }
}
