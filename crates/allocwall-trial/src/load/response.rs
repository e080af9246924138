//! Finds the end of an HTTP/1.1 response (RFC 9112, 6.3). The response is read in pieces of any size; its body is counted and
//! discarded.

/// Limit for a response head, larger than any real head: a stream without an end of head must not fill memory.
const LONGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    /// Whether the connection may carry another request.
    pub keep_alive: bool,
}

/// The response is not HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads one response after the other.
#[derive(Default)]
pub(crate) struct Reader {
    state: State,
    /// An incomplete head or line.
    held: Vec<u8>,
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Head,
    /// Remaining bytes of the body.
    Length(u64),
    ChunkSize,
    /// Remaining bytes of a chunk and of the line end after it.
    Chunk(u64),
    /// Lines after the last chunk, up to an empty line.
    Trailer,
    UntilClose,
}

impl Reader {
    /// Takes the next bytes. Returns the response if they complete it, None if more bytes are needed. Bytes after the end of the
    /// response are malformed, because only one request is in progress. `bodyless`: the request was a HEAD.
    pub fn feed(&mut self, mut bytes: &[u8], bodyless: bool) -> Result<Option<Answer>, Malformed> {
        while !bytes.is_empty() {
            match self.state {
                State::Head => match self.head(&mut bytes, bodyless)? {
                    Some(state) => self.state = state,
                    None => return Ok(None),
                },
                State::Length(left) => self.state = State::Length(skip(&mut bytes, left)),
                State::Chunk(left) => {
                    let left = skip(&mut bytes, left);
                    self.state = if left == 0 { State::ChunkSize } else { State::Chunk(left) };
                }
                State::ChunkSize => match self.line(&mut bytes)? {
                    Some(line) => {
                        self.state = match chunk_size(&line)? {
                            0 => State::Trailer,
                            size => State::Chunk(size + 2),
                        }
                    }
                    None => return Ok(None),
                },
                State::Trailer => match self.line(&mut bytes)? {
                    Some(line) if line.is_empty() => self.state = State::Length(0),
                    Some(_) => {}
                    None => return Ok(None),
                },
                State::UntilClose => return Ok(None),
            }
            if let State::Length(0) = self.state {
                return if bytes.is_empty() { Ok(self.take()) } else { Err(Malformed) };
            }
        }
        Ok(None)
    }

    /// The peer closed the connection. Returns the response if the close marks its end.
    pub fn closed(&mut self) -> Option<Answer> {
        match self.state {
            State::UntilClose => self.take(),
            _ => None,
        }
    }

    fn take(&mut self) -> Option<Answer> {
        self.state = State::Head;
        self.held.clear();
        self.answer.take()
    }

    /// The state after the head, or None while the head is incomplete.
    fn head(&mut self, bytes: &mut &[u8], bodyless: bool) -> Result<Option<State>, Malformed> {
        let held = self.held.len();
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        // Usually a head arrives complete and needs no copy.
        let parsed = if held == 0 {
            response.parse(bytes)
        } else {
            self.held.extend_from_slice(bytes);
            response.parse(&self.held)
        };
        let length = match parsed {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => {
                if held == 0 {
                    self.held.extend_from_slice(bytes);
                }
                *bytes = &[];
                return if self.held.len() > LONGEST_HEAD { Err(Malformed) } else { Ok(None) };
            }
            Err(_) => return Err(Malformed),
        };
        let status = response.code.ok_or(Malformed)?;
        let framing = Framing::of(response.headers)?;
        let keep_alive = match response.version {
            Some(0) => framing.says_keep_alive,
            _ => !framing.says_close,
        };
        let state = match status {
            // An interim response: the final response follows.
            100..200 => State::Head,
            204 | 304 => State::Length(0),
            _ if bodyless => State::Length(0),
            _ if framing.chunked => State::ChunkSize,
            _ => framing.length.map_or(State::UntilClose, State::Length),
        };
        if !matches!(state, State::Head) {
            let keep_alive = keep_alive && !matches!(state, State::UntilClose);
            self.answer = Some(Answer { status, keep_alive });
        }
        *bytes = &bytes[length - held..];
        self.held.clear();
        Ok(Some(state))
    }

    /// The next line without its line end, or None while it is incomplete.
    fn line(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.held.extend_from_slice(bytes);
            *bytes = &[];
            return if self.held.len() > LONGEST_HEAD { Err(Malformed) } else { Ok(None) };
        };
        self.held.extend_from_slice(&bytes[..end]);
        *bytes = &bytes[end + 1..];
        let mut line = std::mem::take(&mut self.held);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(line))
    }
}

