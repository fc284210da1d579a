//! Runs each call once: its record, its checks, its effect and its result are one transaction (B4).
//!
//! ```text
//! record ── exists ─────────────────────────────────────► the first result again, nothing else
//!   │ new
//! locks ► facts ► capability ► order ► arguments ► effect (savepoint) ► result ► outbox ► commit
//!                     │           └── not yet: undone, and the call is redelivered
//!                     └─────────── no ────────── undone ────────────────┘
//! ```
//! A crash anywhere leaves nothing, and the call is redelivered. An invalid call ends with a result for the agent. Only
//! a database failure ends with an error here. A call that the rows do not confirm leaves no record.

use std::{sync::Arc, time::Instant};

use contracts::{Root, outgoing::Origin as Cause, tool::ARGUMENTS_BYTES_MAX};
use domain::{TaskId, ToolCallState, TurnId};
use messaging::trace::current_or;
use runtime::{Shares, Shutdown};
use serde_json::{Map, Value};
use storage::{
    Accounts, Database, Setting, StorageError, Tx,
    outbox::{OutboxRow, Owned, outbox_insert},
};
use time::OffsetDateTime;

use crate::{
    SOURCE,
    arguments::invalid_field,
    call::{CallRequest, Effect, Origin, Record, ToolAnswer, ok_text},
    capability::{Capability, Presented},
    error::Error,
    metrics::Metrics,
    refusal::{Consequence, Refusal},
    store,
    tools::{Running, Tool, ToolError, Toolbox},
};

/// The dependencies of running a call.
#[derive(Clone)]
pub(crate) struct Executor {
    pub database: Database,
    pub root: Root,
    pub toolbox: Arc<Toolbox>,
    /// Timeout of each statement of a tool.
    pub statement_timeout_ms: u64,
    pub metrics: Arc<Metrics>,
    /// The accounts' limits of unread requests.
    pub shares: Shares,
    /// Triggers crash points.
    pub shutdown: Shutdown,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum Executed {
    Over {
        record: Record,
        /// The call had run before; this is the first result.
        is_replay: bool,
        /// Committed rows to publish.
        outbox: Vec<OutboxRow>,
    },
    /// Earlier calls of the same answer are not finished. Nothing was changed.
    OutOfTurn,
    /// The rows do not confirm the call. Nothing was changed or recorded.
    Unowned(Refusal),
}

/// The requested tool and arguments, as far as they could be parsed.
struct Requested<'t> {
    tool: Option<&'t Tool>,
    arguments: Result<Parsed, ToolAnswer>,
}

#[derive(Default)]
struct Parsed {
    arguments: Map<String, Value>,
    /// The task in the arguments.
    task: Option<TaskId>,
}

impl Requested<'_> {
    fn task(&self) -> Option<&TaskId> {
        self.arguments.as_ref().ok()?.task.as_ref()
    }
}

impl Executor {
    /// Runs the call, or returns its first result.
    pub(crate) async fn execute(&self, asked: &CallRequest) -> Result<Executed, Error> {
        let begun = Instant::now();
        let executed = self.execute_once(asked).await?;
        if let Executed::Over { record, is_replay, .. } = &executed {
            let tool = self.toolbox.find(&asked.name).map(|tool| tool.definition.name);
            self.metrics.call(tool, record, *is_replay, begun.elapsed());
            tracing::info!(
                account = %asked.account,
                session_id = %asked.session,
                tool_call_id = %asked.id,
                tool = tool.unwrap_or("unknown"),
                state = %record.state,
                late = record.late,
                is_replay,
                "tool call {}",
                record.state
            );
        }
        Ok(executed)
    }

