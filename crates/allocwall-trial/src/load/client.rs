//! The generator's connections: kept alive, nonblocking, at most one request in progress on each. One thread, one epoll.

use crate::load::failure::Failure;
use crate::load::request::Request;
use crate::load::response::Reader;
use allocwall_host::alarm::Alarm;
use allocwall_host::clock::monotonic_ns;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

const ALARM: Token = Token(usize::MAX - 1);

/// Longest single wait, so that a stop is noticed soon.
const LONGEST_WAIT_NS: u64 = 50_000_000;

pub(super) struct Client<'a> {
    request: &'a Request,
    poll: Poll,
    events: Events,
    alarm: Alarm,
    slots: Vec<Option<Connection>>,
    /// Slots whose connection has no request, the last used on top.
    idle: Vec<usize>,
    vacant: Vec<usize>,
    buffer: Vec<u8>,
    finished: Vec<Finished>,
    opened: u64,
}

/// A finished request, successful or failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub job: u64,
    pub failure: Option<Failure>,
    /// Time at which its first byte was written; None if none was written.
    pub sent_ns: Option<u64>,
    pub end_ns: u64,
}

struct Connection {
    stream: TcpStream,
    phase: Phase,
    reader: Reader,
    job: u64,
    sent_ns: Option<u64>,
}

#[derive(Clone, Copy)]
enum Phase {
    Connecting,
    /// This many bytes of the request are written.
    Sending(usize),
    Waiting,
    Idle,
}

enum Progress {
    Pending,
    Answered {
        failure: Option<Failure>,
        keep: bool,
    },
    Failed(Failure),
    /// The server closed an idle connection: no request is lost.
    Dropped,
}

impl<'a> Client<'a> {
    /// A client with at most `most` connections; none is open yet.
    pub fn new(request: &'a Request, most: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let alarm = Alarm::new()?;
        poll.registry().register(&mut SourceFd(&alarm.as_raw_fd()), ALARM, Interest::READABLE)?;
        Ok(Client {
            request,
            poll,
            events: Events::with_capacity(1024),
            alarm,
            slots: (0..most).map(|_| None).collect(),
            idle: Vec::new(),
            vacant: (0..most).rev().collect(),
            buffer: vec![0; 64 << 10],
            finished: Vec::new(),
            opened: 0,
        })
    }

    /// Sends the request as `job` on an idle or new connection, and returns its slot; None if all connections are busy. If it fails
    /// at once, it is added to the finished requests.
    pub fn start(&mut self, job: u64) -> Option<usize> {
        let slot = match self.idle.pop() {
            Some(slot) => {
                if let Some(connection) = &mut self.slots[slot] {
                    connection.phase = Phase::Sending(0);
                    connection.job = job;
                    connection.sent_ns = None;
                }
                slot
            }
            None => {
                let slot = self.vacant.pop()?;
                match self.open(slot, job) {
                    Ok(connection) => self.slots[slot] = Some(connection),
                    Err(error) => {
                        self.vacant.push(slot);
                        self.finished.push(Finished {
                            job,
                            failure: Some(Failure::of(&error)),
                            sent_ns: None,
                            end_ns: monotonic_ns(),
                        });
                    }
                }
                return Some(slot);
            }
        };
        self.advance(slot, false, false);
        Some(slot)
    }

    fn open(&mut self, slot: usize, job: u64) -> io::Result<Connection> {
        let mut stream = TcpStream::connect(self.request.address.0)?;
        self.opened += 1;
        stream.set_nodelay(true)?;
        self.poll.registry().register(&mut stream, Token(slot), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Connection { stream, phase: Phase::Connecting, reader: Reader::default(), job, sent_ns: None })
    }

    /// Cancels `job` if `slot` still has it, and closes its connection. Returns the time at which its first byte was written.
    pub fn cancel(&mut self, slot: usize, job: u64) -> Option<u64> {
        let connection = self.slots[slot].as_ref()?;
        if connection.job != job || matches!(connection.phase, Phase::Idle) {
            return None;
        }
        let sent = connection.sent_ns;
        self.vacate(slot);
        sent
    }

