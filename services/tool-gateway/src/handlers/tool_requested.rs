//! Consumes `tool.requested`.
//! Decides whether the call is valid, allowed and well-formed (`capability`, `arguments`); keeps the order of a turn's
//! calls.
//! Writes the calls' records with their results, and the tools' effects, in one transaction for many calls.
//! Publishes `tool.finished`, and through the outbox the messages of the tool's effect (events, notifications,
//! wake-ups).

use domain::error_chain;
use std::{borrow::Cow, time::Duration};

use contracts::{
    Outgoing, Root, Timestamp, TraceContext, addressed, message::Message as _, outgoing::Origin as Cause,
    tool::ToolRequested,
};
use messaging::{
    BatchHandler, Durable, Incoming, User, Verdict,
    trace::{child_of, of_span},
};
use serde::Deserialize;
use storage::StorageError;
use tracing::{Instrument, Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{
    SOURCE,
    call::{CallRequest, Claims, Origin, Record},
    execute::{Executed, Executor},
    settings::ToolGatewaySettings,
};

const ORDER_DELAY: Duration = Duration::from_millis(20);
const ORDER_DELAY_MAX: Duration = Duration::from_millis(500);

pub(crate) struct ToolRequestedHandler {
    pub executor: Executor,
    pub config: ToolGatewaySettings,
}

/// The part of a request that decides its group.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// A request in progress.
struct Call {
    place: usize,
    request: ToolRequested,
    asked: CallRequest,
    /// Ends with the call.
    span: Span,
}

impl BatchHandler for ToolRequestedHandler {
    /// Calls that may share a transaction are one group. A call that may not, or that was left to run alone, is in the
    /// group of its turn: these groups run in parallel, and the calls of a turn in sequence. The turn comes from the
    /// message's id. A call in a wrong group is held back by the check of earlier calls.
    fn group(&self, incoming: &Incoming) -> String {
        let named: Result<Named<'_>, _> = serde_json::from_slice(&incoming.payload);
        if incoming.deliveries <= 1 && named.is_ok_and(|one| self.executor.may_share(&one.name)) {
            return String::new();
        }
        let id = incoming.id().unwrap_or_default();
        id.rsplit_once(':').map_or(id, |(turn, _)| turn).to_owned()
    }

    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(batch.len());
        let mut calls: Vec<Call> = Vec::with_capacity(batch.len());
        for (place, incoming) in batch.iter().enumerate() {
            verdicts.push(match read(&self.executor.root, incoming) {
                Ok(request) => {
                    calls.push(self.call(place, request, incoming));
                    None
                }
                Err(dead) => Some(dead),
            });
        }
        calls.sort_by_key(|call| (call.request.turn_id, call.request.ordinal));
        self.executor.shutdown.crash_point("tool_gateway.request_read").await;
        let is_shared = batch.first().is_some_and(|one| self.group(one).is_empty());
        if is_shared && calls.len() > 1 {
            // The first call of each turn.
            calls.dedup_by(|next, first| {
                let is_same =
                    (&next.asked.account, next.request.turn_id) == (&first.asked.account, first.request.turn_id);
                if is_same {
                    verdicts[next.place] = Some(left());
                }
                is_same
            });
            let asked: Vec<CallRequest> = calls.iter().map(|call| call.asked.clone()).collect();
            let executed = self.executor.execute_together(&asked).await;
            for (call, executed) in calls.iter().zip(executed) {
                let executed = executed.as_ref().map_err(|error| &**error);
                verdicts[call.place] = Some(self.verdict(call, &batch[call.place], executed));
            }
        } else {
            for call in &calls {
                let executed = self.executor.execute(&call.asked).instrument(call.span.clone()).await;
                verdicts[call.place] = Some(self.verdict(call, &batch[call.place], executed.as_ref()));
            }
        }
        verdicts
            .into_iter()
            .map(|verdict| verdict.unwrap_or_else(left))
            .collect()
    }

    async fn published(&self) {
        self.executor
            .shutdown
            .crash_point("tool_gateway.result_published")
            .await;
    }
}

impl ToolRequestedHandler {
    fn call(&self, place: usize, request: ToolRequested, incoming: &Incoming) -> Call {
        let tool = self.tool_name(&request.name);
        let span = tracing::info_span!(
            "tool_requested",
            otel.name = format!("execute_tool {tool}"),
            tool,
            otel.kind = "consumer",
            otel.status_code = Empty,
            account = %request.account,
            session_id = %request.session_id,
            turn_id = %request.turn_id,
            ordinal = request.ordinal,
        );
        let received = incoming.headers.trace();
        child_of(&span, &received);
        // By OpenTelemetry's conventions for messaging and generative AI. Attributes instead of fields, since fields
        // would appear on every log line.
        for (name, value) in [
            ("messaging.system", "nats"),
            ("messaging.operation.name", "process"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", "tool.requested"),
            (
                "messaging.consumer.group.name",
                Durable::of(User::ToolGateway, ToolRequested::KIND).name(),
            ),
            ("gen_ai.operation.name", "execute_tool"),
            ("gen_ai.tool.name", tool),
            ("gen_ai.tool.type", "function"),
        ] {
            span.set_attribute(name, value);
        }
        span.set_attribute("gen_ai.tool.call.id", request.call_id.0.clone());
        let asked = asked(&request, of_span(&span, &received));
        Call {
            place,
            request,
            asked,
            span,
        }
    }

    /// Names that models invent do not go into traces.
    fn tool_name(&self, name: &str) -> &'static str {
        let tool = self.executor.toolbox.find(name);
        tool.map_or("unknown", |tool| tool.definition.name)
    }

