//! A TCP proxy that cuts its connections, lets them hang, or closes its port. A test can change it
//! at any time.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A proxy on its own port. It keeps the port when it is killed and restarted.
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
    /// Starts a proxy that passes all bytes to `upstream`, and back.
    ///
    /// # Errors
    ///
    /// If no port of the loopback interface is free.
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

    /// Returns the URL, `http://127.0.0.1:…`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Lets no byte pass from now on. The connections stay open.
    pub fn hang(&self) {
        self.state.hung.send_replace(true);
    }

    /// Lets bytes pass again.
    pub fn resume(&self) {
        self.state.hung.send_replace(false);
    }

    /// Ends every connection at once.
    pub async fn cut(&self) {
        let connections = std::mem::take(&mut *self.state.connections());
        for connection in connections {
            connection.abort();
            let _ = connection.await;
        }
    }

    /// Closes the port and ends every connection. From now on connections are refused.
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
    /// If another program has taken the port in the meantime.
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

/// Passes bytes of one connection until either side ends it.
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
        // An error says that the proxy was dropped. This connection ends too.
        hung.wait_for(|hung| !hung)
            .await
            .map_err(io::Error::other)?;
        to.write_all(&buffer[..length]).await?;
    }
}
