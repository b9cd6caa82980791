//! HTTP on loopback for the examples: a server made of a function, and a client that reads whole
//! bodies.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tower::{BoxError, Service, ServiceExt};

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Loopback {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Loopback {
    /// Starts a server on a free port of the loopback interface. `handle` answers every request.
    pub async fn serve<H, F>(handle: H) -> io::Result<Self>
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, handle));
        Ok(Self { address, accepting })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        // The connections belong to the accepting task and end with it.
        self.accepting.abort();
    }
}

async fn accept<H, F>(listener: TcpListener, handle: H)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let handle = handle.clone();
        let service = service_fn(move |request| {
            let response = handle(request);
            async { Ok::<_, Infallible>(response.await) }
        });
        // A caller that gives up closes its connection. The error it causes here does not matter.
        connections.spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Makes a client without any layer of this crate.
///
/// It reads the whole body. So the layers around it see a broken body as an error.
pub fn client()
-> impl Service<Request<Full<Bytes>>, Response = Response<Bytes>, Error = BoxError> + Clone {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    client.and_then(|response: Response<Incoming>| async {
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok::<_, BoxError>(Response::from_parts(head, body))
    })
}
