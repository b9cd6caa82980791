//! HTTP on loopback, for the examples: a server that is a function, and a client that reads whole bodies.

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

/// A running server. It ends when it is dropped.
#[derive(Debug)]
pub struct Loopback {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Loopback {
    /// Answers every request with what `handle` makes of it, on a free port of the loopback interface.
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
        // The connections belong to the task that accepts them, and end with it.
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
        // A caller who gives up closes its connection: that is an error here, and none of ours.
        connections.spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Sends requests, without any layer of ours.
///
/// The body is read in here, so inside of every layer around it: a head alone is not an answer.
pub fn client()
-> impl Service<Request<Full<Bytes>>, Response = Response<Bytes>, Error = BoxError> + Clone {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    client.and_then(|response: Response<Incoming>| async {
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok::<_, BoxError>(Response::from_parts(head, body))
    })
}
