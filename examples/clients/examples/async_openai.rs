//! A fallback around `async-openai`: streams of the model break, a backup at another provider
//! answers, and probes win the model back.
//!
//! ```text
//! cargo run -p tower-breaker-clients --example async_openai
//! ```
//!
//! Two servers on loopback play the providers. The program exits with an error if a promise is
//! broken.

use std::time::Duration;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::middleware::retry::SimpleRetryPolicy;
use async_openai::middleware::{HttpRequestFactory, ReqwestService};
use async_openai::types::chat::{ChatCompletionRequestUserMessage, CreateChatCompletionRequest};
use futures::StreamExt;
use serde_json::{Value, json};
use tower::{BoxError, ServiceBuilder, ServiceExt};
use tower_breaker::http::{EndOfBody, ErrorEvents, StatusClassifier};
use tower_breaker::{FallbackHandle, FallbackLayer, FallbackState, Reason, Refusal};
use tower_breaker_clients::faulty::{Answer, Fault, Request, Server};

const MODEL: &str = "gpt-5";
const BACKUP: &str = "llama";

/// How long a turn may take until the head of its answer, with its retries. Without this limit
/// they wait as long as a `Retry-After` says.
const TURN: Duration = Duration::from_secs(30);

/// How long a provider may be silent, before an answer and inside it.
const SILENCE: Duration = Duration::from_secs(10);

/// Short, so that the example ends soon. The default is 60 s.
const COOLDOWN: Duration = Duration::from_secs(2);

// ===== the layers =====

/// Makes a client whose chats go to a backup provider while `gpt-5` is down. The retries of
/// `async-openai` are inside, so a call is one turn.
fn guarded(
    config: OpenAIConfig,
    http: reqwest::Client,
    other: Provider,
) -> (Client<OpenAIConfig>, FallbackHandle) {
    let provider = ServiceBuilder::new()
        .map_response(http::Response::<reqwest::Body>::from)
        .map_err(|err: BoxError| err.downcast().map_or_else(OpenAIError::Boxed, |err| *err))
        .timeout(TURN)
        .retry(SimpleRetryPolicy::new(2))
        .service(ReqwestService::new(http));
    let backup = provider.clone().map_request(move |chat| other.take(chat));
    let fallback = FallbackLayer::new(MODEL)
        .backup(BACKUP, backup)
        .trip_threshold(2)
        .recovery_timeout(COOLDOWN)
        .probation_limit(3)
        .classify(StatusClassifier::models())
        .judge(EndOfBody.inspect(ErrorEvents::models()))
        .refuse_with(|_, refusal: Refusal| Err(OpenAIError::Boxed(refusal.into())));
    let handle = fallback.handle();
    let service = ServiceBuilder::new()
        .map_response(|response: http::Response<_>| response.map(reqwest::Body::wrap).into())
        .layer(fallback)
        .service(provider);
    let client = Client::with_config(config).with_http_service(service);
    (client, handle)
}

/// Another provider with the same API.
#[derive(Clone)]
struct Provider {
    /// Scheme, host and port.
    url: reqwest::Url,
    authorization: http::HeaderValue,
    model: &'static str,
}

impl Provider {
    /// Sends a chat to this provider. It changes each request when the request is built.
    fn take(&self, chat: HttpRequestFactory) -> HttpRequestFactory {
        let provider = self.clone();
        HttpRequestFactory::new(move || {
            let (chat, provider) = (chat.clone(), provider.clone());
            async move {
                let mut request = chat.build().await?;
                provider.readdress(&mut request);
                Ok(request)
            }
        })
    }

    fn readdress(self, request: &mut reqwest::Request) {
        let mut url = self.url;
        url.set_path(request.url().path());
        url.set_query(request.url().query());
        *request.url_mut() = url;
        request
            .headers_mut()
            .insert("authorization", self.authorization);
        let body = request.body().and_then(reqwest::Body::as_bytes);
        if let Some(Ok(mut chat)) = body.map(serde_json::from_slice::<Value>) {
            // In this example every request with a body is a chat.
            chat["model"] = self.model.into();
            *request.body_mut() = Some(chat.to_string().into());
        }
    }
}

/// Returns the refusal in an error of the client. It must match the variant, because the chain of
/// sources skips the boxed error.
fn refusal(err: &OpenAIError) -> Option<&Refusal> {
    match err {
        OpenAIError::Boxed(err) => Refusal::find(&**err),
        _ => None,
    }
}

