//! A routing table: which substitute gets a call while the circuit of its own tool refuses.

use std::collections::HashMap;
use std::sync::Arc;

/// Maps names to their substitutes, for a keyed
/// [`CircuitBreakerLayer`](crate::CircuitBreakerLayer).
///
/// Give it to [`substitute`](crate::CircuitBreakerLayer::substitute). The substitutes of a
/// substitute are not asked.
///
/// # Examples
///
/// A search tool with a mirror. While the circuit of `search` refuses, its calls go to
/// `search-mirror`, whose own circuit counts their results. The call that probes `search` goes to
/// `search`.
///
/// ```
/// use std::convert::Infallible;
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_breaker::{CircuitBreakerLayer, Failure, HealthRouter, Outcome};
///
/// struct ToolCall { name: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let layer = CircuitBreakerLayer::new()
///     .failure_threshold(1)
///     .classify(|result: Result<&String, &Infallible>| match result {
///         Ok(answer) if answer.starts_with("error") => Failure::transient().into(),
///         _ => Outcome::Success,
///     })
///     .per_key(|call: &ToolCall| call.name.as_str(), 100)
///     .substitute(
///         HealthRouter::new().route("search", ["search-mirror"]),
///         |call: &mut ToolCall, name: &str| call.name = name.into(),
///     );
/// let handle = layer.handle();
/// let mut tools = layer.layer(service_fn(|call: ToolCall| async move {
///     Ok::<_, Infallible>(match call.name.as_str() {
///         "search" => "error: down".to_owned(),
///         other => format!("answered by {other}"),
///     })
/// }));
///
/// let search = || ToolCall { name: "search".into() };
/// let first = tools.ready().await.unwrap().call(search()).await.unwrap();
/// assert_eq!(first, "error: down");
/// assert_eq!(handle.resolve("search"), Some("search-mirror"));
/// let second = tools.ready().await.unwrap().call(search()).await.unwrap();
/// assert_eq!(second, "answered by search-mirror");
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a table does nothing until a layer is given it"]
pub struct HealthRouter {
    routes: Arc<HashMap<String, Vec<String>>>,
}

impl HealthRouter {
    /// A table without routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route: while the circuit of `name` refuses, its calls go to the first of
    /// `substitutes` whose circuit admits them.
    ///
    /// A later route for the same name replaces this one. `name` itself and repetitions among the
    /// substitutes are left out.
    pub fn route<S: Into<String>>(
        mut self,
        name: impl Into<String>,
        substitutes: impl IntoIterator<Item = S>,
    ) -> Self {
        let name = name.into();
        let mut listed: Vec<String> = Vec::new();
        for substitute in substitutes {
            let substitute = substitute.into();
            if substitute != name && !listed.contains(&substitute) {
                listed.push(substitute);
            }
        }
        Arc::make_mut(&mut self.routes).insert(name, listed);
        self
    }

    pub(crate) fn substitutes(&self, name: &str) -> &[String] {
        self.routes.get(name).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_substitute_for_itself_and_the_last_route_counts() {
        let router = HealthRouter::new()
            .route("a", ["x"])
            .route("a", ["a", "b", "c", "b"])
            .route("b", Vec::<String>::new());
        assert_eq!(router.substitutes("a"), ["b", "c"]);
        assert!(router.substitutes("b").is_empty());
        assert!(router.substitutes("nobody").is_empty());
    }
}
