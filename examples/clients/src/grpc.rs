//! A gRPC server that answers, or fails in a way that a test chooses. The test can change it at
//! any time. To break connections, put a [`Proxy`](crate::proxy::Proxy) in front of it.

use std::error::Error;
use std::future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use http::Uri;
use http::uri::PathAndQuery;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};
use tower::util::MapRequestLayer;

use crate::search::search_server::{Search, SearchServer};
use crate::search::{Answer, Query};

/// How a server answers from now on.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Sends the whole answer at once.
    Clean,
    /// Reads the request and never answers.
    HangBeforeHead,
    /// Sends the head and the first message, and then hangs.
    HeadThenHang,
    /// Answers this status in the headers, without a body.
    Refuse(Status),
    /// Sends two messages, and this status in the trailers.
    FailAtEnd(Status),
    /// Sends the whole answer, with this pause before each message.
    Drip(Duration),
}

/// What a server does. Clones share the state.
#[derive(Clone, Debug)]
pub struct Script {
    fault: Arc<Mutex<Fault>>,
    seen: Arc<AtomicUsize>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            fault: Arc::new(Mutex::new(Fault::Clean)),
            seen: Arc::default(),
        }
    }
}

impl Script {
    /// Sets how the server answers from now on.
    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    fn fault(&self) -> Fault {
        self.fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns how many calls have arrived.
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }

    /// Serves the incoming connections.
    ///
    /// # Errors
    ///
    /// Returns the errors of the transport.
    pub async fn serve<T, E>(
        self,
        incoming: impl Stream<Item = Result<T, E>>,
    ) -> Result<(), tonic::transport::Error>
    where
        T: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let script = self.clone();
        tonic::transport::Server::builder()
            .layer(MapRequestLayer::new(move |req: http::Request<Body>| {
                script.route(req)
            }))
            .add_service(SearchServer::new(self))
            .serve_with_incoming(incoming)
            .await
    }

    /// Answers a unary call as a stream, which it is on the wire. So it can fail after its head.
    fn route(&self, mut req: http::Request<Body>) -> http::Request<Body> {
        if let Fault::HeadThenHang | Fault::FailAtEnd(_) | Fault::Drip(_) = self.fault() {
            let mut parts = req.uri().clone().into_parts();
            parts.path_and_query = Some(PathAndQuery::from_static("/search.Search/Follow"));
            if let Ok(uri) = Uri::from_parts(parts) {
                *req.uri_mut() = uri;
            }
        }
        req
    }
}

/// Returns what a server without a fault finds.
fn answers(query: &Query) -> impl Iterator<Item = Result<Answer, Status>> + Send + 'static {
    let text = query.text.clone();
    (1..=3).map(move |n| {
        Ok(Answer {
            text: format!("{text} {n}"),
        })
    })
}

#[tonic::async_trait]
impl Search for Script {
    async fn find(&self, query: Request<Query>) -> Result<Response<Answer>, Status> {
        let mut answers = self.follow(query).await?.into_inner();
        let first = answers.next().await;
        first
            .unwrap_or_else(|| Err(Status::not_found("nothing")))
            .map(Response::new)
    }

    type FollowStream = BoxStream<'static, Result<Answer, Status>>;

    async fn follow(&self, query: Request<Query>) -> Result<Response<Self::FollowStream>, Status> {
        self.seen.fetch_add(1, Ordering::SeqCst);
        let answers = answers(query.get_ref());
        Ok(Response::new(match self.fault() {
            Fault::Clean => stream::iter(answers).boxed(),
            Fault::HangBeforeHead => future::pending().await,
            Fault::HeadThenHang => stream::iter(answers.take(1))
                .chain(stream::pending())
                .boxed(),
            Fault::Refuse(status) => return Err(status),
            Fault::FailAtEnd(status) => stream::iter(answers.take(2).chain([Err(status)])).boxed(),
            Fault::Drip(pause) => stream::iter(answers)
                .then(move |answer| async move {
                    tokio::time::sleep(pause).await;
                    answer
                })
                .boxed(),
        }))
    }
}

/// A server on its own port.
pub struct Server {
    addr: SocketAddr,
    script: Script,
    running: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Server {
    /// Starts a server without a fault.
    ///
    /// # Errors
    ///
    /// If no port of the loopback interface is free.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let script = Script::default();
        let running = tokio::spawn(script.clone().serve(TcpListenerStream::new(listener)));
        Ok(Self {
            addr,
            script,
            running,
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn script(&self) -> &Script {
        &self.script
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.abort();
    }
}
