//! Runs each call once: its checks, its effect and its record with its result are one transaction (B4), shared with the
//! calls of other turns that came at the same time.
//!
//! ```text
//! locks ► facts ── recorded ────────────────────────────► the first result again, nothing else
//!           │ new
//!           ├► capability ► order ► arguments ► effect ► records ► outbox ► commit
//!           │      │           └── not yet: not recorded, and the call is redelivered
//!           │      └─────────── no: not recorded
//! ```
//! A call that a policy asks about is recorded without a result, with its question, and ends its transaction there ([`asking`]). An
//! external call is recorded as running, and its worker begins after the commit (`external`).
//!
//! A crash anywhere leaves nothing, and the calls are redelivered. An invalid call ends with a result for the agent. Two
//! deliveries of one call meet at its record's key: the second undoes its transaction and finds the record. A transaction
//! of many calls has little time; the call at fault is found by halves and left to run alone, in a savepoint, with all of
//! its time. So only a database failure ends with an error here.

mod asking;

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::{
    Root,
    tool::ARGUMENTS_BYTES_MAX,
    tools::{self, create_task, subagent_cancel, subagent_spawn},
};
use domain::{BranchId, Bytes, QuestionId, TaskId, ToolCallState, TurnId};
use futures::{FutureExt, future::BoxFuture};
use runtime::{Outbox, Shares, Shutdown, settings::Models};
use serde_json::{Map, Value};
use storage::{
    Accounts, Database, Parts, Setting, StorageError, Tx,
    outbox::{Owned, outbox_insert},
};
use uuid::Uuid;

use crate::{
    arguments::invalid_field,
    call::{CallFacts, CallRequest, Effect, Origin, Outside, Record, ToolAnswer, ok_text},
    capability::{Capability, Presented},
    external::{External, Place},
    metrics::Metrics,
    refusal::{Consequence, Refusal, rate_limited},
    settings::BranchLimits,
    store::{self, EndedCall},
    tools::{Questions, Running, Tool, ToolError, ToolOutcome, Toolbox},
};

/// The dependencies of running a call.
#[derive(Clone)]
pub(crate) struct Executor {
    pub database: Database,
    pub root: Root,
    pub outbox: Outbox,
    pub toolbox: Arc<Toolbox>,
    /// Timeout of each statement of a tool that runs alone.
    pub statement_timeout_ms: u64,
    pub branches: BranchLimits,
    pub artifact_account_bytes_max: Bytes,
    pub external: Arc<External>,
    pub metrics: Arc<Metrics>,
    /// The accounts' limits of unread requests.
    pub shares: Shares,
    /// Triggers crash points.
    pub shutdown: Shutdown,
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub(crate) enum Executed {
    Over {
        record: Record,
        /// The call had run before; this is the first result.
        is_replay: bool,
    },
    /// Somebody is asked about the call: it is on record, and runs when it is approved.
    Asked { question: QuestionId },
    /// It is an external call that runs: it is on record, and its end is told when it ends.
    Running,
    /// Earlier calls of the same answer are not finished. Nothing was changed.
    OutOfTurn,
    /// The rows do not confirm the call. Nothing was changed or recorded.
    Unowned(Refusal),
    /// Without a session the call cannot be recorded.
    UnknownSession,
    /// The call has to run alone, since others would wait for it. Nothing was changed.
    Left,
}

impl Executed {
    /// A call whose record has no result runs alone.
    fn unless_asked(self) -> Executed {
        match self {
            Executed::Over { record, .. } if !record.state.is_over() => Executed::Left,
            other => other,
        }
    }
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

    /// What a task is to wait for. None: that does not change.
    fn blockers(&self) -> Option<Vec<TaskId>> {
        let named = self.arguments.as_ref().ok()?.arguments.get("blocked_by")?.as_array()?;
        let named = named.iter().filter_map(Value::as_str);
        Some(named.filter_map(|text| TaskId::parse(text.trim()).ok()).collect())
    }

    /// The branch in the arguments.
    fn branch(&self) -> Option<BranchId> {
        let parsed = self.arguments.as_ref().ok()?;
        BranchId::parse(parsed.arguments.get("branch_id")?.as_str()?).ok()
    }

