//! A browser and a web server, as far as a page's loading time is about them: HTTP/1.1
//! (RFC 9112), persistent connections, a request at a time on each.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use socket2::{Domain, Socket, Type};

use super::bulk::sleep_until;
use crate::paper::Browsing;
use crate::path::Path;

/// The port that the server listens on.
const PORT: u16 = 8080;
/// The time limit for connecting and for each read: a path that carries nothing for so long is
/// broken.
const TIMEOUT: Duration = Duration::from_secs(120);
/// What browsers send along with a request (name, languages, cookies), in bytes.
const REQUEST_HEADERS: usize = 400;

/// A web server on the sending host; takes no more connections when dropped.
#[derive(Debug)]
pub struct Server {
    listener: Socket,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server that sends by the congestion control `congestion`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(path: &Path, congestion: &str) -> Result<Self> {
        let listener = path.sender.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket
                .set_tcp_congestion(congestion.as_bytes())
                .with_context(|| format!("congestion control `{congestion}`"))?;
            socket.bind(&Path::sender_address(PORT).into())?;
            socket.listen(128)?;
            Ok(socket)
        })?;
        let accepting: TcpListener = listener.try_clone()?.into();
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                // It ends with its connection, which the browser closes.
                thread::spawn(move || serve(&stream));
            }
        });
        Ok(Self {
            listener,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends `accept`.
        let ended = self.listener.shutdown(Shutdown::Both);
        if let (Ok(()), Some(thread)) = (ended, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Answers `GET /COUNT` with so many bytes, one request after the other.
fn serve(mut stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut requests = BufReader::new(stream.try_clone()?);
    let block = vec![0x5a; 64 * 1024];
    while let Some(mut length) = request(&mut requests)? {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        while length > 0 {
            let part = usize::try_from(length).map_or(block.len(), |left| left.min(block.len()));
            stream.write_all(&block[..part])?;
            length -= part as u64;
        }
    }
    Ok(())
}

/// Reads what the next request asks for; `None` at the end.
fn request(from: &mut impl BufRead) -> Result<Option<u64>> {
    let mut first = String::new();
    if from.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    skip_head(from)?;
    let path = first.split(' ').nth(1).context("no request")?;
    Ok(Some(path.trim_start_matches('/').parse()?))
}

fn skip_head(from: &mut impl BufRead) -> Result<()> {
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        ensure!(from.read_line(&mut line)? > 0, "it ends within a header");
    }
    Ok(())
}

/// One persistent connection of a browser.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects to the server, from within the browser's namespace.
    ///
    /// # Errors
    /// When that fails.
    pub fn open() -> Result<Self> {
        let stream = TcpStream::connect_timeout(&Path::sender_address(PORT), TIMEOUT)
            .context("no connection to the server")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self {
            stream: BufReader::with_capacity(64 * 1024, stream),
        })
    }

    /// Requests `length` bytes, and tells `arrived` how many there are each time that some come.
    ///
    /// # Errors
    /// When the answer is another one or breaks off.
    pub fn get(&mut self, length: u64, arrived: &mut dyn FnMut(u64)) -> Result<()> {
        let headers = "x".repeat(REQUEST_HEADERS);
        let head = format!("GET /{length} HTTP/1.1\r\nHost: 10.1.0.2\r\nCookie: {headers}\r\n\r\n");
        self.stream.get_mut().write_all(head.as_bytes())?;
        let mut status = String::new();
        self.stream.read_line(&mut status)?;
        ensure!(
            status.starts_with("HTTP/1.1 200"),
            "the server says {status:?}"
        );
        skip_head(&mut self.stream)?;
        let mut have = 0;
        while have < length {
            let some = self
                .stream
                .fill_buf()
                .context("an answer breaks off")?
                .len();
            ensure!(some > 0, "an answer ends after {have} of {length} bytes");
            self.stream.consume(some);
            have += some as u64;
            arrived(have);
        }
        Ok(())
    }

    /// Returns a handle that ends the connection when shut down, so that a `get` under way on it
    /// fails.
    ///
    /// # Errors
    /// Without a descriptor to spare.
    pub fn handle(&self) -> Result<TcpStream> {
        Ok(self.stream.get_ref().try_clone()?)
    }
}

/// Opens pages from the receiving host for as long as `window`, and returns how long each took, in
/// seconds, from the first SYN to the last byte. Each page has connections of its own.
///
/// # Errors
/// When one does not come.
pub fn browse(path: &Path, page: Browsing, window: Duration) -> Result<Vec<f64>> {
    path.receiver.run(|| {
        let end = Instant::now() + window;
        let mut times = Vec::new();
        let mut next = Instant::now();
        while next < end {
            sleep_until(next);
            let begin = Instant::now();
            load(page).with_context(|| format!("page {}", times.len() + 1))?;
            times.push(begin.elapsed().as_secs_f64());
            next = (next + page.every).max(Instant::now());
        }
        Ok(times)
    })
}

fn load(page: Browsing) -> Result<()> {
    let mut first = Connection::open()?;
    first.get(page.document, &mut |_| ())?;
    let objects = page.objects();
    let next = AtomicUsize::new(0);
    let fetch = |mut connection: Option<Connection>| -> Result<()> {
        while let Some(&size) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
            // A connection is opened when there is something to ask for on it.
            let mut open = match connection.take() {
                Some(open) => open,
                None => Connection::open()?,
            };
            open.get(size, &mut |_| ())?;
            connection = Some(open);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let mut fetchers = vec![scope.spawn(|| fetch(Some(first)))];
        fetchers.extend((1..page.connections).map(|_| scope.spawn(|| fetch(None))));
        for fetcher in fetchers {
            fetcher.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_one_by_one() {
        let mut two = "GET /12 HTTP/1.1\r\nHost: x\r\n\r\nGET /0 HTTP/1.1\r\n\r\n".as_bytes();
        assert_eq!(request(&mut two).unwrap(), Some(12));
        assert_eq!(request(&mut two).unwrap(), Some(0));
        assert_eq!(request(&mut two).unwrap(), None);
    }

    #[test]
    fn nonsense_and_half_a_head_are_errors() {
        for text in [
            "GET /x HTTP/1.1\r\n\r\n",
            "GET\r\n\r\n",
            "GET /1 HTTP/1.1\r\nHost",
        ] {
            assert!(request(&mut text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
