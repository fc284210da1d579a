//! Calls that a policy asks about. The call's record has no result while its question is open, and that call, with the arguments on
//! record, runs once when it is approved: its record is locked, and the session and the question are read under their locks.
//!
//! | found | then |
//! |---|---|
//! | a result | that result |
//! | the session or the turn is over | refused late |
//! | the question is open | nothing |
//! | approved | the checks of any call, `deny` included; then it runs |
//! | denied, lapsed, withdrawn | refused |
//!
//! Woken by `tool.approved`. If that is lost, by the next request of the same call.

use contracts::{TraceContext, tools};
use domain::{AccountId, Audience, PolicyVerdict, QuestionId, ToolCallState, Verdict};
use storage::{
    Accounts, StorageError, Tx,
    outbox::{Owned, outbox_insert},
    question::{About, Asker, Choices, NewQuestion, question_open, questions_count},
};
use time::Duration;
use uuid::Uuid;

use super::{Case, Executed, Executor, ended};
use crate::{
    call::{CallRequest, Record, ToolAnswer},
    capability::{Capability, Presented},
    refusal::{Consequence, Refusal, not_approved},
    store::{self, EndedCall},
};

/// A question about a call that nobody answers lapses after this time.
const LAPSE: Duration = Duration::hours(24);
/// Open questions of a session, and of a task.
const OF_SESSION_MAX: i64 = 10;
const OF_TASK_MAX: i64 = 20;

impl Case<'_> {
    /// Who is asked about the call, if a policy says so.
    pub(super) fn asks(&self) -> Option<Vec<Audience>> {
        let (tool, _) = self.run.as_ref().ok()?;
        let capability = Capability {
            session: self.asked.session,
            facts: &self.facts,
        };
        let (PolicyVerdict::Ask, policy) = capability.ruled(tool.definition) else {
            return None;
        };
        let named = policy.and_then(|policy| policy.audience.as_deref()).unwrap_or_default();
        let mut audience: Vec<Audience> = named.iter().filter_map(|text| text.parse().ok()).collect();
        if audience.is_empty() {
            audience.push(Audience::DEFAULT);
        }
        Some(audience)
    }
}

impl Executor {
    /// The answer to an agent that has too many questions open to be asked about another call.
    pub(super) async fn asks_too_much(&self, tx: &Tx, case: &Case<'_>) -> Result<Option<ToolAnswer>, StorageError> {
        let asked = case.asked;
        let open = questions_count(tx, &asked.account, asked.session, case.facts.task()).await?;
        let is_full = open.of_session >= OF_SESSION_MAX || open.of_task >= OF_TASK_MAX;
        Ok(is_full.then(|| {
            ToolAnswer::refused(
                "too_many_questions",
                "This call needs an approval, and too many questions of yours or of this task are open.",
                "Nothing was changed. Go on without it, and say in your reply what you needed it for.",
            )
        }))
    }

    /// Opens the question about a recorded call.
    async fn ask(
        &self,
        tx: &Tx,
        case: &Case<'_>,
        audience: Vec<Audience>,
    ) -> Result<(QuestionId, Vec<Owned>), StorageError> {
        let (asked, facts) = (case.asked, &case.facts);
        let task = facts.task();
        let (tool, _) = case.run.as_ref().expect("a call is asked about that could run");
        let (name, arguments) = (tool.definition.name, store::recorded(&asked.arguments));
        let by = facts.actor();
        let title = format!("{} asks to call {name}", facts.agent_name);
        let question = NewQuestion {
            account: &asked.account,
            about: About::Tool {
                name,
                arguments: &arguments,
                arguments_hash: domain::tool_policy::arguments_hash(name, &arguments),
                schema_hash: tools::schema_hash(name).try_into().ok(),
            },
            task,
            asker: Some(Asker {
                session: asked.session,
                kind: facts.session_kind,
                generation: facts.generation,
                agent: facts.agent,
                turn: case.turn,
                tool_call: Some(asked.id),
            }),
            from: &by,
            title: &title,
            body: "The call waits until somebody has decided. If it is approved, it runs once, with these arguments.",
            options: Choices::default(),
            multiple: false,
            free_text: true,
            audience,
            lapse_at: Some(facts.now + LAPSE),
            // Its end wakes the call, and no turn.
            chain: 0,
        };
        question_open(tx, &question, &self.setting(case)).await
    }

