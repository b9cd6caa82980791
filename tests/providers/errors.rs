//! Rows P01 to P24, as the error object stands in a `200`: what an error's code says.

use std::time::{Duration, SystemTime};

use tower_breaker::http::ErrorEvents;
use tower_breaker::{Failure, Outcome};

use crate::support::{
    FATAL, JSON, LIMITED, NEUTRAL, SUCCESS, TRANSIENT, framed, judged, judged_in, limited, models,
    says, secs, with_type,
};

/// The presets agree but where the model's is fatal.
#[track_caller]
fn both(document: &str, outcome: Outcome) {
    says(&models(), document, outcome);
    let tool = if outcome == FATAL { NEUTRAL } else { outcome };
    says(&ErrorEvents::new(), document, tool);
}

#[test]
fn p01_openai_insufficient_quota_is_fatal() {
    both(
        r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
        FATAL,
    );
    both(r#"{"error":{"code":"insufficient_quota"}}"#, FATAL);
    both(
        r#"{"error":{"type":"insufficient_quota","code":null}}"#,
        FATAL,
    );
    both(
        r#"{"error":{"code":"rate_limit_exceeded","type":"insufficient_quota"}}"#,
        FATAL,
    );
}

#[test]
fn p02_openai_rate_limit_exceeded_waits_as_its_text_says() {
    for (text, wait) in [
        (
            "Rate limit reached for gpt-4o. Please try again in 7.66s. Visit https://a.b",
            Some(7.66),
        ),
        ("Please try again in 20ms.", Some(0.02)),
        ("Please try again in 1m30s", Some(90.0)),
        ("PLEASE TRY AGAIN IN 2h", Some(7200.0)),
        ("Please try again in a while", None),
        ("Please try again in 0s", None),
        ("Please try again in -5s", None),
        ("Please try again in 1.5.3", Some(1.5)),
        (
            "Please try again in 99999999999999999999999999999999s",
            Some(86_400.0),
        ),
        ("try again in 3s, or please try again in 4s", Some(4.0)),
    ] {
        for kind in ["requests", "tokens"] {
            let error = serde_json::json!({"error": {"code": "rate_limit_exceeded", "type": kind, "message": text}});
            let outcome = wait.map_or(LIMITED, |wait| limited(secs(wait)));
            both(&error.to_string(), outcome);
        }
    }
}

#[test]
fn p03_openai_keys_accounts_and_models_that_are_gone_are_fatal() {
    for code in [
        "billing_not_active",
        "billing_hard_limit_reached",
        "account_deactivated",
        "invalid_api_key",
        "model_not_found",
    ] {
        both(
            &format!(
                r#"{{"error":{{"message":"m","type":"invalid_request_error","code":"{code}"}}}}"#
            ),
            FATAL,
        );
    }
}

#[test]
fn p04_openai_the_callers_mistakes_are_neutral() {
    for code in [
        "context_length_exceeded",
        "content_policy_violation",
        "invalid_request_error",
    ] {
        both(
            &format!(r#"{{"error":{{"code":"{code}","message":"m"}}}}"#),
            NEUTRAL,
        );
    }
    both(
        r#"{"error":{"type":"invalid_request_error","code":null,"param":"x"}}"#,
        NEUTRAL,
    );
    both(
        r#"{"error":{"type":"invalid_request_error","code":"model_not_found"}}"#,
        FATAL,
    );
}

#[test]
fn p05_openai_server_errors_are_transient() {
    both(
        r#"{"error":{"type":"server_error","message":"overloaded","code":null}}"#,
        TRANSIENT,
    );
    both(r#"{"error":{"code":"service_unavailable"}}"#, TRANSIENT);
    both(
        r#"{"error":{"message":"The model is overloaded"}}"#,
        TRANSIENT,
    );
}

#[test]
fn p06_anthropic_by_the_errors_type() {
    for (kind, outcome) in [
        ("overloaded_error", TRANSIENT),
        ("api_error", TRANSIENT),
        ("timeout_error", TRANSIENT),
        ("rate_limit_error", LIMITED),
        ("authentication_error", FATAL),
        ("permission_error", FATAL),
        ("billing_error", FATAL),
        ("not_found_error", FATAL),
        ("invalid_request_error", NEUTRAL),
        ("request_too_large", NEUTRAL),
    ] {
        both(
            &format!(
                r#"{{"type":"error","error":{{"type":"{kind}","message":"m"}},"request_id":"r"}}"#
            ),
            outcome,
        );
        both(
            &format!(r#"{{"error":{{"message":"m","type":"{kind}"}},"type":"error"}}"#),
            outcome,
        );
        let event = format!(
            "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\"}}}}\n\n"
        );
        assert_eq!(judged(&models(), event), outcome, "{kind}");
    }
}

#[test]
fn p07_anthropic_a_months_spend_limit_is_fatal() {
    both(
        r#"{"type":"error","error":{"type":"rate_limit_error","message":"m","details":{"error_code":"enforced_spend_limit_reached"}}}"#,
        FATAL,
    );
}

#[test]
fn p08_anthropic_a_credit_balance_that_is_too_low_is_fatal() {
    both(
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#,
        FATAL,
    );
    both(
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API spend limit."}}"#,
        FATAL,
    );
}

#[test]
fn p09_gemini_waits_as_retry_info_says() {
    for (delay, wait) in [("34s", 34.0), ("34.074824224s", 34.074_824_224)] {
        both(
            &format!(
                r#"{{"error":{{"code":429,"message":"Resource exhausted","status":"RESOURCE_EXHAUSTED","details":[{{"@type":"type.googleapis.com/google.rpc.Help","links":[]}},{{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"{delay}"}}]}}}}"#
            ),
            limited(secs(wait)),
        );
    }
    both(r#"{"error":{"status":"RESOURCE_EXHAUSTED"}}"#, LIMITED);
}

#[test]
fn p10_gemini_a_days_quota_is_a_rate_limit_all_the_same() {
    both(
        r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]}}"#,
        LIMITED,
    );
    both(
        r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"reason":"RATE_LIMIT_EXCEEDED","metadata":{"quota_limit":"RequestsPerDay"}},{"retryDelay":"9s"}]}}"#,
        limited(secs(9.0)),
    );
}