    /// The question in the arguments; none is the nil id, which no question has.
    fn question(&self) -> QuestionId {
        let text = self
            .arguments
            .as_ref()
            .ok()
            .and_then(|parsed| parsed.arguments.get("question_id")?.as_str());
        text.and_then(|text| QuestionId::parse(text).ok())
            .unwrap_or(QuestionId(Uuid::nil()))
    }
}

/// A call that is checked and not recorded.
struct Case<'c> {
    asked: &'c CallRequest,
    facts: CallFacts,
    /// The turn during which it runs.
    turn: Option<TurnId>,
    /// The tool and its arguments, or why it does not run.
    run: Result<(&'c Tool, Parsed), ToolAnswer>,
}

impl Case<'_> {
    /// The record of a call that has no result yet.
    fn requested(&self) -> Record {
        Record {
            name: self.asked.name.clone(),
            arguments: self.asked.arguments.clone(),
            state: ToolCallState::Requested,
            late: false,
            result: String::new(),
            finished_at: self.facts.now,
        }
    }
}

/// The rows that the checks of a call and its effect need, in the order in which every closer locks them.
async fn lock(tx: &Tx, asked: &CallRequest, wanted: &Requested<'_>) -> Result<(), StorageError> {
    match (wanted.tool.map(|tool| tool.definition), wanted.task()) {
        (Some(tool), Some(task)) if tool.moves_task => {
            store::task_and_sessions_lock(tx, asked, task, wanted.blockers().as_deref()).await
        }
        (Some(tool), _) if tool.name == create_task::NAME => {
            store::board_lock(tx, asked, &wanted.blockers().unwrap_or_default()).await
        }
        (Some(tool), _) if tool.name == subagent_spawn::NAME => store::spawn_lock(tx, asked).await,
        (Some(tool), _) if tool.name == subagent_cancel::NAME => store::branch_lock(tx, asked, wanted.branch()).await,
        (Some(tool), _) if tool.runs_alone => store::question_lock(tx, asked, wanted.question()).await,
        _ => store::session_lock(tx, asked).await,
    }
}

/// How often the end of an external call is looked for.
const AWAITED_LOOK: Duration = Duration::from_millis(200);
/// How long calls that share a transaction wait for a row.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(100);

impl Executor {
    /// Whether the call may share its transaction: its tool locks nothing but sessions, for itself alone.
    pub(crate) fn may_share(&self, name: &str) -> bool {
        self.toolbox.find(name).is_none_or(|tool| !tool.definition.runs_alone)
    }

    /// Runs a call, or returns its first result.
    pub(crate) async fn execute(&self, call: &CallRequest) -> Result<Executed, StorageError> {
        let begun = Instant::now();
        if tools::is_external(&call.name) && self.external.is_unregistered() {
            return Ok(Executed::Left);
        }
        let executed = self.transact(&self.database, std::slice::from_ref(call)).await?;
        let mut executed = match executed.and_then(|mut all| all.pop()) {
            Some(executed) => executed,
            None => self.first_result(call).await?,
        };
        if let Executed::Over { record, .. } = &executed
            && !record.state.is_over()
            && store::is_same_request(call, record)
        {
            executed = self.decided(&call.account, call.id, &call.trace).await?.1;
        }
        self.log(call, &executed, begun);
        Ok(executed)
    }

    async fn first_result(&self, call: &CallRequest) -> Result<Executed, StorageError> {
        let tx = self.database.begin(&Accounts::one(&call.account)).await?;
        let record = store::call_find(&tx, call).await?;
        tx.commit().await?;
        let record = record.ok_or_else(|| {
            let why = "another row has its key, and is not its record";
            StorageError::unreadable("record tool call", why)
        })?;
        Ok(Executed::Over {
            record,
            is_replay: true,
        })
    }

