//! A TCP proxy that cuts the connections through it, lets them hang, or goes away, at any time.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A proxy on a port of its own, which it keeps when it is killed and started again.
pub struct Proxy {
    addr: SocketAddr,
    state: Arc<State>,
    running: Option<JoinHandle<()>>,
}

struct State {
    upstream: SocketAddr,
    hung: watch::Sender<bool>,
    connections: Mutex<Vec<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts a proxy that passes everything on to `upstream`, and back.
    ///
    /// # Errors
    ///
    /// If no port of the loopback interface can be had.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut proxy = Self {
            addr: listener.local_addr()?,
            state: Arc::new(State {
                upstream,
                hung: watch::Sender::new(false),
                connections: Mutex::default(),
            }),
            running: None,
        };
        proxy.run(listener);
        Ok(proxy)
    }

    fn run(&mut self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        self.running = Some(tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let hung = state.hung.subscribe();
                let connection = tokio::spawn(connect(client, state.upstream, hung));
                let mut connections = state.connections();
                connections.retain(|connection| !connection.is_finished());
                connections.push(connection);
            }
        }));
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:…`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// From now on not a byte passes, and the connections stay.
    pub fn hang(&self) {
        self.state.hung.send_replace(true);
    }

    /// What hung goes on.
    pub fn resume(&self) {
        self.state.hung.send_replace(false);
    }

    /// Ends every connection, wherever it is.
    pub async fn cut(&self) {
        let connections = std::mem::take(&mut *self.state.connections());
        for connection in connections {
            connection.abort();
            let _ = connection.await;
        }
    }

    /// Closes the port, and ends every connection: from now on connections are refused.
    pub async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
            let _ = running.await;
        }
        self.cut().await;
    }

    /// Opens the same port again.
    ///
    /// # Errors
    ///
    /// If somebody else has taken it in the meantime.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.kill().await;
        let listener = TcpListener::bind(self.addr).await?;
        self.run(listener);
        Ok(())
    }
}

impl State {
    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let connections = std::mem::take(&mut *self.state.connections());
        for task in self.running.take().into_iter().chain(connections) {
            task.abort();
        }
    }
}

/// One connection, until either side ends it.
async fn connect(mut client: TcpStream, upstream: SocketAddr, hung: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        return;
    };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::select! {
        _ = pass(from_client, to_server, hung.clone()) => {}
        _ = pass(from_server, to_client, hung) => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut hung: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        // An error says that the proxy is gone, and so is this connection.
        hung.wait_for(|hung| !hung)
            .await
            .map_err(io::Error::other)?;
        to.write_all(&buffer[..length]).await?;
    }
}
