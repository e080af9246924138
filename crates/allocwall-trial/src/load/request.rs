//! Which server is loaded, and with what: one HTTP/1.1 request, written out once.

use allocwall_model::error::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// A TCP address. `localhost` is 127.0.0.1; write `[::1]` for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Address {
    /// From `HOST:PORT`. Loopback only unless `allow_remote`, without which no name but `localhost` is looked up.
    ///
    /// # Errors
    /// `Refused`: no port, a host that isn't found, or one that isn't this machine.
    pub fn parse(text: &str, allow_remote: bool) -> Result<Self> {
        let (host, port) = split_port(text);
        let port = port.ok_or_else(|| refused(format!("{text}: the port is missing; write {host}:PORT")))?;
        Address::of(host, port, allow_remote)
    }

    fn of(host: &str, port: &str, allow_remote: bool) -> Result<Self> {
        let number = match port.parse::<u16>() {
            Ok(number) if number > 0 => number,
            _ => {
                return Err(refused(format!(
                    "{port} is no port: it must be a number from 1 to 65535"
                )));
            }
        };
        let bare = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        let found = match bare.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, number),
            Err(_) if bare.eq_ignore_ascii_case("localhost") => {
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), number)
            }
            Err(_) if !allow_remote => return Err(remote(host)),
            Err(_) => (bare, number)
                .to_socket_addrs()
                .ok()
                .and_then(|mut all| all.next())
                .ok_or_else(|| {
                    refused(format!(
                        "the host {host} was not found; check the name, or write its number"
                    ))
                })?,
        };
        if !found.ip().is_loopback() && !allow_remote {
            return Err(remote(host));
        }
        Ok(Address(found))
    }
}

/// The host and the text after its last colon; a colon inside `[…]` is the host's.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn remote(host: &str) -> Error {
    refused(format!(
        "{host} is not this machine: load goes to 127.0.0.1, [::1] or localhost, where the trial's own server listens"
    ))
}

fn refused(text: String) -> Error {
    Error::Refused(text)
}

/// What the user asks for.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// `http://HOST[:PORT][/path][?query]`.
    pub url: &'a str,
    pub method: &'a str,
    pub headers: &'a [(String, String)],
    pub body: &'a [u8],
    pub allow_remote: bool,
}

impl<'a> Ask<'a> {
    /// A plain GET to this machine.
    pub fn get(url: &'a str) -> Self {
        Ask {
            url,
            method: "GET",
            headers: &[],
            body: &[],
            allow_remote: false,
        }
    }
}

/// A request as it goes over the wire, the same bytes each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub address: Address,
    pub url: String,
    pub(super) bytes: Vec<u8>,
    /// The answer to HEAD has a length but no body (RFC 9112, 6.3).
    pub(super) bodyless: bool,
}

/// Headers that the generator must write itself, or it could not tell where a request ends.
const OWN_HEADERS: &[&str] = &[
    "content-length",
    "transfer-encoding",
    "connection",
    "expect",
    "upgrade",
];

impl Request {
    /// # Errors
    /// `Refused`: a URL that can't be loaded, or a method or header that would not be one on the wire.
    pub fn new(ask: &Ask) -> Result<Self> {
        let url = ask.url;
        let rest = strip_scheme(url)?;
        let rest = rest.split('#').next().unwrap_or(rest);
        let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(path_at);
        if authority.is_empty() {
            return Err(refused(format!(
                "{url}: the host is missing; write http://127.0.0.1:PORT/path"
            )));
        }
        if authority.contains('@') {
            return Err(refused(format!(
                "{url}: a user in the URL is not sent; give the header Authorization"
            )));
        }
        if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(refused(format!(
                "{}: a space or control character in the path; write it as %20 or the like",
                url.escape_debug()
            )));
        }
        let (host, port) = split_port(authority);
        let address = Address::of(host, port.unwrap_or("80"), ask.allow_remote)?;
        if !is_token(ask.method) {
            return Err(refused(format!("{:?} is no HTTP method", ask.method)));
        }
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut head = format!("{} {slash}{path} HTTP/1.1\r\n", ask.method);
        if !ask
            .headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            head.push_str(&format!("Host: {authority}\r\n"));
        }
        for (name, value) in ask.headers {
            check_header(name, value)?;
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !ask.body.is_empty() || matches!(ask.method, "POST" | "PUT" | "PATCH") {
            head.push_str(&format!("Content-Length: {}\r\n", ask.body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(ask.body);
        Ok(Request {
            address,
            url: url.to_string(),
            bytes,
            bodyless: ask.method == "HEAD",
        })
    }
}

fn strip_scheme(url: &str) -> Result<&str> {
    match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => Ok(rest),
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => Err(refused(format!(
            "{url}: the generator speaks no TLS; load the server's http port, or use a tool that speaks it with --load-cmd"
        ))),
        _ => Err(refused(format!(
            "{url} is no URL to load; write http://127.0.0.1:PORT/path"
        ))),
    }
}

fn check_header(name: &str, value: &str) -> Result<()> {
    if !is_token(name) {
        return Err(refused(format!("{name:?} is no name of a header")));
    }
    if OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return Err(refused(format!(
            "the header {name} is the generator's own; leave it out"
        )));
    }
    if value.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
        return Err(refused(format!(
            "the header {name} holds a line break or control character: {}",
            value.escape_debug()
        )));
    }
    Ok(())
}