    /// Records the call without a result, and asks. None: another delivery has recorded it.
    pub(super) async fn asked(
        &self,
        tx: Tx,
        case: &Case<'_>,
        audience: Vec<Audience>,
    ) -> Result<Option<Vec<Executed>>, StorageError> {
        let record = case.requested();
        let call = EndedCall {
            asked: case.asked,
            facts: &case.facts,
            turn: case.turn,
            record: &record,
        };
        if store::calls_insert(&tx, &[call]).await?.is_none() {
            tx.rollback().await?;
            return Ok(None);
        }
        let (question, messages) = self.ask(&tx, case, audience).await?;
        let outbox = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("tool_gateway.effect_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("tool_gateway.effect_committed").await;
        self.outbox.publish_soon(outbox);
        let (account, session_id) = (&case.asked.account, case.asked.session);
        tracing::info!(%account, %session_id, tool_call_id = %case.asked.id, question_id = %question, "asked about a tool call");
        Ok(Some(vec![Executed::Asked { question }]))
    }

    /// Runs or refuses a call that was asked about, if that is decided; also gives the call as it was requested.
    pub(crate) async fn decided(
        &self,
        account: &AccountId,
        id: Uuid,
        trace: &TraceContext,
    ) -> Result<(Option<CallRequest>, Executed), StorageError> {
        // It may be an external call.
        if self.external.is_unregistered() {
            return Ok((None, Executed::Left));
        }
        let tx = self.database.begin(&Accounts::one(account)).await?;
        let Some(row) = store::call_lock(&tx, account, id).await? else {
            tx.rollback().await?;
            return Ok((None, Executed::UnknownSession));
        };
        let mut asked = row.asked(account, id, trace);
        if row.record.state == ToolCallState::Running {
            tx.rollback().await?;
            return Ok((Some(asked), Executed::Running));
        }
        let wanted = self.wanted(&asked);
        super::lock(&tx, &asked, &wanted).await?;
        let found = store::facts(&tx, std::slice::from_ref(&asked), self.branches.depth_max)
            .await?
            .pop()
            .flatten();
        let Some(mut facts) = found.map(|found| found.facts) else {
            tx.rollback().await?;
            return Ok((None, Executed::UnknownSession));
        };
        facts.models = self.external.models.settings.kinds_of(account);
        // Over HTTP, a call is of the turn in which it was made, and of no later one.
        facts.turn = facts.turn.take().filter(|turn| Some(turn.id) == row.turn_id);
        asked.claim(&facts);
        if row.record.state.is_over() {
            tx.rollback().await?;
            let executed = Executed::Over {
                record: row.record,
                is_replay: true,
            };
            return Ok((Some(asked), executed));
        }
        let question = store::call_question(&tx, account, id).await?;
        let wanted = self.wanted(&asked);
        let capability = Capability {
            session: asked.session,
            facts: &facts,
        };
        let admitted = capability.admit(&Presented {
            asked: &asked,
            tool: wanted.tool.map(|tool| tool.definition),
            task: wanted.task(),
        });
        let admitted = match (row.turn_id, &facts.turn) {
            // The end of the session says more.
            (Some(_), None) if !facts.is_closed => Err(Refusal::TurnOver),
            _ => admitted,
        };
        let admitted = admitted.map_err(|refusal| match refusal.consequence() {
            Consequence::Late | Consequence::Answered => refusal,
            // It was the turn's call when it was recorded.
            Consequence::Buried => Refusal::Superseded,
        });
        let is_late = admitted
            .as_ref()
            .is_err_and(|refusal| refusal.consequence() == Consequence::Late);
        let is_approved = question
            .as_ref()
            .is_some_and(|question| question.verdict == Some(Verdict::Approved));
        if let Some(open) = question
            .as_ref()
            .filter(|question| question.state.is_open() && !is_late)
        {
            let question = open.id;
            tx.rollback().await?;
            return Ok((Some(asked), Executed::Asked { question }));
        }
        let run = match admitted {
            Err(refusal) if is_late || is_approved => Err(refusal.told()),
            Ok(()) if is_approved => wanted
                .arguments
                .map(|parsed| (wanted.tool.expect("an unknown tool is not admitted"), parsed)),
            Ok(()) | Err(_) => Err(not_approved(&asked.name, question.as_ref())),
        };
        let case = Case {
            asked: &asked,
            facts,
            turn: row.turn_id,
            run,
        };
        let outcome = self.run_alone(&tx, std::slice::from_ref(&case)).await?.pop();
        let mut outcome = outcome.expect("a call has one outcome");
        if let Ok(effect) = &mut outcome
            && let Some(outside) = effect.outside.take()
        {
            match self.place(&case) {
                Ok(place) => {
                    store::call_start(&tx, account, id, place.runner, &outside).await?;
                    self.shutdown.crash_point("tool_gateway.effect_written").await;
                    tx.commit().await?;
                    self.shutdown.crash_point("tool_gateway.effect_committed").await;
                    self.external.run(account.clone(), id, place, trace);
                    return Ok((Some(asked), Executed::Running));
                }
                Err(answer) => outcome = Err(answer),
            }
        }
        let (record, messages) = ended(&case, outcome);
        let finished_at = store::call_end(&tx, account, id, &record).await?;
        let outbox = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("tool_gateway.effect_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("tool_gateway.effect_committed").await;
        self.outbox.publish_soon(outbox);
        let record = Record { finished_at, ..record };
        let executed = Executed::Over {
            record,
            is_replay: false,
        };
        Ok((Some(asked), executed))
    }
}