    /// The same for calls of different turns, in one transaction or few; in their order. None waits for long: a call that
    /// has to wait, that is too slow, or that remains of the halves, is [`Executed::Left`].
    pub(crate) async fn execute_together(&self, calls: &[CallRequest]) -> Vec<Result<Executed, Arc<StorageError>>> {
        let hurried = self.database.hurried().with_lock_timeout(LOCK_WAIT_MAX);
        let mut executed = Vec::with_capacity(calls.len());
        let mut parts = Parts::of(calls);
        while let Some(part) = parts.next() {
            if let [_] = part {
                executed.push(Ok(Executed::Left));
                continue;
            }
            let begun = Instant::now();
            match self.transact(&hurried, part).await {
                Ok(Some(ended)) => {
                    for (asked, one) in part.iter().zip(&ended) {
                        self.log(asked, one, begun);
                    }
                    executed.extend(ended.into_iter().map(|one| Ok(one.unless_asked())));
                }
                // Another delivery has recorded one of them.
                Ok(None) => drop(parts.halve(part)),
                Err(error) if error.blames_batch() || error.waits_for_lock() => drop(parts.halve(part)),
                Err(error) => {
                    let error = Arc::new(error);
                    executed.extend(part.iter().map(|_| Err(Arc::clone(&error))));
                }
            }
        }
        executed
    }