    fn verdict(&self, call: &Call, incoming: &Incoming, executed: Result<&Executed, &StorageError>) -> Verdict {
        let request = &call.request;
        let deliveries = u32::try_from(incoming.deliveries).unwrap_or(u32::MAX);
        match executed {
            Ok(Executed::Over { record, .. }) => {
                let finished = finished(&self.executor.root, &call.asked, incoming, record);
                Verdict::Done(finished.into_iter().collect())
            }
            // Its result is published when it is decided, or when it has ended.
            Ok(Executed::Asked { .. } | Executed::Running) => Verdict::Done(Vec::new()),
            Ok(Executed::OutOfTurn) => Verdict::Postpone {
                after: order_delay(deliveries),
                why: "earlier calls of the same answer are not finished".to_owned(),
            },
            Ok(Executed::Left) => left(),
            Ok(Executed::Unowned(refusal)) => {
                let answer = refusal.told();
                Verdict::Dead {
                    reason: answer.code.to_owned(),
                    detail: answer.message,
                }
            }
            Ok(Executed::UnknownSession) => Verdict::Dead {
                reason: "unknown_session".to_owned(),
                detail: format!(
                    "There is no session {} in account {}.",
                    request.session_id, request.account
                ),
            },
            Err(error) => failed(&self.config, error),
        }
    }
}

/// An error of a single call's size may repeat: it counts as an attempt.
pub(super) fn failed(config: &ToolGatewaySettings, error: &StorageError) -> Verdict {
    let why = error_chain(error);
    match error.is_retryable() && !error.is_too_much() {
        true => Verdict::Postpone {
            after: config.postpone_delay_ms.duration(),
            why,
        },
        false => Verdict::Retry {
            after: config.retry_delay_ms.duration(),
            why,
        },
    }
}

/// The next delivery runs alone.
fn left() -> Verdict {
    Verdict::Postpone {
        after: ORDER_DELAY,
        why: "the calls of other turns would wait for it".to_owned(),
    }
}

/// Parses a request, and checks it against its subject.
fn read(root: &Root, incoming: &Incoming) -> Result<ToolRequested, Verdict> {
    addressed::read(root, &incoming.subject, &incoming.payload).map_err(|error| Verdict::Dead {
        reason: error.reason().to_owned(),
        detail: error.to_string(),
    })
}

/// Converts a request into a call. Pure.
pub fn asked(request: &ToolRequested, trace: TraceContext) -> CallRequest {
    CallRequest {
        trace,
        account: request.account.clone(),
        session: request.session_id,
        id: request.tool_call_id(),
        call_id: request.call_id.clone(),
        ordinal: request.ordinal,
        name: request.name.clone(),
        arguments: request.arguments.clone(),
        origin: Origin::Turn(Claims {
            turn: request.turn_id,
            task: request.task.clone(),
            session_key: request.session_key.clone(),
            generation: request.generation,
            fence: request.fence,
            agent: request.agent_id,
        }),
    }
}

/// The result message of a turn's call; none: the call came over HTTP. The same record gives the same message, its id included.
pub(super) fn finished(root: &Root, asked: &CallRequest, incoming: &Incoming, record: &Record) -> Option<Outgoing> {
    let finished = asked.finished(record)?;
    let cause = Cause {
        cause: incoming.id().map(str::to_owned),
        hops: incoming.headers.hops(),
        trace: asked.trace.clone(),
    };
    let (id, at) = (finished.message_id(), Timestamp::from(record.finished_at));
    Some(Outgoing::of(root, &id, SOURCE, &cause, at, &finished))
}

/// The delay before an out-of-order call is redelivered.
pub fn order_delay(deliveries: u32) -> Duration {
    let factor = 2u32.saturating_pow(deliveries.saturating_sub(1));
    ORDER_DELAY.saturating_mul(factor).min(ORDER_DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_out_of_turn_waits_longer_each_time() {
        let check = |deliveries: u32, millis: u64| {
            assert_eq!(order_delay(deliveries), Duration::from_millis(millis), "{deliveries}");
        };
        check(0, 20);
        check(1, 20);
        check(2, 40);
        check(5, 320);
        check(6, 500);
        check(u32::MAX, 500);
    }
}