#[test]
fn p11_vertex_arrays_count_as_their_objects() {
    let error = r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED"}}"#;
    for body in [
        format!("[{error}]"),
        format!("[{error}\n]\n"),
        format!("[{{\"candidates\":[{{\"content\":{{}}}}]}}\n,\r\n{error}]"),
        format!("[ {error} , {{}} ]"),
    ] {
        for content_type in [None, Some(JSON)] {
            assert_eq!(
                judged(&with_type(models(), content_type), &body),
                LIMITED,
                "{body}"
            );
        }
    }
}

#[test]
fn p12_gemini_by_its_status() {
    for (status, outcome) in [
        ("UNAVAILABLE", TRANSIENT),
        ("INTERNAL", TRANSIENT),
        ("DEADLINE_EXCEEDED", TRANSIENT),
        ("INVALID_ARGUMENT", NEUTRAL),
        ("FAILED_PRECONDITION", NEUTRAL),
        ("PERMISSION_DENIED", FATAL),
        ("UNAUTHENTICATED", FATAL),
        ("NOT_FOUND", FATAL),
    ] {
        both(
            &format!(r#"{{"error":{{"code":400,"message":"m","status":"{status}"}}}}"#),
            outcome,
        );
    }
    both(
        r#"{"error":{"code":400,"status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID"}]}}"#,
        FATAL,
    );
}

#[test]
fn p13_azure_by_its_code_and_text() {
    both(
        r#"{"error":{"code":"429","message":"Requests have exceeded the limit. Please retry after 45 seconds."}}"#,
        limited(secs(45.0)),
    );
    both(
        r#"{"error":{"code":"content_filter","message":"The response was filtered"}}"#,
        NEUTRAL,
    );
    both(r#"{"error":{"code":"DeploymentNotFound"}}"#, FATAL);
    both(r#"{"error":{"code":"401"}}"#, FATAL);
}

#[test]
fn p14_bedrock_by_its_exception() {
    for (name, outcome) in [
        ("ThrottlingException", LIMITED),
        ("ModelNotReadyException", LIMITED),
        ("TooManyRequestsException", LIMITED),
        ("ServiceQuotaExceededException", FATAL),
        ("AccessDeniedException", FATAL),
        ("ResourceNotFoundException", FATAL),
        ("ServiceUnavailableException", TRANSIENT),
        ("InternalServerException", TRANSIENT),
        ("ModelTimeoutException", TRANSIENT),
        ("ModelErrorException", TRANSIENT),
        ("ModelStreamErrorException", TRANSIENT),
        ("UnheardOfException", TRANSIENT),
        ("ValidationException", NEUTRAL),
    ] {
        both(&format!(r#"{{"__type":"{name}","message":"m"}}"#), outcome);
        both(
            &format!(
                r#"{{"message":"m","__type":"com.amazon.coral.service#{name}:http://a.b/c"}}"#
            ),
            outcome,
        );
    }
    both(r#"{"__type":"Pointer","className":"Exception"}"#, SUCCESS);
}

#[test]
fn p15_mistral_rate_limited() {
    both(
        r#"{"object":"error","message":"Requests rate limit exceeded","type":"rate_limited","param":null,"code":"1300"}"#,
        LIMITED,
    );
    both(
        r#"{"type":"rate_limited","object":"error","code":"1300"}"#,
        LIMITED,
    );
    both(
        r#"{"code":"1300","type":"rate_limited","object":"error"}"#,
        LIMITED,
    );
    both(
        r#"{"object":"error","message":"Requests rate limit exceeded"}"#,
        LIMITED,
    );
    // A message alone is no error in a `200`.
    both(r#"{"message":"Requests rate limit exceeded"}"#, SUCCESS);
}

#[test]
fn p16_groq_waits_and_a_request_that_is_too_large() {
    both(
        r#"{"error":{"message":"Rate limit reached. Please try again in 2m59.56s.","type":"tokens","code":"rate_limit_exceeded"}}"#,
        limited(secs(179.56)),
    );
    both(
        r#"{"error":{"message":"Request too large for model `x`: Limit 6000, Requested 9000","type":"tokens","code":"rate_limit_exceeded"}}"#,
        NEUTRAL,
    );
    both(
        r#"{"error":{"code":498,"message":"capacity exceeded"}}"#,
        TRANSIENT,
    );
}

#[test]
fn p17_openrouter_by_the_inner_code() {
    for (code, outcome) in [
        (402, FATAL),
        (401, FATAL),
        (404, FATAL),
        (429, LIMITED),
        (408, TRANSIENT),
        (502, TRANSIENT),
        (503, TRANSIENT),
        (400, NEUTRAL),
    ] {
        both(
            &format!(r#"{{"error":{{"code":{code},"message":"m"}}}}"#),
            outcome,
        );
        both(
            &format!(r#"{{"error":{{"code":"{code}","message":"m"}},"user_id":"u"}}"#),
            outcome,
        );
    }
    both(
        r#"{"error":{"code":403,"message":"m","metadata":{"reasons":["violence"],"flagged_input":"…"}}}"#,
        NEUTRAL,
    );
    both(
        r#"{"error":{"code":403,"message":"Your input was flagged by moderation"}}"#,
        NEUTRAL,
    );
    let at = SystemTime::now() + Duration::from_secs(600);
    let at = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    let error = format!(
        r#"{{"error":{{"code":429,"message":"Rate limit exceeded: free-models-per-min","metadata":{{"headers":{{"X-RateLimit-Limit":"20","X-RateLimit-Remaining":"0","X-RateLimit-Reset":"{at}"}}}}}}}}"#
    );
    let (Outcome::Failure(failure), _) = judged_in(models(), [error.as_bytes()]) else {
        panic!("a failure");
    };
    let wait = failure.retry_after().unwrap();
    assert!(wait <= secs(600.0) && wait > secs(540.0), "{wait:?}");
    // The past is no hint.
    both(
        r#"{"error":{"code":429,"metadata":{"headers":{"x-ratelimit-reset":1700000000000}}}}"#,
        LIMITED,
    );
}

#[test]
fn p18_deepseek_an_insufficient_balance_is_fatal() {
    both(
        r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#,
        FATAL,
    );
    both(r#"{"error":{"code":402}}"#, FATAL);
    both(r#"{"error":{"code":422}}"#, NEUTRAL);
}

#[test]
fn p19_local_servers() {
    both(
        r#"{"object":"error","message":"max_tokens is too large","type":"BadRequestError","param":null,"code":400}"#,
        NEUTRAL,
    );
    both(
        r#"{"object":"error","message":"The model does not exist","type":"NotFoundError","code":404}"#,
        FATAL,
    );
    both(
        r#"{"error":"llama runner process has terminated"}"#,
        TRANSIENT,
    );
    both(
        r#"{"model":"llama3","error":"unexpected EOF","done":false}"#,
        TRANSIENT,
    );
    both(
        r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#,
        TRANSIENT,
    );
}

#[test]
fn p21_json_rpc_by_its_number() {
    for (code, outcome) in [
        (-32603, TRANSIENT),
        (-32000, TRANSIENT),
        (-32001, TRANSIENT),
        (-32099, TRANSIENT),
        (1, TRANSIENT),
        (402, TRANSIENT),
        (-32700, NEUTRAL),
        (-32600, NEUTRAL),
        (-32601, NEUTRAL),
        (-32602, NEUTRAL),
        (-32002, NEUTRAL),
        (-32042, NEUTRAL),
    ] {
        both(
            &format!(
                r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"m","data":{{"error":"x"}}}}}}"#
            ),
            outcome,
        );
        both(
            &format!(r#"{{"error":{{"message":"m","code":{code}}},"id":1,"jsonrpc":"2.0"}}"#),
            outcome,
        );
    }
}

#[test]
fn p21_a_batch_counts_as_its_worst() {
    let neutral = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601}}"#;
    let transient = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603}}"#;
    let fine = r#"{"jsonrpc":"2.0","id":3,"result":{}}"#;
    for (all, outcome) in [
        (vec![neutral, transient], TRANSIENT),
        (vec![fine, transient, neutral], TRANSIENT),
        (vec![fine, neutral, fine], NEUTRAL),
        (vec![fine, fine], SUCCESS),
    ] {
        let batch = format!("[{}]", all.join(", "));
        for body in [
            batch.clone(),
            format!("data: {batch}\n\n"),
            format!("event: message\r\ndata: {batch}\r\n\r\n"),
        ] {
            assert_eq!(judged(&models(), &body), outcome, "{body}");
        }
    }
}

#[test]
fn p21_what_a_tool_calls_an_error_is_its_answer_unless_the_user_asks() {
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"no such file"}],"isError":true}}"#;
    both(answer, NEUTRAL);
    says(&ErrorEvents::new().tool_errors(true), answer, TRANSIENT);
    for fine in [
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"isError":true}]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"isError":false}}"#,
        r#"{"result":{"isError":true}}"#,
    ] {
        says(&ErrorEvents::new().tool_errors(true), fine, SUCCESS);
    }
}