    pub(crate) fn log(&self, asked: &CallRequest, executed: &Executed, begun: Instant) {
        let Executed::Over { record, is_replay } = executed else {
            return;
        };
        if !record.state.is_over() {
            return;
        }
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

    /// Runs calls in one transaction. None: another delivery has recorded one of them meanwhile, and nothing is changed.
    async fn transact(
        &self,
        database: &Database,
        calls: &[CallRequest],
    ) -> Result<Option<Vec<Executed>>, StorageError> {
        let tx = database
            .begin(&Accounts::many(calls.iter().map(|call| &call.account)))
            .await?;
        let wanted: Vec<Requested<'_>> = calls.iter().map(|call| self.wanted(call)).collect();
        // The rows that the checks read, until the commit.
        let left = match (calls, &wanted[..]) {
            ([alone], [wanted]) => {
                lock(&tx, alone, wanted).await?;
                HashSet::new()
            }
            _ => store::sessions_lock_free(&tx, calls).await?,
        };
        let mut facts = store::facts(&tx, calls, self.branches.depth_max).await?;
        for (call, row) in calls.iter().zip(&mut facts) {
            if let Some(row) = row {
                row.facts.models = self.external.models.settings.kinds_of(&call.account);
            }
        }
        let mut cases = Vec::with_capacity(calls.len());
        // None: it is one of the cases.
        let mut executed: Vec<Option<Executed>> = Vec::with_capacity(calls.len());
        for ((asked, wanted), row) in calls.iter().zip(wanted).zip(facts) {
            executed.push(match row {
                _ if left.contains(&(asked.account.clone(), asked.session)) => Some(Executed::Left),
                None => Some(Executed::UnknownSession),
                Some(row) => match row.record {
                    Some(record) => Some(Executed::Over {
                        record,
                        is_replay: true,
                    }),
                    None => match decide(asked, wanted, row.facts) {
                        Ok(case) if calls.len() > 1 && case.asks().is_some() => Some(Executed::Left),
                        Ok(case) => {
                            cases.push(case);
                            None
                        }
                        Err(executed) => Some(executed),
                    },
                },
            });
        }
        if let [case] = &mut cases[..]
            && let Some(audience) = case.asks()
        {
            match self.asks_too_much(&tx, case).await? {
                None => return self.asked(tx, case, audience).await,
                Some(answer) => case.run = Err(answer),
            }
        }
        let mut outcomes = match calls {
            [_] => self.run_alone(&tx, &cases).await?,
            _ => self.run_all(&tx, &cases).await?,
        };
        if let ([case], [Ok(effect)]) = (&cases[..], &mut outcomes[..])
            && let Some(outside) = effect.outside.take()
        {
            match self.place(case) {
                Ok(place) => return self.start(tx, case, &outside, place).await,
                Err(answer) => outcomes = vec![Err(answer)],
            }
        }
        let mut messages = Vec::new();
        let records: Vec<Record> = cases
            .iter()
            .zip(outcomes)
            .map(|(case, outcome)| {
                let (record, told) = ended(case, outcome);
                messages.extend(told);
                record
            })
            .collect();
        let new: Vec<EndedCall<'_>> = cases
            .iter()
            .zip(&records)
            .map(|(case, record)| EndedCall {
                asked: case.asked,
                facts: &case.facts,
                turn: case.turn,
                record,
            })
            .collect();
        if new.is_empty() {
            tx.rollback().await?;
            return Ok(executed.into_iter().collect());
        }
        let Some(at) = store::calls_insert(&tx, &new).await? else {
            tx.rollback().await?;
            return Ok(None);
        };
        let outbox = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("tool_gateway.effect_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("tool_gateway.effect_committed").await;
        self.outbox.publish_soon(outbox);
        let mut over = records.into_iter().zip(at).map(|(record, finished_at)| Executed::Over {
            record: Record { finished_at, ..record },
            is_replay: false,
        });
        Ok(executed.into_iter().map(|one| one.or_else(|| over.next())).collect())
    }

    /// A place for an external call, if its account may have another one.
    fn place(&self, case: &Case<'_>) -> Result<Place, ToolAnswer> {
        let place = self.external.place(&case.asked.account, case.asked.id);
        place.ok_or_else(|| rate_limited("The account has as many calls of models in progress as it may"))
    }

    /// Records an external call as running; its worker begins. None: another delivery has recorded it.
    async fn start(
        &self,
        tx: Tx,
        case: &Case<'_>,
        outside: &Outside,
        place: Place,
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
        let (account, id) = (&case.asked.account, case.asked.id);
        store::call_start(&tx, account, id, place.runner, outside).await?;
        self.shutdown.crash_point("tool_gateway.effect_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("tool_gateway.effect_committed").await;
        self.external.run(account.clone(), id, place, &case.asked.trace);
        Ok(Some(vec![Executed::Running]))
    }

    /// The record of a call, once it has ended; none: not within this time.
    pub(crate) async fn awaited(&self, call: &CallRequest, limit: Duration) -> Result<Option<Record>, StorageError> {
        let until = Instant::now() + limit;
        loop {
            let Executed::Over { record, .. } = self.first_result(call).await? else {
                return Ok(None);
            };
            if record.state.is_over() {
                return Ok(Some(record));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            tokio::time::sleep(AWAITED_LOOK).await;
        }
    }

    fn wanted(&self, asked: &CallRequest) -> Requested<'_> {
        let tool = self.toolbox.find(&asked.name);
        let arguments = tool.map_or_else(|| Ok(Parsed::default()), |tool| understood(tool, &asked.arguments));
        Requested { tool, arguments }
    }

    /// Runs the tools of several calls. After an error of a statement, nothing of the transaction counts.
    async fn run_all(&self, tx: &Tx, cases: &[Case<'_>]) -> Result<Vec<Result<Effect, ToolAnswer>>, StorageError> {
        let settings: Vec<Setting<'_>> = cases.iter().map(|case| self.setting(case)).collect();
        let questions = Questions::new(tx);
        let running = cases.iter().zip(&settings).map(|(case, setting)| {
            run(
                &questions,
                (&self.branches, &self.external.models.settings),
                case,
                setting,
            )
        });
        let outcomes = questions.run_all(running.collect()).await?;
        outcomes
            .into_iter()
            .map(|outcome| match outcome.and_then(|effect| self.charged(effect)) {
                Ok(effect) => Ok(Ok(effect)),
                Err(ToolError::ToolAnswer(answer)) => Ok(Err(answer)),
                Err(ToolError::Storage(error)) => Err(error),
            })
            .collect()
    }

    /// Runs the tool of a call inside a savepoint, so that an error of the tool leaves only the record.
    async fn run_alone(&self, tx: &Tx, cases: &[Case<'_>]) -> Result<Vec<Result<Effect, ToolAnswer>>, StorageError> {
        let [case] = cases else { return Ok(Vec::new()) };
        let Ok((tool, _)) = &case.run else {
            return self.run_all(tx, cases).await;
        };
        store::savepoint(tx, self.statement_timeout_ms).await?;
        let answer = match self.run_all(tx, cases).await {
            Ok(outcomes) if outcomes.iter().all(Result::is_ok) => return Ok(outcomes),
            Ok(outcomes) => outcomes,
            Err(error) => vec![Err(failed(error, tool, case.asked)?)],
        };
        store::savepoint_rollback(tx).await?;
        Ok(answer)
    }

    /// The effect, if the account may have so many unread requests.
    fn charged(&self, effect: Effect) -> Result<Effect, ToolError> {
        let Err(full) = self.shares.charge(&effect.messages) else {
            return Ok(effect);
        };
        let answer = ToolAnswer::failed(
            "too_much_unread",
            format!("Nobody can be asked at the moment: {full}."),
            "Nothing was changed. Try again later in this turn, or say in your reply whom you wanted to ask.",
        );
        Err(answer.into())
    }

    fn setting(&self, case: &Case<'_>) -> Setting<'_> {
        let request = (case.turn, case.asked.id);
        case.facts.setting(&self.root, request, case.asked.trace.clone())
    }
}

/// Checks a call against the locked rows; or returns why it is not recorded.
fn decide<'c>(asked: &'c CallRequest, wanted: Requested<'c>, facts: CallFacts) -> Result<Case<'c>, Executed> {
    let capability = Capability {
        session: asked.session,
        facts: &facts,
    };
    let presented = Presented {
        asked,
        tool: wanted.tool.map(|tool| tool.definition),
        task: wanted.task(),
    };
    let admitted = capability.admit(&presented);
    if let Err(refusal) = &admitted
        && refusal.consequence() == Consequence::Buried
    {
        return Err(Executed::Unowned(refusal.clone()));
    }
    if capability.waits_for_earlier(&presented, &admitted) {
        return Err(Executed::OutOfTurn);
    }
    let claimed = match &asked.origin {
        Origin::Turn(claims) => Some(claims.turn),
        Origin::Http => None,
    };
    let turn = facts.turn.as_ref().map(|turn| turn.id).or(claimed);
    let run = admitted
        .map_err(|refusal| refusal.told())
        .and(wanted.arguments)
        .map(|parsed| (wanted.tool.expect("an unknown tool is not admitted"), parsed));
    Ok(Case {
        asked,
        facts,
        turn,
        run,
    })
}

fn run<'a>(
    questions: &'a Questions<'a>,
    (branches, models): (&'a BranchLimits, &'a Models),
    case: &'a Case<'_>,
    setting: &'a Setting<'a>,
) -> BoxFuture<'a, ToolOutcome> {
    match &case.run {
        Err(answer) => std::future::ready(Err(answer.clone().into())).boxed(),
        Ok((tool, parsed)) => {
            let running = Running {
                questions,
                call: case.asked.id,
                account: &case.asked.account,
                session: case.asked.session,
                facts: &case.facts,
                task: parsed.task.as_ref(),
                setting,
                branches,
                models,
            };
            (tool.run)(running, parsed.arguments.clone())
        }
    }
}

/// The answer to a tool whose statement failed; an error: the whole call is redelivered.
fn failed(error: StorageError, tool: &Tool, asked: &CallRequest) -> Result<ToolAnswer, StorageError> {
    let name = tool.definition.name;
    if error.is_statement_timeout() {
        return Ok(ToolAnswer::failed(
            "too_slow",
            format!("{name} took too long and was stopped."),
            "Nothing was changed. Ask for less, or try again later in this turn.",
        ));
    }
    // The connection, a deadlock, a lock.
    if error.is_retryable() {
        return Err(error);
    }
    tracing::error!(
        account = %asked.account,
        tool_call_id = %asked.id,
        tool = name,
        error = &error as &dyn std::error::Error,
        "tool failed"
    );
    Ok(ToolAnswer::failed(
        "internal",
        format!("{name} failed for a reason that is not yours."),
        "Nothing was changed. Go on without it and say so in your reply.",
    ))
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

fn ended(case: &Case<'_>, outcome: Result<Effect, ToolAnswer>) -> (Record, Vec<Owned>) {
    let (state, late, result, messages) = match outcome {
        Ok(effect) => (ToolCallState::Finished, false, ok_text(effect.result), effect.messages),
        Err(answer) => (answer.state, answer.late, answer.text(), Vec::new()),
    };
    let record = Record {
        name: case.asked.name.clone(),
        arguments: case.asked.arguments.clone(),
        state,
        late,
        result,
        finished_at: case.facts.now,
    };
    (record, messages)
}
