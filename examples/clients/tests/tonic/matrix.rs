//! Tests of each fault, unary and streaming: what the circuit, the fallback and the tripwire
//! count, and what the caller sees.

use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower_breaker::{FailureKind, FallbackState, State};
use tower_breaker_clients::grpc::Fault;

use crate::support::{BOTH, COOLDOWN, Call, Guarded, PATIENCE, Seen, call as make, eventually};

#[tokio::test]
async fn a_clean_answer_is_a_success_for_every_layer() {
    for call in BOTH {
        let mut guarded = Guarded::start().await;
        assert_eq!(guarded.call(call).await, Seen::whole(call));
        guarded.assert_clean();
    }
}

#[tokio::test]
async fn a_refused_connection_is_a_failure_and_reads_as_unavailable() {
    for call in BOTH {
        let mut guarded = Guarded::start().await;
        guarded.proxy.kill().await;
        let seen = guarded.call(call).await;
        assert_eq!(
            seen,
            Seen::failed(0, Code::Unavailable, "tcp connect error")
        );
        guarded.assert_failed(FailureKind::Transient);
    }
}

#[tokio::test]
async fn a_hang_before_the_head_is_a_failure_by_the_timeout_inside() {
    for call in BOTH {
        let mut guarded = Guarded::start().await;
        guarded.set(Fault::HangBeforeHead);
        let seen = guarded.call(call).await;
        assert_eq!(seen, Seen::failed(0, Code::Unknown, "request timed out"));
        guarded.assert_failed(FailureKind::Transient);
    }
}

#[tokio::test]
async fn a_connection_that_hangs_before_the_head_is_the_same_failure_and_may_continue_later() {
    for call in BOTH {
        let mut guarded = Guarded::with_cooldown(Duration::from_millis(200)).await;
        guarded.proxy.hang();
        let seen = guarded.call(call).await;
        assert_eq!(seen, Seen::failed(0, Code::Unknown, "request timed out"));
        guarded.assert_failed(FailureKind::Transient);
        assert_eq!(guarded.server.script().seen(), 0);

        guarded.proxy.resume();
        eventually(|| guarded.circuit.would_allow()).await;
        assert_eq!(guarded.call(call).await, Seen::whole(call));
        assert_eq!(guarded.circuit.state(), State::Closed);
    }
}

