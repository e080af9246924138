//! The target of the load, and its request: one HTTP/1.1 request, formatted once.

use allocwall_model::error::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// A TCP address. `localhost` is 127.0.0.1; for IPv6 write `[::1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Address {
    /// From `HOST:PORT`. Without `allow_remote` only loopback addresses are accepted, and only the name `localhost` is resolved.
    ///
    /// # Errors
    /// `Refused`: there is no port, the host isn't found, or it isn't this machine.
    pub fn parse(text: &str, allow_remote: bool) -> Result<Self> {
        let (host, port) = split_port(text);
        let port = port.ok_or_else(|| refused(format!("{text}: the port is missing; write {host}:PORT")))?;
        Address::of(host, port, allow_remote)
    }

    fn of(host: &str, port: &str, allow_remote: bool) -> Result<Self> {
        let number = match port.parse::<u16>() {
            Ok(number) if number > 0 => number,
            _ => {
                return Err(refused(format!("{port} is not a port: use a number from 1 to 65535")));
            }
        };
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let found = match bare.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, number),
            Err(_) if bare.eq_ignore_ascii_case("localhost") => {
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), number)
            }
            Err(_) if !allow_remote => return Err(remote(host)),
            Err(_) => {
                (bare, number).to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(|| {
                    refused(format!("the host {host} was not found; check the name, or use its IP address"))
                })?
            }
        };
        if !found.ip().is_loopback() && !allow_remote {
            return Err(remote(host));
        }
        Ok(Address(found))
    }
}

/// The host and the text after the last colon; a colon inside `[…]` belongs to the host.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn remote(host: &str) -> Error {
    refused(format!(
        "{host} is not this machine: use 127.0.0.1, [::1] or localhost, where the server of the trial listens"
    ))
}

fn refused(text: String) -> Error {
    Error::Refused(text)
}

/// The request as the user gives it.
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
        Ask { url, method: "GET", headers: &[], body: &[], allow_remote: false }
    }
}

/// A request as it is sent; the same bytes each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub address: Address,
    pub url: String,
    pub(super) bytes: Vec<u8>,
    /// The response to HEAD has a length but no body (RFC 9112, 6.3).
    pub(super) bodyless: bool,
}

/// Headers that only the generator may set: they determine where a request and its response end.
const OWN_HEADERS: &[&str] = &["content-length", "transfer-encoding", "connection", "expect", "upgrade"];

impl Request {
    /// # Errors
    /// `Refused`: a URL that the generator can't load, or an invalid method or header.
    pub fn new(ask: &Ask) -> Result<Self> {
        let url = ask.url;
        let rest = strip_scheme(url)?;
        let rest = rest.split('#').next().unwrap_or(rest);
        let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(path_at);
        if authority.is_empty() {
            return Err(refused(format!("{url}: the host is missing; write http://127.0.0.1:PORT/path")));
        }
        if authority.contains('@') {
            return Err(refused(format!(
                "{url}: a user in the URL is not sent; use the header Authorization"
            )));
        }
        if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(refused(format!(
                "{}: the path contains a space or control character; encode it, a space as %20",
                url.escape_debug()
            )));
        }
        let (host, port) = split_port(authority);
        let address = Address::of(host, port.unwrap_or("80"), ask.allow_remote)?;
        if !is_token(ask.method) {
            return Err(refused(format!("{:?} is not an HTTP method", ask.method)));
        }
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut head = format!("{} {slash}{path} HTTP/1.1\r\n", ask.method);
        if !ask.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
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
        Ok(Request { address, url: url.to_string(), bytes, bodyless: ask.method == "HEAD" })
    }
}

fn strip_scheme(url: &str) -> Result<&str> {
    match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => Ok(rest),
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => Err(refused(format!(
            "{url}: the built-in generator does not support TLS; load the server's http port, or use a tool with TLS in --load-cmd"
        ))),
        _ => Err(refused(format!("{url} is not an http URL; write http://127.0.0.1:PORT/path"))),
    }
}

fn check_header(name: &str, value: &str) -> Result<()> {
    if !is_token(name) {
        return Err(refused(format!("{name:?} is not a valid header name")));
    }
    if OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return Err(refused(format!("the generator sets the header {name} itself; remove it")));
    }
    if value.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
        return Err(refused(format!(
            "the header {name} contains a line break or control character: {}",
            value.escape_debug()
        )));
    }
    Ok(())
}

/// RFC 9110, 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
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
    fn a_get_has_the_standard_form() {
        assert_eq!(
            bytes(&Ask::get("http://127.0.0.1:8080/a/b?c=1#part")),
            "GET /a/b?c=1 HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n"
        );
        assert_eq!(bytes(&Ask::get("http://localhost?x")), "GET /?x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }

    #[test]
    fn a_body_has_its_length() {
        let headers =
            [("Content-Type".to_string(), "text/plain".to_string()), ("Host".into(), "shop".into())];
        let ask = Ask { method: "POST", headers: &headers, body: b"abc", ..Ask::get("http://[::1]:81/") };
        assert_eq!(
            bytes(&ask),
            "POST / HTTP/1.1\r\nContent-Type: text/plain\r\nHost: shop\r\nContent-Length: 3\r\n\r\nabc"
        );
        assert_eq!(Request::new(&ask).unwrap().address.to_string(), "[::1]:81");
    }

    #[test]
    fn an_invalid_url_is_refused_with_the_remedy() {
        for (url, said) in [
            ("https://127.0.0.1/", "does not support TLS"),
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
        let ask = Ask { allow_remote: true, ..Ask::get("http://10.0.0.1:8080/") };
        assert_eq!(Request::new(&ask).unwrap().address.to_string(), "10.0.0.1:8080");
    }

    #[test]
    fn a_header_cannot_inject_another() {
        for (name, value, said) in [
            ("X", "a\r\nY: b", "line break"),
            ("X Y", "a", "not a valid header name"),
            ("content-length", "3", "the generator sets"),
        ] {
            let headers = [(name.to_string(), value.to_string())];
            let message = message(&Ask { headers: &headers, ..Ask::get("http://127.0.0.1/") });
            assert!(message.contains(said) && !message.contains('\n'), "{message}");
        }
        let message = message(&Ask { method: "GET /x", ..Ask::get("http://127.0.0.1/") });
        assert!(message.contains("\"GET /x\""), "{message}");
    }

    #[test]
    fn addresses_need_a_port() {
        assert_eq!(Address::parse("localhost:7", false).unwrap().to_string(), "127.0.0.1:7");
        assert_eq!(Address::parse("[::1]:7", false).unwrap().to_string(), "[::1]:7");
        for text in ["localhost", "[::1]", "localhost:", "localhost:x"] {
            assert!(Address::parse(text, false).is_err(), "{text}");
        }
    }
}
