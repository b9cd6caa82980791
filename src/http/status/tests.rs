use super::*;
use crate::vocabulary::{Reason, Refusal};
use crate::{BoxError, Outcome::Neutral, Outcome::Success};

const TRANSIENT: Outcome = Outcome::Failure(Failure::transient());
const LIMITED: Outcome = Outcome::Failure(Failure::rate_limited());
const FATAL: Outcome = Outcome::Failure(Failure::fatal());

fn head<E>(classifier: &StatusClassifier<E>, code: u16) -> Outcome {
    let status = StatusCode::from_u16(code).unwrap();
    classifier.of_head(status, &HeaderMap::new())
}

fn hinting(all: &[(&'static str, &str)]) -> HeaderMap {
    let pairs = all
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    pairs.collect()
}

#[test]
fn every_status_has_the_outcome_of_the_table() {
    for code in 100..=999 {
        let any = match code {
            100..=399 => Success,
            408 | 500..=999 => TRANSIENT,
            429 => LIMITED,
            _ => Neutral,
        };
        let models = match code {
            401..=404 => FATAL,
            _ => any,
        };
        assert_eq!(head(&StatusClassifier::new(), code), any, "{code}");
        assert_eq!(head(&StatusClassifier::default(), code), any, "{code}");
        assert_eq!(head(&StatusClassifier::models(), code), models, "{code}");
    }
}

#[test]
fn a_change_holds_for_its_statuses_alone_and_later_changes_win() {
    let changed = StatusClassifier::models()
        .statuses(400..=499, Failure::transient())
        .status(StatusCode::NOT_FOUND, Success)
        .statuses(404..=405, Failure::rate_limited())
        .status(StatusCode::METHOD_NOT_ALLOWED, Neutral)
        .statuses(100..=100, Failure::fatal())
        .statuses(999..=999, Success);
    for (code, outcome) in [
        (100, FATAL),
        (101, Success),
        (399, Success),
        (400, TRANSIENT),
        (401, TRANSIENT),
        (403, TRANSIENT),
        (404, LIMITED),
        (405, Neutral),
        (406, TRANSIENT),
        (429, TRANSIENT),
        (499, TRANSIENT),
        (500, TRANSIENT),
        (998, TRANSIENT),
        (999, Success),
    ] {
        assert_eq!(head(&changed, code), outcome, "{code}");
    }
    // The preset decides on the statuses that were not changed.
    assert_eq!(
        head(
            &StatusClassifier::models().status(StatusCode::OK, Neutral),
            402
        ),
        FATAL
    );
}

#[test]
fn a_clone_that_is_changed_leaves_the_other_as_it_was() {
    let one = StatusClassifier::new().status(StatusCode::OK, Neutral);
    let other = one.clone().status(StatusCode::OK, Failure::fatal());
    assert_eq!((head(&one, 200), head(&other, 200)), (Neutral, FATAL));
}

#[test]
fn a_changed_table_is_shared_by_its_clones_and_a_preset_has_none() {
    assert!(StatusClassifier::new().changes.is_none());
    assert!(StatusClassifier::models().changes.is_none());
    let changed = StatusClassifier::new().status(StatusCode::OK, Neutral);
    let clone = changed.clone();
    let same = Arc::ptr_eq(&changed.changes.unwrap(), &clone.changes.unwrap());
    assert!(same);
}

#[test]
fn a_classifier_has_the_size_of_two_pointers() {
    assert_eq!(size_of::<StatusClassifier>(), 2 * size_of::<usize>());
    let models = size_of::<StatusClassifier<RefusalsAsFailures>>();
    assert_eq!(models, 2 * size_of::<usize>());
}

#[test]
fn only_a_failure_carries_the_hint_of_the_headers() {
    let headers = hinting(&[("retry-after", "7")]);
    let hint = Duration::from_secs(7);
    for code in 100..=999 {
        let models = StatusClassifier::models();
        let plain = head(&models, code);
        let expected = match plain {
            Outcome::Failure(failure) => failure.with_retry_after(hint).into(),
            other => other,
        };
        let status = StatusCode::from_u16(code).unwrap();
        assert_eq!(models.of_head(status, &headers), expected, "{code}");
    }
}

#[test]
fn a_hint_of_the_table_goes_before_the_hint_of_the_headers() {
    let own = Outcome::from(Failure::rate_limited().with_retry_after(Duration::from_secs(3)));
    let table = StatusClassifier::new()
        .status(StatusCode::BAD_GATEWAY, own)
        .status(StatusCode::CONFLICT, Failure::transient());
    let headers = hinting(&[("retry-after", "7")]);
    assert_eq!(table.of_head(StatusCode::BAD_GATEWAY, &headers), own);
    assert_eq!(
        table.of_head(StatusCode::CONFLICT, &headers),
        Failure::transient()
            .with_retry_after(Duration::from_secs(7))
            .into()
    );
}

#[test]
fn a_limits_reset_counts_for_rate_limits_alone_and_only_without_retry_after() {
    let limits = [
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    let limited = |secs| {
        Failure::rate_limited()
            .with_retry_after(Duration::from_secs(secs))
            .into()
    };
    let new = StatusClassifier::new();
    let headers = hinting(&limits);
    let status = StatusCode::TOO_MANY_REQUESTS;
    assert_eq!(new.of_head(status, &headers), limited(360));
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!(new.of_head(unavailable, &headers), TRANSIENT);
    let fatal = StatusClassifier::models().of_head(StatusCode::FORBIDDEN, &headers);
    assert_eq!(fatal, FATAL);
    let both = hinting(&[&limits[..], &[("retry-after", "2")]].concat());
    assert_eq!(new.of_head(status, &both), limited(2));
    // The reset counts for any status that the table calls a rate limit.
    let changed = new.status(unavailable, Failure::rate_limited());
    assert_eq!(changed.of_head(unavailable, &headers), limited(360));
}

#[test]
fn errors_are_judged_by_their_own_classifier() {
    type Answer = Result<Response<()>, BoxError>;
    fn classify<C: Classify<Response<()>, BoxError>>(by: &C, answer: &Answer) -> Outcome {
        by.classify(answer.as_ref())
    }
    let down: Answer = Err("down".into());
    let refused: Answer = Err(Refusal::breaker(Reason::CircuitOpen).into());
    let (new, models) = (StatusClassifier::new(), StatusClassifier::models());
    assert_eq!(classify(&new, &down), TRANSIENT);
    assert_eq!(classify(&new, &refused), Neutral);
    assert_eq!(classify(&models, &down), TRANSIENT);
    assert_eq!(classify(&models, &refused), TRANSIENT);

    let own = models.status(StatusCode::OK, Neutral).errors(
        |result: Result<&Response<()>, &BoxError>| {
            assert!(result.is_err(), "it was asked about a response");
            FATAL
        },
    );
    assert_eq!(classify(&own, &down), FATAL);
    assert_eq!(classify(&own, &Ok(Response::new(()))), Neutral);
    let mut gone = Response::new(());
    *gone.status_mut() = StatusCode::NOT_FOUND;
    assert_eq!(classify(&own, &Ok(gone)), FATAL);
}

#[test]
#[should_panic(
    expected = "`statuses` needs a range that is not empty, from 100 to 999 at most, not 99..=200"
)]
fn a_range_that_begins_before_the_statuses_panics() {
    let _ = StatusClassifier::new().statuses(99..=200, Success);
}

#[test]
#[should_panic(
    expected = "`statuses` needs a range that is not empty, from 100 to 999 at most, not 500..=1000"
)]
fn a_range_that_ends_after_the_statuses_panics() {
    let _ = StatusClassifier::new().statuses(500..=1000, Success);
}

#[test]
#[should_panic(
    expected = "`statuses` needs a range that is not empty, from 100 to 999 at most, not 500..=499"
)]
fn an_empty_range_panics() {
    #[allow(clippy::reversed_empty_ranges)]
    let _ = StatusClassifier::new().statuses(500..=499, Success);
}
