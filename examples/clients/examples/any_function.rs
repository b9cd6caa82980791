//! A circuit around a client that does not use tower. Any async function becomes a service, and
//! keeps its own error type.
//!
//! ```text
//! cargo run -p tower-breaker-clients --example any_function
//! ```

use std::net::SocketAddr;
use std::{fmt, io};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_breaker::{CircuitBreakerLayer, Failure, IntoError, Outcome, Refusal, State};

/// A client of a protocol of its own: one line asks, one line answers.
#[derive(Clone, Copy)]
struct WeatherClient {
    addr: SocketAddr,
}

#[derive(Debug)]
enum WeatherError {
    UnknownCity(String),
    Io(io::Error),
    /// Added for the breaker, with `From<Refusal>`.
    Refused(Refusal),
}

impl WeatherClient {
    async fn ask(&self, city: &str) -> Result<String, WeatherError> {
        let mut stream = TcpStream::connect(self.addr).await?;
        stream.write_all(format!("{city}\n").as_bytes()).await?;
        match BufReader::new(stream).lines().next_line().await? {
            Some(answer) if answer == "unknown" => Err(WeatherError::UnknownCity(city.to_owned())),
            Some(answer) => Ok(answer),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// Classifies a result. An unknown city says nothing of the service.
fn verdict(result: Result<&String, &WeatherError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(WeatherError::UnknownCity(_)) => Outcome::Neutral,
        Err(_) => Failure::transient().into(),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let client = WeatherClient {
        addr: listener.local_addr()?,
    };
    let server = tokio::spawn(serve(listener));

    // `service_fn` makes a service of the client's method. The breaker goes around it.
    let breaker = CircuitBreakerLayer::new()
        .name("weather")
        .classify(verdict)
        .refuse(IntoError);
    let circuit = breaker.handle();
    let mut weather =
        ServiceBuilder::new()
            .layer(breaker)
            .service(service_fn(move |city: String| async move {
                client.ask(&city).await
            }));

    println!("the service works:");
    assert_eq!(ask(&mut weather, "Oslo").await?, "Oslo: sunny");

    println!("an unknown city is no failure:");
    for _ in 0..4 {
        let err = ask(&mut weather, "Atlantis").await.unwrap_err();
        assert!(matches!(err, WeatherError::UnknownCity(_)));
    }
    assert_eq!(circuit.state(), State::Closed);

    println!("the service is gone, and the fourth call is refused:");
    server.abort();
    let _ = server.await;
    for _ in 0..3 {
        let err = ask(&mut weather, "Oslo").await.unwrap_err();
        assert!(matches!(err, WeatherError::Io(_)));
    }
    let refused = ask(&mut weather, "Oslo").await.unwrap_err();
    assert!(matches!(refused, WeatherError::Refused(_)));

    println!("a permit guards code that is not a service:");
    circuit.reset();
    let permit = circuit.try_acquire()?;
    let result = client.ask("Oslo").await;
    permit.record(verdict(result.as_ref()));
    println!("  failed in a row: {}", circuit.snapshot().streak);
    assert_eq!(circuit.snapshot().streak, 1);
    Ok(())
}

/// Sends a call, and prints the answer.
async fn ask<S>(weather: &mut S, city: &str) -> Result<String, WeatherError>
where
    S: Service<String, Response = String, Error = WeatherError>,
{
    let answer = weather.ready().await?.call(city.to_owned()).await;
    match &answer {
        Ok(answer) => println!("  {answer}"),
        Err(err) => println!("  error: {err}"),
    }
    answer
}

/// The server of the client's protocol.
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let (read, mut write) = stream.split();
        if let Some(city) = BufReader::new(read).lines().next_line().await? {
            let answer = match city.as_str() {
                "Atlantis" => "unknown\n".to_owned(),
                city => format!("{city}: sunny\n"),
            };
            write.write_all(answer.as_bytes()).await?;
        }
    }
}

impl From<io::Error> for WeatherError {
    fn from(err: io::Error) -> Self {
        Self::Io(err)
    }
}

impl From<Refusal> for WeatherError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl fmt::Display for WeatherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCity(city) => write!(f, "there is no city `{city}`"),
            Self::Io(err) => err.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for WeatherError {}
