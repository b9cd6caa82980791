//! Proves what each code says, and what stands for a code that is not there.

use bytes::Bytes;
use http::StatusCode;
use tower::BoxError;
use tower_breaker::grpc::{Code, Codes};
use tower_breaker::http::Inspect;
use tower_breaker::{
    CircuitBreakerLayer, Classify, ErrorsAsFailures, Failure, Outcome, RefusalsAsFailures,
};

use crate::support::secs;
use crate::{Answer, FATAL, RATE_LIMITED, TABLE, TRANSIENT, body, head, response, trailers_only};

#[test]
fn each_code_means_what_the_table_says_in_the_head_and_in_the_trailers() {
    for (number, (code, tool, model)) in (0..).zip(TABLE) {
        assert_eq!(code.number(), number);
        let in_head = trailers_only(number);
        let number = number.to_string();
        let in_trailers: &[_] = &[("grpc-status", &*number)];
        let (tools, models) = (Codes::new(), Codes::models());
        assert_eq!(tools.outcome(code), tool, "{code}");
        assert_eq!(head(&tools, &in_head), tool, "{code}");
        assert_eq!(
            body(&tools, &response(200, &[]), Some(in_trailers)),
            tool,
            "{code}"
        );
        assert_eq!(models.outcome(code), model, "{code}");
        assert_eq!(head(&models, &in_head), model, "{code}");
        assert_eq!(
            body(&models, &response(200, &[]), Some(in_trailers)),
            model,
            "{code}"
        );
    }
}

#[test]
fn a_status_that_is_no_code_is_unknown_and_a_failure() {
    for value in ["", "17", "-1", "014", "OK", "14, 0"] {
        assert_eq!(
            head(&Codes::new(), &response(200, &[("grpc-status", value)])),
            TRANSIENT,
            "{value}"
        );
    }
}

#[test]
fn an_http_status_stands_for_a_code_only_where_there_is_no_grpc_status() {
    // Each code gets an outcome of its own, so that no code passes for another.
    let codes = TABLE.iter().fold(Codes::new(), |codes, (code, ..)| {
        codes.code(*code, told_apart(*code))
    });
    for status in (100..600).filter(|status| *status != 200) {
        let code = match status {
            400 => Code::Internal,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502..=504 => Code::Unavailable,
            _ => Code::Unknown,
        };
        let plain = response(status, &[("content-type", "text/html")]);
        assert_eq!(head(&codes, &plain), told_apart(code), "{status}");
        assert_eq!(body(&codes, &plain, None), told_apart(code), "{status}");
        let with_status = response(status, &[("grpc-status", "5")]);
        assert_eq!(head(&codes, &with_status), told_apart(Code::NotFound));
        assert_eq!(body(&codes, &with_status, None), told_apart(Code::NotFound));
    }
}

fn told_apart(code: Code) -> Outcome {
    let number = u64::try_from(code.number()).unwrap();
    Failure::transient()
        .with_retry_after(secs(1 + number))
        .into()
}

#[test]
fn a_200_without_a_status_is_a_success_so_far_and_a_failure_when_it_ends_so() {
    let plain = response(200, &[("content-type", "application/grpc")]);
    assert_eq!(head(&Codes::new(), &plain), Outcome::Success);
    assert_eq!(body(&Codes::new(), &plain, None), TRANSIENT);
    let others: &[_] = &[("grpc-message", "0"), ("x-trace", "14")];
    assert_eq!(body(&Codes::new(), &plain, Some(others)), TRANSIENT);
}

#[test]
fn a_status_in_the_head_stands_at_the_end_of_a_body_without_one() {
    let codes = Codes::new();
    assert_eq!(body(&codes, &trailers_only(0), None), Outcome::Success);
    assert_eq!(body(&codes, &trailers_only(14), None), TRANSIENT);
    assert_eq!(body(&codes, &trailers_only(5), None), Outcome::Neutral);
    let late: &[_] = &[("grpc-status", "8")];
    assert_eq!(body(&codes, &trailers_only(0), Some(late)), RATE_LIMITED);
    assert_eq!(body(&codes, &response(500, &[]), Some(late)), RATE_LIMITED);
}

#[test]
fn an_inspector_remembers_only_the_last_head() {
    let mut codes = Codes::new();
    let inspect: &mut dyn Inspect<Bytes> = &mut codes;
    inspect.head(StatusCode::OK, trailers_only(0).headers());
    assert_eq!(inspect.end(), Outcome::Success);
    inspect.head(StatusCode::OK, response(200, &[]).headers());
    assert_eq!(inspect.end(), TRANSIENT);
}

#[test]
fn a_changed_code_changes_only_that_code_and_no_earlier_clone() {
    let before = Codes::new().code(Code::Aborted, Failure::transient());
    let after = before.clone().code(Code::Ok, Outcome::Neutral);
    for (code, tool, _) in TABLE {
        let aborted = (code == Code::Aborted).then_some(TRANSIENT);
        assert_eq!(before.outcome(code), aborted.unwrap_or(tool), "{code}");
        let ok = (code == Code::Ok).then_some(Outcome::Neutral);
        assert_eq!(
            after.outcome(code),
            aborted.or(ok).unwrap_or(tool),
            "{code}"
        );
    }
    let model = Codes::models().code(Code::NotFound, Outcome::Neutral);
    assert_eq!(model.outcome(Code::NotFound), Outcome::Neutral);
    assert_eq!(model.outcome(Code::Unimplemented), FATAL);
    assert_eq!(head(&after, &trailers_only(10)), TRANSIENT);
    assert_eq!(head(&after, &trailers_only(0)), Outcome::Neutral);
}

#[test]
fn the_classifier_of_errors_judges_errors() {
    fn of<E: Classify<Answer, BoxError>>(codes: &Codes<E>, err: &BoxError) -> Outcome {
        codes.classify(Err(err))
    }
    let refusal = || -> BoxError {
        let circuit = CircuitBreakerLayer::new().handle();
        circuit.force_open();
        circuit.try_acquire().unwrap_err().into()
    };
    assert_eq!(of(&Codes::new(), &"down".into()), TRANSIENT);
    assert_eq!(of(&Codes::new(), &refusal()), Outcome::Neutral);
    assert_eq!(of(&Codes::default(), &refusal()), Outcome::Neutral);
    assert_eq!(of(&Codes::models(), &"down".into()), TRANSIENT);
    assert_eq!(of(&Codes::models(), &refusal()), TRANSIENT);
    let models = Codes::models().errors(ErrorsAsFailures);
    assert_eq!(of(&models, &refusal()), Outcome::Neutral);
    assert_eq!(models.outcome(Code::NotFound), FATAL);
    assert_eq!(
        of(&Codes::new().errors(RefusalsAsFailures), &refusal()),
        TRANSIENT
    );
    let closure = Codes::new().code(Code::Aborted, Failure::fatal()).errors(
        |result: Result<&Answer, &BoxError>| {
            assert!(result.is_err());
            Outcome::Neutral
        },
    );
    assert_eq!(of(&closure, &"down".into()), Outcome::Neutral);
    assert_eq!(head(&closure, &trailers_only(10)), FATAL);
    assert_eq!(head(&closure, &response(200, &[])), Outcome::Success);
}