// ===== the story =====

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let primary = Server::start(answer).await?;
    let other = Server::start(answer).await?;
    let config = OpenAIConfig::new()
        .with_api_base(format!("{}/v1", primary.url()))
        .with_api_key("a-key-of-the-first");
    // Every server is on loopback, so no proxy may be used.
    let http = reqwest::Client::builder().no_proxy();
    let http = http.read_timeout(SILENCE).build()?;
    let elsewhere = Provider {
        url: other.url().parse()?,
        authorization: "Bearer a-key-of-the-second".parse()?,
        model: BACKUP,
    };
    let (client, fallback) = guarded(config, http, elsewhere);

    println!("the model works:");
    assert_eq!(chat(&client).await?, MODEL);
    assert_eq!(stream(&client).await?, MODEL);

    println!("the streams of `{MODEL}` begin, and break:");
    primary.set(Fault::CutInBody);
    for _ in 0..2 {
        // The caller has already seen the first words. So it gets the error, and the turn has
        // failed.
        assert!(stream(&client).await.is_err());
    }
    assert_eq!(fallback.state(), FallbackState::Fallback);

    println!("the backup answers:");
    assert_eq!(stream(&client).await?, BACKUP);
    assert_eq!(chat(&client).await?, BACKUP);

    println!("the backup fails too, with all its retries, and the fallback refuses:");
    other.set(Fault::Status(503));
    for _ in 0..2 {
        assert!(chat(&client).await.is_err());
    }
    assert_eq!(other.seen(), 2 + 2 * 3);
    let err = chat(&client).await.unwrap_err();
    let refused = refusal(&err).ok_or("not a refusal")?;
    assert_eq!(refused.reason(), Reason::FallbackExhausted);
    assert!(refused.retry_after().is_some_and(|wait| wait <= COOLDOWN));
    assert_eq!(other.seen(), 8);

    println!("`{MODEL}` works again, and two complete streams prove it:");
    primary.set(Fault::Clean);
    while !fallback.snapshot().due {
        let left = fallback.snapshot().time_until_probe.unwrap_or_default();
        tokio::time::sleep(left).await;
    }
    for _ in 0..2 {
        assert_eq!(stream(&client).await?, MODEL);
    }
    assert_eq!(fallback.state(), FallbackState::Primary);
    Ok(())
}

fn ask() -> CreateChatCompletionRequest {
    let question = ChatCompletionRequestUserMessage::from("Can you count?");
    CreateChatCompletionRequest {
        model: MODEL.to_owned(),
        messages: vec![question.into()],
        ..CreateChatCompletionRequest::default()
    }
}

/// Chats, prints the answer, and returns the model that gave it.
async fn chat(client: &Client<OpenAIConfig>) -> Result<String, OpenAIError> {
    let result = client.chat().create(ask()).await;
    match &result {
        Ok(answer) => {
            let text = answer.choices[0].message.content.as_deref();
            println!("  {}: {}", answer.model, text.unwrap_or_default());
        }
        Err(err) => println!("  error: {err}"),
    }
    result.map(|answer| answer.model)
}

/// Chats like `chat`, with a streamed answer.
async fn stream(client: &Client<OpenAIConfig>) -> Result<String, OpenAIError> {
    let mut words = client.chat().create_stream(ask()).await?;
    let (mut text, mut model) = (String::new(), String::new());
    while let Some(word) = words.next().await {
        match word {
            Ok(word) => {
                text.extend(word.choices[0].delta.content.as_deref());
                model = word.model;
            }
            Err(err) => {
                println!("  {model}: {text}... error: {err}");
                return Err(err);
            }
        }
    }
    println!("  {model}: {text}");
    Ok(model)
}

/// Answers as the model that the request names.
fn answer(request: &Request) -> Answer {
    let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let model = &asked["model"];
    if asked["stream"] == true {
        let [one, two, three] = ["one", ", two", ", three"].map(|word| {
            let choice = json!({ "index": 0, "delta": { "content": word } });
            let chunk = json!({
                "id": "1", "object": "chat.completion.chunk", "created": 0, "model": model, "choices": [choice],
            });
            format!("data: {chunk}\n\n")
        });
        return Answer::of(
            "text/event-stream",
            &[&one, &two, &three, "data: [DONE]\n\n"],
        );
    }
    let message = json!({ "role": "assistant", "content": "one, two, three" });
    let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
    let whole = json!({
        "id": "1", "object": "chat.completion", "created": 0, "model": model, "choices": [choice],
    });
    Answer::of("application/json", &[&whole.to_string()])
}