    /// Waits for an event, or until CLOCK_MONOTONIC reaches `until`, at most 50 ms.
    pub fn wait(&mut self, until: u64) -> io::Result<()> {
        let now = monotonic_ns();
        let timeout = if until <= now || !self.finished.is_empty() {
            Some(Duration::ZERO)
        } else {
            self.alarm.set(until.min(now + LONGEST_WAIT_NS))?;
            None
        };
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in events.iter().filter(|event| event.token() != ALARM) {
            let closed = event.is_read_closed() || event.is_error();
            self.advance(event.token().0, true, closed);
        }
        self.events = events;
        Ok(())
    }

    /// Moves the requests that finished since the last call to `into`.
    pub fn take_finished(&mut self, into: &mut Vec<Finished>) {
        into.append(&mut self.finished);
    }

    pub fn opened(&self) -> u64 {
        self.opened
    }

    fn advance(&mut self, slot: usize, rang: bool, closed: bool) {
        // The event may belong to a connection that is already closed.
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        let progress = connection.advance(self.request, &mut self.buffer, rang, closed);
        let (failure, keep) = match progress {
            Progress::Pending => return,
            Progress::Dropped => {
                self.idle.retain(|idle| *idle != slot);
                self.vacate(slot);
                return;
            }
            Progress::Answered { failure, keep } => (failure, keep),
            Progress::Failed(failure) => (Some(failure), false),
        };
        self.finished.push(Finished {
            job: connection.job,
            failure,
            sent_ns: connection.sent_ns,
            end_ns: monotonic_ns(),
        });
        if keep {
            connection.phase = Phase::Idle;
            self.idle.push(slot);
        } else {
            self.vacate(slot);
        }
    }

    fn vacate(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.vacant.push(slot);
    }
}

impl Connection {
    /// Advances as far as possible without blocking. `rang`: epoll reported the connection, so there may be data; epoll is
    /// edge-triggered, so the socket is read until it is empty. `closed`: the peer sends no more data.
    fn advance(&mut self, request: &Request, buffer: &mut [u8], rang: bool, closed: bool) -> Progress {
        loop {
            match self.phase {
                Phase::Connecting => match self.stream.take_error() {
                    Ok(Some(error)) | Err(error) => return Progress::Failed(Failure::of(&error)),
                    Ok(None) => match self.stream.peer_addr() {
                        Ok(_) => self.phase = Phase::Sending(0),
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                            return Progress::Pending;
                        }
                        Err(error) => return Progress::Failed(Failure::of(&error)),
                    },
                },
                Phase::Sending(written) => {
                    self.sent_ns.get_or_insert_with(monotonic_ns);
                    match self.stream.write(&request.bytes[written..]) {
                        Ok(more) if written + more == request.bytes.len() => {
                            self.phase = Phase::Waiting;
                            if !rang {
                                return Progress::Pending;
                            }
                        }
                        Ok(more) => self.phase = Phase::Sending(written + more),
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Pending,
                        Err(error) => return Progress::Failed(Failure::of(&error)),
                    }
                }
                Phase::Waiting => match self.stream.read(buffer) {
                    Ok(0) => {
                        return match self.reader.closed() {
                            Some(answer) => {
                                Progress::Answered { failure: Failure::of_status(answer.status), keep: false }
                            }
                            None => Progress::Failed(Failure::Closed),
                        };
                    }
                    Ok(read) => match self.reader.feed(&buffer[..read], request.bodyless) {
                        Ok(Some(answer)) => {
                            return Progress::Answered {
                                failure: Failure::of_status(answer.status),
                                keep: answer.keep_alive && !closed,
                            };
                        }
                        // A read that does not fill the buffer has emptied the socket; new data cause a new event (epoll(7)).
                        Ok(None) if read < buffer.len() && !closed => return Progress::Pending,
                        Ok(None) => {}
                        Err(_) => return Progress::Failed(Failure::Malformed),
                    },
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Pending,
                    Err(error) => return Progress::Failed(Failure::of(&error)),
                },
                Phase::Idle => match self.stream.read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Pending,
                    // End of the connection, an error, or unexpected bytes.
                    _ => return Progress::Dropped,
                },
            }
        }
    }
}
