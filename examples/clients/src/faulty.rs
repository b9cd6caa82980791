//! An HTTP/1 server that answers, or fails in a way that a test chooses. The test can change it at
//! any time.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How a server answers from now on. To refuse connections, use [`Server::kill`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Sends the whole answer at once.
    Clean,
    /// Reads the request and never answers.
    HangBeforeHead,
    /// Sends the head and the first chunk, and then hangs.
    HeadThenHang,
    /// Sends the head and the first chunk, and then cuts the connection.
    CutInBody,
    /// Answers `429` with this `Retry-After`, in seconds.
    Throttled(u64),
    /// Answers this status with a short JSON body.
    Status(u16),
    /// Sends the whole answer in chunks, with this pause between them.
    Drip(Duration),
}

/// The answer of a server without a fault: its content type, and the chunks of its body.
#[derive(Clone, Debug)]
pub struct Answer {
    pub content_type: &'static str,
    pub chunks: Vec<Bytes>,
}

impl Answer {
    pub fn of(content_type: &'static str, chunks: &[&str]) -> Self {
        let chunks = chunks.iter();
        Self {
            content_type,
            chunks: chunks
                .map(|chunk| Bytes::copy_from_slice(chunk.as_bytes()))
                .collect(),
        }
    }
}

/// A request, as the server saw it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The first line and the headers.
    pub head: String,
    pub body: Vec<u8>,
}

type Respond = dyn Fn(&Request) -> Answer + Send + Sync;

/// A server on its own port. It keeps the port when it is killed and restarted.
pub struct Server {
    addr: SocketAddr,
    state: Arc<State>,
    running: Option<JoinHandle<()>>,
}

struct State {
    fault: Mutex<Fault>,
    respond: Box<Respond>,
    seen: AtomicUsize,
    /// The connections. [`kill`](Self::kill) ends them too.
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Starts a server without a fault.
    ///
    /// # Errors
    ///
    /// If no port of the loopback interface is free.
    pub async fn start(
        respond: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut server = Self {
            addr: listener.local_addr()?,
            state: Arc::new(State {
                fault: Mutex::new(Fault::Clean),
                respond: Box::new(respond),
                seen: AtomicUsize::new(0),
                tasks: Mutex::new(Vec::new()),
            }),
            running: None,
        };
        server.run(listener);
        Ok(server)
    }

    fn run(&mut self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        self.running = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = tokio::spawn(serve(Arc::clone(&state), stream));
                let mut tasks = locked(&state.tasks);
                tasks.retain(|task| !task.is_finished());
                tasks.push(connection);
            }
        }));
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the URL, `http://127.0.0.1:…`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sets how the server answers from now on.
    pub fn set(&self, fault: Fault) {
        *locked(&self.state.fault) = fault;
    }

    /// Returns how many requests the server has read.
    pub fn seen(&self) -> usize {
        self.state.seen.load(Ordering::SeqCst)
    }

    /// Closes the port and cuts every connection. From now on connections are refused.
    pub async fn kill(&mut self) {
        let running = self.running.take();
        let connections = std::mem::take(&mut *locked(&self.state.tasks));
        for task in running.into_iter().chain(connections) {
            task.abort();
            let _ = task.await;
        }
        // A connection may have been accepted while the others ended.
        for task in std::mem::take(&mut *locked(&self.state.tasks)) {
            task.abort();
        }
    }

    /// Opens the same port again.
    ///
    /// # Errors
    ///
    /// If another program has taken the port in the meantime.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.kill().await;
        let listener = TcpListener::bind(self.addr).await?;
        self.run(listener);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let connections = std::mem::take(&mut *locked(&self.state.tasks));
        for task in self.running.take().into_iter().chain(connections) {
            task.abort();
        }
    }
}

/// Serves one connection until the other side or a fault ends it.
async fn serve(state: Arc<State>, mut stream: TcpStream) {
    let mut read = Vec::new();
    while let Ok(Some(request)) = next_request(&mut stream, &mut read).await {
        state.seen.fetch_add(1, Ordering::SeqCst);
        let fault = locked(&state.fault).clone();
        let answer = (state.respond)(&request);
        if !matches!(respond(&mut stream, &fault, &answer).await, Ok(true)) {
            return;
        }
    }
}

/// Reads a request with a `Content-Length` or without a body. Returns `None` at the end of the
/// connection.
async fn next_request(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<Option<Request>> {
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let length = head
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .and_then(|(_, value)| value.trim().parse().ok())
                .unwrap_or(0);
            let whole = end + 4 + length;
            if read.len() >= whole {
                let body = read[end + 4..whole].to_vec();
                read.drain(..whole);
                return Ok(Some(Request { head, body }));
            }
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await? {
            0 => return Ok(None),
            length => read.extend_from_slice(&buffer[..length]),
        }
    }
}

/// Answers, and returns whether the connection goes on.
async fn respond(stream: &mut TcpStream, fault: &Fault, answer: &Answer) -> io::Result<bool> {
    match *fault {
        Fault::Clean => {
            begin(stream, answer).await?;
            for chunk in &answer.chunks {
                write_chunk(stream, chunk).await?;
            }
            stream.write_all(b"0\r\n\r\n").await?;
            Ok(true)
        }
        Fault::Drip(pause) => {
            begin(stream, answer).await?;
            for chunk in &answer.chunks {
                write_chunk(stream, chunk).await?;
                tokio::time::sleep(pause).await;
            }
            stream.write_all(b"0\r\n\r\n").await?;
            Ok(true)
        }
        Fault::HangBeforeHead => wait_for_its_end(stream).await,
        Fault::HeadThenHang => {
            begin(stream, answer).await?;
            if let Some(first) = answer.chunks.first() {
                write_chunk(stream, first).await?;
            }
            wait_for_its_end(stream).await
        }
        Fault::CutInBody => {
            begin(stream, answer).await?;
            if let Some(first) = answer.chunks.first() {
                write_chunk(stream, first).await?;
            }
            Ok(false)
        }
        Fault::Throttled(seconds) => {
            let hint = format!("retry-after: {seconds}\r\n");
            refuse(stream, 429, &hint).await
        }
        Fault::Status(status) => refuse(stream, status, "").await,
    }
}

async fn begin(stream: &mut TcpStream, answer: &Answer) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {}\r\ntransfer-encoding: chunked\r\n\r\n",
        answer.content_type
    );
    stream.write_all(head.as_bytes()).await
}

async fn write_chunk(stream: &mut TcpStream, chunk: &[u8]) -> io::Result<()> {
    let size = format!("{:x}\r\n", chunk.len());
    stream.write_all(size.as_bytes()).await?;
    stream.write_all(chunk).await?;
    stream.write_all(b"\r\n").await?;
    stream.flush().await
}

/// Answers an error in the form that the clients of `OpenAI` read. Other clients ignore the form.
async fn refuse(stream: &mut TcpStream, status: u16, headers: &str) -> io::Result<bool> {
    let body = format!(
        r#"{{"error":{{"message":"status {status}","type":"server_error","param":null,"code":null}}}}"#
    );
    let head = format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    Ok(true)
}

/// Stays silent until the other side gives up.
async fn wait_for_its_end(stream: &mut TcpStream) -> io::Result<bool> {
    let mut buffer = [0; 64];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(false)
}