fn skip(bytes: &mut &[u8], left: u64) -> u64 {
    let here = left.min(bytes.len() as u64);
    *bytes = &bytes[here as usize..];
    left - here
}

fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.split(|b| *b == b';').next().unwrap_or(line).trim_ascii();
    let digits = std::str::from_utf8(digits).map_err(|_| Malformed)?;
    // `from_str_radix` accepts a sign, the standard doesn't. 15 digits plus the line end can't overflow.
    if digits.is_empty() || digits.len() > 15 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(Malformed);
    }
    u64::from_str_radix(digits, 16).map_err(|_| Malformed)
}

#[derive(Default)]
struct Framing {
    length: Option<u64>,
    chunked: bool,
    says_close: bool,
    says_keep_alive: bool,
}

impl Framing {
    fn of(headers: &[httparse::Header]) -> Result<Self, Malformed> {
        let mut framing = Framing::default();
        for header in headers {
            let value = || std::str::from_utf8(header.value).map_err(|_| Malformed);
            if header.name.eq_ignore_ascii_case("content-length") {
                let text = value()?;
                if !text.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(Malformed);
                }
                let length = text.parse().map_err(|_| Malformed)?;
                // With two different lengths the end is ambiguous (RFC 9112, 6.3).
                if framing.length.replace(length).is_some_and(|other| other != length) {
                    return Err(Malformed);
                }
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                framing.chunked = value()?
                    .rsplit(',')
                    .next()
                    .is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"));
            } else if header.name.eq_ignore_ascii_case("connection") {
                for word in value()?.split(',').map(str::trim) {
                    framing.says_close |= word.eq_ignore_ascii_case("close");
                    framing.says_keep_alive |= word.eq_ignore_ascii_case("keep-alive");
                }
            }
        }
        Ok(framing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANSWERS: &[(&str, u16, bool)] = &[
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, true),
        ("HTTP/1.1 404 Not Found\r\nconnection: Close\r\ncontent-length: 1\r\n\r\nx", 404, false),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", 200, false),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab", 200, true),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx", 201, true),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nWiki\r\na;note=1\r\n0123456789\r\n0\r\nA: b\r\n\r\n",
            200,
            true,
        ),
    ];

    fn read(text: &[u8], piece: usize) -> Result<Option<Answer>, Malformed> {
        let mut reader = Reader::default();
        let mut last = Ok(None);
        for bytes in text.chunks(piece) {
            assert!(matches!(last, Ok(None)), "a response before its end");
            last = reader.feed(bytes, false);
        }
        last
    }

    #[test]
    fn responses_end_correctly_in_pieces_of_any_size() {
        for (text, status, keep_alive) in ANSWERS {
            for piece in 1..=text.len() {
                let answer =
                    read(text.as_bytes(), piece).unwrap().unwrap_or_else(|| panic!("{text:?} by {piece}"));
                assert_eq!((answer.status, answer.keep_alive), (*status, *keep_alive), "{text:?} by {piece}");
            }
            // The near twin: without the last byte the response is incomplete.
            assert_eq!(read(&text.as_bytes()[..text.len() - 1], text.len()), Ok(None), "{text:?}");
        }
    }

    #[test]
    fn a_close_ends_only_a_response_without_a_length() {
        let mut reader = Reader::default();
        assert_eq!(reader.feed(b"HTTP/1.1 200 OK\r\n\r\nsome", false), Ok(None));
        let answer = Answer { status: 200, keep_alive: false };
        assert_eq!(reader.closed(), Some(answer));
        assert_eq!(reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", false), Ok(None));
        assert_eq!(reader.closed(), None);
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        assert!(Reader::default().feed(text, true).unwrap().is_some());
        assert!(Reader::default().feed(text, false).unwrap().is_none());
    }

    #[test]
    fn one_reader_reads_several_responses() {
        let mut reader = Reader::default();
        for (text, status, _) in ANSWERS {
            assert_eq!(reader.feed(text.as_bytes(), false).unwrap().unwrap().status, *status);
        }
    }

    #[test]
    fn an_invalid_response_is_malformed() {
        for text in [
            "+PONG\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        ] {
            assert_eq!(read(text.as_bytes(), text.len()), Err(Malformed), "{text:?}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(2 * LONGEST_HEAD));
        let mut reader = Reader::default();
        assert!(endless.as_bytes().chunks(4096).any(|bytes| reader.feed(bytes, false).is_err()));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20)) {
            let mut reader = Reader::default();
            let _ = reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false);
            for piece in pieces {
                if reader.feed(&piece, false).is_err() {
                    break;
                }
            }
            reader.closed();
        }
    }
}
