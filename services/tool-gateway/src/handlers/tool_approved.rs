//! Consumes `tool.approved`.
//! Decides by the call's record, its session and its question whether the call runs or is refused (`execute::asking`).
//! Writes the call's result and the tool's effect.
//! Publishes `tool.finished`, if a turn waits for the call, and through the outbox the messages of the tool's effect.

use std::time::Instant;

use contracts::{addressed, message::Message as _, tool::ToolApproved};
use messaging::{
    BatchHandler, Incoming, Verdict,
    trace::{child_of, of_span},
};
use tracing::Instrument;

use super::tool_requested::{failed, finished};
use crate::{
    execute::{Executed, Executor},
    settings::ToolGatewaySettings,
};

pub(crate) struct ToolApprovedHandler {
    pub executor: Executor,
    pub config: ToolGatewaySettings,
}

impl BatchHandler for ToolApprovedHandler {
    /// Calls run apart: one may wait for locks. The message's id says its call.
    fn group(&self, incoming: &Incoming) -> String {
        incoming.id().unwrap_or_default().to_owned()
    }

    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(batch.len());
        for incoming in batch {
            verdicts.push(self.run(incoming).await);
        }
        verdicts
    }
}

impl ToolApprovedHandler {
    async fn run(&self, incoming: &Incoming) -> Verdict {
        let executor = &self.executor;
        let read = addressed::read::<ToolApproved>(&executor.root, &incoming.subject, &incoming.payload);
        let ToolApproved {
            account,
            session_id,
            call,
            ..
        } = match read {
            Ok(approved) => approved,
            Err(error) => {
                return Verdict::Dead {
                    reason: error.reason().to_owned(),
                    detail: error.to_string(),
                };
            }
        };
        let span = tracing::info_span!(
            "tool_approved",
            otel.name = ToolApproved::KIND,
            otel.kind = "consumer",
            %account,
            %session_id,
            tool_call_id = %call,
        );
        let received = incoming.headers.trace();
        child_of(&span, &received);
        let trace = of_span(&span, &received);
        let begun = Instant::now();
        let decided = executor.decided(&account, call, &trace).instrument(span).await;
        match decided {
            Ok((Some(asked), executed)) => {
                executor.log(&asked, &executed, begun);
                let result = match &executed {
                    Executed::Over { record, .. } => finished(&executor.root, &asked, incoming, record),
                    _ => None,
                };
                Verdict::Done(result.into_iter().collect())
            }
            Ok((_, Executed::Left)) => Verdict::Postpone {
                after: self.config.postpone_delay_ms.duration(),
                why: "this process is no runner of external calls, for now".to_owned(),
            },
            // The record went with its session.
            Ok((None, _)) => Verdict::Done(Vec::new()),
            Err(error) => failed(&self.config, &error),
        }
    }
}
