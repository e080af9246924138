//! Small HTTP servers for tests: one thread per connection; the test writes the response.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(super) struct Server {
    pub address: SocketAddr,
    /// Requests read so far.
    pub requests: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Calls `handle` with each new connection.
    pub fn raw(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let handle = Arc::new(handle);
        let stopped = stop.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let handle = handle.clone();
                std::thread::spawn(move || handle(stream.unwrap()));
            }
        });
        Server { address, requests: Arc::default(), stop }
    }

    /// `handle` gets the number of the request over all connections, from 0, and answers it.
    pub fn start(handle: impl Fn(u64, &mut TcpStream) -> Handled + Send + Sync + 'static) -> Self {
        let requests = Arc::new(AtomicU64::new(0));
        let counted = requests.clone();
        let mut server = Server::raw(move |stream| serve(stream, &counted, &handle));
        server.requests = requests;
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// An address on which no server listens. Not 127.0.0.1, where the server of another test could get the port.
    pub fn closed_address() -> SocketAddr {
        TcpListener::bind("127.7.7.7:0").unwrap().local_addr().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener. The thread of a connection ends with its connection.
        let _ = TcpStream::connect(self.address);
    }
}

/// An error ends the connection.
pub(super) type Handled = std::io::Result<()>;

fn serve(stream: TcpStream, counted: &AtomicU64, handle: &impl Fn(u64, &mut TcpStream) -> Handled) {
    stream.set_nodelay(true).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let mut length = 0;
        loop {
            line.clear();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        if std::io::Read::read_exact(&mut reader, &mut body).is_err() {
            return;
        }
        if handle(counted.fetch_add(1, Ordering::Relaxed), &mut writer).is_err() {
            return;
        }
    }
}

pub(super) fn answer(stream: &mut TcpStream, status: u16) -> Handled {
    // One write, one packet.
    stream.write_all(format!("HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\nok").as_bytes())
}