#[test]
fn p22_of_a_problem_the_status_decides() {
    let problem =
        r#"{"type":"about:blank","title":"error","status":503,"detail":"rate limit","error":"x"}"#;
    let events = with_type(models(), Some("application/problem+json"));
    assert_eq!(judged(&events, problem), SUCCESS);
}

#[test]
fn p23_an_error_that_no_row_knows_is_transient() {
    both(r#"{"error":{"what":"unknown"}}"#, TRANSIENT);
    both(r#"{"error":"insufficient words"}"#, TRANSIENT);
    both(r#"{"error":true}"#, TRANSIENT);
    both(r#"{"error":["a"]}"#, TRANSIENT);
    both(r#"{"error":{"code":"unheard_of","type":"new"}}"#, TRANSIENT);
    both(r#"{"error":{"code":1e99}}"#, TRANSIENT);
    both(r#"{"error":{"code":1e9999999}}"#, TRANSIENT);
}

#[test]
fn p24_html_is_not_read() {
    let html = "<html><pre>\n{\"error\":\"x\"}\n</pre><p>data: {\"error\":1}\n\n</html>";
    for content_type in [None, Some("text/html"), Some("text/html; charset=utf-8")] {
        assert_eq!(judged(&with_type(models(), content_type), html), SUCCESS);
    }
}

// ===== the user's own =====

#[test]
fn codes_of_the_users_own_go_first_and_the_later_one_wins() {
    let events = models()
        .code("my_quota_code", Failure::transient())
        .code("my_quota_code", Failure::fatal())
        .code("1305", Failure::rate_limited())
        .code("model_not_found", Outcome::Neutral);
    says(&events, r#"{"error":{"code":"my_quota_code"}}"#, FATAL);
    says(
        &events,
        r#"{"error":{"code":"x","type":"my_quota_code"}}"#,
        FATAL,
    );
    says(&events, r#"{"error":"my_quota_code"}"#, FATAL);
    says(
        &events,
        r#"{"object":"error","code":1305,"message":"retry after 2 seconds"}"#,
        limited(secs(2.0)),
    );
    says(&events, r#"{"error":{"code":"1305"}}"#, LIMITED);
    says(&events, r#"{"error":{"code":"model_not_found"}}"#, NEUTRAL);
    says(&events, r#"{"error":{"code":"invalid_api_key"}}"#, FATAL);
    // A tool's preset takes them as they are.
    let tool = ErrorEvents::new().code("my_quota_code", Failure::fatal());
    says(&tool, r#"{"error":{"code":"my_quota_code"}}"#, FATAL);
}

#[test]
fn as_failure_takes_every_error_for_that_failure() {
    let events = ErrorEvents::as_failure(Failure::rate_limited());
    for error in [
        r#"{"error":{"code":"invalid_api_key"}}"#,
        r#"{"error":{"code":"invalid_request_error"}}"#,
        r#"{"error":"x"}"#,
    ] {
        says(&events, error, LIMITED);
    }
    assert_eq!(judged(&events, "event: error\n"), LIMITED);
    let waiting = Failure::transient().with_retry_after(secs(2.5));
    says(
        &ErrorEvents::as_failure(waiting),
        r#"{"error":"x"}"#,
        waiting.into(),
    );
    says(
        &events.code("mine", Failure::fatal()),
        r#"{"error":{"code":"mine"}}"#,
        FATAL,
    );
}

#[test]
fn a_retry_after_in_the_error_is_a_wait() {
    both(
        r#"{"error":{"code":429,"retry_after":12.5}}"#,
        limited(secs(12.5)),
    );
    both(
        r#"{"error":{"code":429,"retry_after":"12"}}"#,
        limited(secs(12.0)),
    );
    both(r#"{"error":{"code":429,"retry_after":-3}}"#, LIMITED);
    both(r#"{"error":{"code":429,"retry_after":0}}"#, LIMITED);
    both(
        r#"{"error":{"code":429,"retry_after":1e300}}"#,
        limited(secs(86_400.0)),
    );
    both(
        r#"{"error":{"code":429,"retry_after":3,"message":"try again in 9s"}}"#,
        limited(secs(9.0)),
    );
}

#[test]
fn an_error_is_understood_however_long_its_message_is() {
    let long = "x\\\"\\u00e9".repeat(100_000);
    for error in [
        format!(r#"{{"error":{{"message":"{long}","code":"insufficient_quota"}}}}"#),
        format!(r#"{{"message":"{long}","object":"error","code":"insufficient_quota"}}"#),
    ] {
        for (content_type, body) in framed(&error).into_iter().take(2) {
            assert_eq!(judged(&with_type(models(), content_type), body), FATAL);
        }
    }
    // Of too many members nothing is understood, but that there is an error.
    let many = "\"a\":[],".repeat(100_000);
    let error = format!(r#"{{"error":{{{many}"code":"insufficient_quota"}}}}"#);
    assert_eq!(judged(&models(), error), TRANSIENT);
}