/// RFC 9110, 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(ask: &Ask) -> String {
        String::from_utf8(Request::new(ask).unwrap().bytes).unwrap()
    }

    fn message(ask: &Ask) -> String {
        Request::new(ask).unwrap_err().to_string()
    }

    #[test]
    fn a_get_is_written_as_the_standard_says() {
        assert_eq!(
            bytes(&Ask::get("http://127.0.0.1:8080/a/b?c=1#part")),
            "GET /a/b?c=1 HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n"
        );
        assert_eq!(
            bytes(&Ask::get("http://localhost?x")),
            "GET /?x HTTP/1.1\r\nHost: localhost\r\n\r\n"
        );
    }

    #[test]
    fn a_body_has_its_length() {
        let headers = [
            ("Content-Type".to_string(), "text/plain".to_string()),
            ("Host".into(), "shop".into()),
        ];
        let ask = Ask {
            method: "POST",
            headers: &headers,
            body: b"abc",
            ..Ask::get("http://[::1]:81/")
        };
        assert_eq!(
            bytes(&ask),
            "POST / HTTP/1.1\r\nContent-Type: text/plain\r\nHost: shop\r\nContent-Length: 3\r\n\r\nabc"
        );
        assert_eq!(Request::new(&ask).unwrap().address.to_string(), "[::1]:81");
    }

    #[test]
    fn what_cannot_be_loaded_is_refused_with_the_way_out() {
        for (url, said) in [
            ("https://127.0.0.1/", "no TLS"),
            ("127.0.0.1:80", "write http://127.0.0.1:PORT/path"),
            ("http:///x", "the host is missing"),
            ("http://127.0.0.1:0/", "number from 1 to 65535"),
            ("http://127.0.0.1:70000/", "number from 1 to 65535"),
            ("http://me@127.0.0.1/", "Authorization"),
            ("http://127.0.0.1/a b", "%20"),
            ("http://10.0.0.1/", "not this machine"),
            ("http://example.com/", "not this machine"),
        ] {
            let message = message(&Ask::get(url));
            assert!(message.contains(said), "{url}: {message}");
            assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn another_machine_is_loaded_only_when_allowed() {
        let ask = Ask {
            allow_remote: true,
            ..Ask::get("http://10.0.0.1:8080/")
        };
        assert_eq!(Request::new(&ask).unwrap().address.to_string(), "10.0.0.1:8080");
    }

    #[test]
    fn a_header_cannot_smuggle_another() {
        for (name, value, said) in [
            ("X", "a\r\nY: b", "line break"),
            ("X Y", "a", "no name of a header"),
            ("content-length", "3", "generator's own"),
        ] {
            let headers = [(name.to_string(), value.to_string())];
            let message = message(&Ask {
                headers: &headers,
                ..Ask::get("http://127.0.0.1/")
            });
            assert!(message.contains(said) && !message.contains('\n'), "{message}");
        }
        assert!(
            message(&Ask {
                method: "GET /x",
                ..Ask::get("http://127.0.0.1/")
            })
            .contains("no HTTP method")
        );
    }

    #[test]
    fn addresses_need_a_port() {
        assert_eq!(
            Address::parse("localhost:7", false).unwrap().to_string(),
            "127.0.0.1:7"
        );
        assert_eq!(Address::parse("[::1]:7", false).unwrap().to_string(), "[::1]:7");
        for text in ["localhost", "[::1]", "localhost:", "localhost:x"] {
            assert!(Address::parse(text, false).is_err(), "{text}");
        }
    }
}
