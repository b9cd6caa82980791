//! The guide: how to choose, stack, set, test and measure the layers.
//!
//! The pages are part of the documentation alone; no build of your program contains them. Every
//! example runs with this crate's tests, or is the code of an example that does.
//!
//! | you want to know | page |
//! | --- | --- |
//! | which layer goes outside of which | [`order`] |
//! | how a circuit trips, refuses and recovers | [`circuit_breaker`] |
//! | how a model's backups take over, and hand back | [`fallback`] |
//! | how an agent's loop is bounded | [`tripwire`] |
//! | what HTTP and gRPC responses say, and what a stream says at its end | [`streams`] |
//! | what goes around hyper, reqwest, tonic, axum, async-openai and MCP | [`clients`] |
//! | how to test a stack without waiting | [`testing`] |
//! | which values fit which traffic | [`tuning`] |
//! | why something does not do what you expect | [`pitfalls`] |
//! | what a call costs, and how that is measured | [`performance`] |
//!
//! # Words
//!
//! The pages use these words, and no synonyms.
//!
//! | word | meaning |
//! | --- | --- |
//! | circuit | the state machine of one guarded thing: closed, open or half-open |
//! | trip | to go to open |
//! | cooldown | the wait in open before a probe may go |
//! | probe | the one call that tests recovery |
//! | lease | how long a probe may take before it counts as failed |
//! | permit | what an admitted call carries until its verdict |
//! | generation | the span between two transitions; a permit knows the one it was admitted in |
//! | stale | said of a result that comes from an older generation |
//! | gate, oracle | the question that admits a call, and the one that only asks whether it would |
//! | outcome | what a result says of the guarded thing: success, failure or neutral |
//! | refusal | a call that was not attempted |
//! | soft refusal | a refusal as a response that the caller can read |
//! | turn | one admitted call through a tripwire or a fallback, all its retries inside included |

/// Declares one page: its text, and the targets of its links.
///
/// A page is there in every build. Links to items of a feature that is off lead to docs.rs.
macro_rules! page {
    ($page:ident, $text:literal) => {
        #[doc = include_str!($text)]
        // A paragraph would swallow the targets: an empty line ends it.
        #[doc = ""]
        #[doc = include_str!("links.md")]
        #[cfg_attr(
            feature = "http",
            doc = "\
[`EndOfBody`]: crate::http::EndOfBody
[`ErrorEvents`]: crate::http::ErrorEvents
[`Inspect`]: crate::http::Inspect
[`StatusClassifier`]: crate::http::StatusClassifier
[`http::SoftRefusal`]: crate::http::SoftRefusal
"
        )]
        #[cfg_attr(
            not(feature = "http"),
            doc = "\
[`EndOfBody`]: https://docs.rs/tower-breaker/latest/tower_breaker/http/struct.EndOfBody.html
[`ErrorEvents`]: https://docs.rs/tower-breaker/latest/tower_breaker/http/struct.ErrorEvents.html
[`Inspect`]: https://docs.rs/tower-breaker/latest/tower_breaker/http/trait.Inspect.html
[`StatusClassifier`]: https://docs.rs/tower-breaker/latest/tower_breaker/http/struct.StatusClassifier.html
[`http::SoftRefusal`]: https://docs.rs/tower-breaker/latest/tower_breaker/http/struct.SoftRefusal.html
"
        )]
        #[cfg_attr(
            feature = "grpc",
            doc = "\
[`Codes`]: crate::grpc::Codes
[`grpc::SoftRefusal`]: crate::grpc::SoftRefusal
"
        )]
        #[cfg_attr(
            not(feature = "grpc"),
            doc = "\
[`Codes`]: https://docs.rs/tower-breaker/latest/tower_breaker/grpc/struct.Codes.html
[`grpc::SoftRefusal`]: https://docs.rs/tower-breaker/latest/tower_breaker/grpc/struct.SoftRefusal.html
"
        )]
        #[cfg_attr(feature = "json", doc = "[`JsonDigest`]: crate::JsonDigest")]
        #[cfg_attr(
            not(feature = "json"),
            doc = "[`JsonDigest`]: https://docs.rs/tower-breaker/latest/tower_breaker/tripwire/struct.JsonDigest.html"
        )]
        #[cfg_attr(feature = "retry", doc = "[`SkipRefusals`]: crate::retry::SkipRefusals")]
        #[cfg_attr(
            not(feature = "retry"),
            doc = "[`SkipRefusals`]: https://docs.rs/tower-breaker/latest/tower_breaker/retry/struct.SkipRefusals.html"
        )]
        pub mod $page {}
    };
}

page!(order, "order.md");
page!(circuit_breaker, "circuit_breaker.md");
page!(fallback, "fallback.md");
page!(tripwire, "tripwire.md");
page!(streams, "streams.md");
page!(clients, "clients.md");
page!(testing, "testing.md");
page!(tuning, "tuning.md");
page!(pitfalls, "pitfalls.md");
page!(performance, "performance.md");