    async fn execute_once(&self, asked: &CallRequest) -> Result<Executed, Error> {
        let tx = self.database.begin(&Accounts::one(&asked.account)).await?;
        if !store::call_insert(&tx, asked).await? {
            let record = store::call_find(&tx, asked).await?.ok_or(Error::UnknownSession)?;
            tx.rollback().await?;
            if !record.state.is_over() {
                return Err(Error::Unfinished);
            }
            return Ok(Executed::Over {
                record,
                is_replay: true,
                outbox: Vec::new(),
            });
        }
        let (record, messages) = match self.decide_and_run(&tx, asked).await? {
            Ok(ended) => ended,
            Err(undone) => {
                tx.rollback().await?;
                return Ok(undone);
            }
        };
        let outbox = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("tool_gateway.effect_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("tool_gateway.effect_committed").await;
        Ok(Executed::Over {
            record,
            is_replay: false,
            outbox,
        })
    }

    /// Takes the locks, checks the call, runs it and writes its result; or returns why there is no record.
    async fn decide_and_run(
        &self,
        tx: &Tx,
        asked: &CallRequest,
    ) -> Result<Result<(Record, Vec<Owned>), Executed>, Error> {
        let wanted = self.wanted(asked);
        // The rows that the checks read, until the commit.
        match wanted.task() {
            Some(task) if wanted.tool.is_some_and(|tool| tool.definition.moves_task) => {
                store::task_and_sessions_lock(tx, asked, task).await?;
            }
            Some(_) | None => store::session_lock(tx, asked).await?,
        }
        let claimed = match &asked.origin {
            Origin::Turn(claims) => Some((claims.turn, asked.ordinal)),
            Origin::Http => None,
        };
        let facts = store::facts(tx, &asked.account, asked.session, claimed)
            .await?
            .ok_or(Error::UnknownSession)?;
        let capability = Capability {
            session: asked.session,
            facts: &facts,
        };
        let presented = Presented {
            asked,
            tool: wanted.tool.map(|tool| &tool.definition),
            task: wanted.task(),
        };
        let admitted = capability.admit(&presented);
        if let Err(refusal) = &admitted
            && refusal.consequence() == Consequence::Buried
        {
            return Ok(Err(Executed::Unowned(refusal.clone())));
        }
        if capability.waits_for_earlier(&presented, &admitted) {
            return Ok(Err(Executed::OutOfTurn));
        }
        let turn = facts
            .turn
            .as_ref()
            .map(|turn| turn.id)
            .or(claimed.map(|(turn, _)| turn));
        let setting = Setting {
            root: &self.root,
            source: SOURCE,
            origin: Cause {
                // The turn, which leads to all other ids.
                cause: Some(turn.map_or(asked.id, TurnId::uuid).to_string()),
                hops: facts.hops(),
                trace: current_or(&asked.trace),
            },
            now: facts.now,
        };
        let may = admitted.map_err(|refusal| refusal.told());
        let outcome = match may.and(wanted.arguments) {
            Err(answer) => Err(answer),
            Ok(Parsed { arguments, task }) => {
                let running = Running {
                    tx,
                    call: asked.id,
                    account: &asked.account,
                    facts: &facts,
                    task: task.as_ref(),
                    setting: &setting,
                };
                let tool = wanted.tool.expect("an unknown tool is not admitted");
                self.run(tool, running, arguments).await?
            }
        };
        let (record, messages) = ended(asked, outcome, facts.now);
        store::call_finish(tx, asked, &record, turn).await?;
        Ok(Ok((record, messages)))
    }

    fn wanted(&self, asked: &CallRequest) -> Requested<'_> {
        let tool = self.toolbox.find(&asked.name);
        let arguments = tool.map_or_else(|| Ok(Parsed::default()), |tool| understood(tool, &asked.arguments));
        Requested { tool, arguments }
    }

    /// Runs the tool inside a savepoint, so that an error of the tool leaves only the record.
    async fn run(
        &self,
        tool: &Tool,
        running: Running<'_>,
        arguments: Map<String, Value>,
    ) -> Result<Result<Effect, ToolAnswer>, StorageError> {
        let (tx, account, call) = (running.tx, running.account, running.call);
        store::savepoint(tx, self.statement_timeout_ms).await?;
        let outcome = (tool.run)(running, arguments).await;
        let outcome = outcome.and_then(|effect| match self.shares.charge(&effect.messages) {
            Ok(()) => Ok(effect),
            Err(full) => Err(ToolError::ToolAnswer(ToolAnswer::failed(
                "too_much_unread",
                format!("Nobody can be asked at the moment: {full}."),
                "Nothing was changed. Try again later in this turn, or say in your reply whom you wanted to ask.",
            ))),
        });
        let answer = match outcome {
            Ok(effect) => return Ok(Ok(effect)),
            Err(ToolError::ToolAnswer(answer)) => answer,
            Err(ToolError::Storage(error)) if error.is_statement_timeout() => ToolAnswer::failed(
                "too_slow",
                format!("{} took too long and was stopped.", tool.definition.name),
                "Nothing was changed. Ask for less, or try again later in this turn.",
            ),
            // The connection, a deadlock, a lock: the whole call is redelivered.
            Err(ToolError::Storage(error)) if error.is_retryable() => return Err(error),
            Err(ToolError::Storage(error)) => {
                tracing::error!(
                    %account,
                    tool_call_id = %call,
                    tool = tool.definition.name,
                    error = &error as &dyn std::error::Error,
                    "tool failed"
                );
                ToolAnswer::failed(
                    "internal",
                    format!("{} failed for a reason that is not yours.", tool.definition.name),
                    "Nothing was changed. Go on without it and say so in your reply.",
                )
            }
        };
        store::savepoint_rollback(tx).await?;
        Ok(Err(answer))
    }
}

fn understood(tool: &Tool, text: &str) -> Result<Parsed, ToolAnswer> {
    let arguments = tool.schema.read(text, ARGUMENTS_BYTES_MAX)?;
    let named = tool.definition.task_argument();
    let named = named.and_then(|argument| Some((argument, arguments.get(argument)?.as_str()?)));
    let task =
        named.map(|(argument, text)| TaskId::parse(text).map_err(|error| invalid_field(argument, &error.to_string())));
    let task = task.transpose()?;
    Ok(Parsed { arguments, task })
}

fn ended(asked: &CallRequest, outcome: Result<Effect, ToolAnswer>, now: OffsetDateTime) -> (Record, Vec<Owned>) {
    let (state, late, result, messages) = match outcome {
        Ok(effect) => (ToolCallState::Finished, false, ok_text(effect.result), effect.messages),
        Err(answer) => (answer.state, answer.late, answer.text(), Vec::new()),
    };
    let record = Record {
        name: asked.name.clone(),
        arguments: asked.arguments.clone(),
        state,
        late,
        result,
        finished_at: now,
    };
    (record, messages)
}