#[tokio::test]
async fn a_head_and_then_a_hang_is_a_failure_by_the_timeout_of_frames() {
    for call in BOTH {
        let mut guarded = Guarded::start().await;
        guarded.set(Fault::HeadThenHang);
        let seen = guarded.call(call).await;
        let text = "data was not received within the designated timeout";
        let messages = usize::from(call == Call::Follow);
        assert_eq!(seen, Seen::failed(messages, Code::Unknown, text));
        guarded.assert_failed(FailureKind::Transient);
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_during_a_stream_is_a_failure() {
    for call in BOTH {
        let mut guarded = Guarded::start().await;
        guarded.set(Fault::HeadThenHang);
        let frame = guarded.frame.clone();
        let proxy = &guarded.proxy;
        let client = &mut guarded.client;
        let (seen, ()) = tokio::join!(make(client, call), async {
            frame.notified().await;
            proxy.cut().await;
        });
        let messages = usize::from(call == Call::Follow);
        let text = "h2 protocol error: error reading a body from connection";
        assert_eq!(seen, Seen::failed(messages, Code::Unknown, text));
        guarded.assert_failed(FailureKind::Transient);
    }
}

#[tokio::test]
async fn a_status_in_the_headers_is_judged_at_the_head() {
    for call in BOTH {
        for status in [Status::internal("broken"), Status::unavailable("down")] {
            let mut guarded = Guarded::start().await;
            guarded.set(Fault::Refuse(status.clone()));
            let seen = guarded.call(call).await;
            assert_eq!(seen, Seen::failed(0, status.code(), status.message()));
            guarded.assert_failed(FailureKind::Transient);
        }
    }
}

#[tokio::test]
async fn a_status_in_the_trailers_is_judged_at_the_end_of_the_stream() {
    for call in BOTH {
        for status in [Status::internal("broken"), Status::unavailable("down")] {
            let mut guarded = Guarded::start().await;
            guarded.set(Fault::FailAtEnd(status.clone()));
            let seen = guarded.call(call).await;
            let messages = if call == Call::Follow { 2 } else { 0 };
            assert_eq!(
                seen,
                Seen::failed(messages, status.code(), status.message())
            );
            guarded.assert_failed(FailureKind::Transient);
        }
    }
}

/// Returns `RESOURCE_EXHAUSTED` with a hint of two minutes, in each of the two forms.
fn throttled() -> [Status; 2] {
    let mut pushback = Status::resource_exhausted("slow down");
    let millis = MetadataValue::from_static("120000");
    pushback
        .metadata_mut()
        .insert("grpc-retry-pushback-ms", millis);
    let details = ErrorDetails::with_retry_info(Some(4 * COOLDOWN));
    let retry_info = Status::with_error_details(Code::ResourceExhausted, "slow down", details);
    [pushback, retry_info]
}

#[tokio::test]
async fn a_throttled_call_lengthens_the_cooldown_by_either_form_of_hint() {
    for call in BOTH {
        for status in throttled() {
            for (at_end, fault) in [Fault::Refuse, Fault::FailAtEnd].into_iter().enumerate() {
                let mut guarded = Guarded::start().await;
                guarded.set(fault(status.clone()));
                let seen = guarded.call(call).await;
                let messages = if call == Call::Follow { 2 * at_end } else { 0 };
                assert_eq!(
                    seen,
                    Seen::failed(messages, Code::ResourceExhausted, "slow down")
                );
                guarded.assert_failed(FailureKind::RateLimited);
                let left = guarded.circuit.snapshot().time_left.unwrap();
                assert!(left > 3 * COOLDOWN && left <= 4 * COOLDOWN, "{left:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_throttled_call_without_a_hint_waits_the_cooldown() {
    let mut guarded = Guarded::start().await;
    guarded.set(Fault::Refuse(Status::resource_exhausted("slow down")));
    guarded.call(Call::Find).await;
    guarded.assert_failed(FailureKind::RateLimited);
    assert!(guarded.circuit.snapshot().time_left.unwrap() <= COOLDOWN);
}

#[tokio::test]
async fn a_slow_stream_is_no_failure_if_each_frame_comes_in_time() {
    for call in BOTH {
        let mut guarded = Guarded::start().await;
        guarded.set(Fault::Drip(PATIENCE / 4));
        assert_eq!(guarded.call(call).await, Seen::whole(call));
        guarded.assert_clean();
    }
}

#[tokio::test]
async fn no_layer_counts_the_callers_own_mistakes() {
    for call in BOTH {
        let mistakes = [Status::invalid_argument("what?"), Status::aborted("lost")];
        for (status, fault) in mistakes.into_iter().zip([Fault::Refuse, Fault::FailAtEnd]) {
            let mut guarded = Guarded::start().await;
            guarded.set(fault(status.clone()));
            let seen = guarded.call(call).await;
            let messages = match (call, status.code()) {
                (Call::Follow, Code::Aborted) => 2,
                _ => 0,
            };
            assert_eq!(
                seen,
                Seen::failed(messages, status.code(), status.message())
            );
            guarded.assert_clean();
        }
    }
}

/// What a backup does.
#[derive(Debug)]
enum Backup {
    RefusesConnections,
    IsCut,
    Answers(Fault),
}

#[tokio::test]
async fn each_fault_is_a_strike_of_the_backup_that_served() {
    let [throttled, _] = throttled();
    let broken = Status::internal("broken");
    let refuse = |status| Backup::Answers(Fault::Refuse(status));
    let at_end = |status| Backup::Answers(Fault::FailAtEnd(status));
    for call in BOTH {
        for (backup, strikes, code) in [
            (Backup::RefusesConnections, 1, Some(Code::Unavailable)),
            (
                Backup::Answers(Fault::HangBeforeHead),
                1,
                Some(Code::Unknown),
            ),
            (Backup::Answers(Fault::HeadThenHang), 1, Some(Code::Unknown)),
            (Backup::IsCut, 1, Some(Code::Unknown)),
            (refuse(throttled.clone()), 1, Some(Code::ResourceExhausted)),
            (at_end(throttled.clone()), 1, Some(Code::ResourceExhausted)),
            (refuse(broken.clone()), 1, Some(Code::Internal)),
            (at_end(broken.clone()), 1, Some(Code::Internal)),
            (at_end(Status::aborted("lost")), 0, Some(Code::Aborted)),
            (Backup::Answers(Fault::Drip(PATIENCE / 4)), 0, None),
            (Backup::Answers(Fault::Clean), 0, None),
        ] {
            let mut guarded = Guarded::tripped(call).await;
            let before = guarded.chain.snapshot();
            let seen = match &backup {
                Backup::RefusesConnections => {
                    guarded.backup_proxy.kill().await;
                    guarded.call(call).await
                }
                Backup::IsCut => {
                    guarded.backup.script().set(Fault::HeadThenHang);
                    let frame = guarded.backup_frame.clone();
                    let proxy = &guarded.backup_proxy;
                    let (seen, ()) = tokio::join!(make(&mut guarded.client, call), async {
                        frame.notified().await;
                        proxy.cut().await;
                    });
                    seen
                }
                Backup::Answers(fault) => {
                    guarded.backup.script().set(fault.clone());
                    guarded.call(call).await
                }
            };
            let ended = seen.end.as_ref().err().map(|(code, _)| *code);
            assert_eq!(ended, code, "{call:?} {backup:?}");
            let after = guarded.chain.snapshot();
            assert_eq!(after.entries[0].strikes, strikes, "{call:?} {backup:?}");
            assert_eq!((after.state, after.trips), (FallbackState::Fallback, 1));
            // A backup's hint does not move the primary's cooldown.
            assert!(after.time_until_probe <= before.time_until_probe);
            assert_eq!(guarded.server.script().seen(), 1);
        }
    }
}

#[tokio::test]
async fn a_restarted_server_closes_the_circuit() {
    for call in BOTH {
        let mut guarded = Guarded::with_cooldown(Duration::from_millis(200)).await;
        guarded.proxy.kill().await;
        assert!(guarded.call(call).await.end.is_err());
        assert_eq!(guarded.circuit.state(), State::Open);
        guarded.proxy.restart().await.unwrap();
        eventually(|| guarded.circuit.would_allow()).await;
        assert_eq!(guarded.call(call).await, Seen::whole(call));
        assert_eq!(guarded.circuit.state(), State::Closed);
    }
}
