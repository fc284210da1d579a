//! The worker of an external call: reads what it is to send from the record, asks, and records the answer. No transaction is open
//! while it asks. When the process stops, a call that may be asked again is left to another runner; one that may not is waited for.

use std::{sync::Arc, time::Duration};

use contracts::TraceContext;
use domain::{AccountId, ArtifactId, ArtifactSource, FileName, ToolCallState, TurnId};
use messaging::trace::child_of;
use serde_json::{Map, Value, json};
use storage::{
    Accounts, StorageError, Tx,
    lifecycle::{
        TaskContext,
        artifact_store::{File, NewArtifact, NotStored, artifact_content, artifact_store},
        task_context_version,
    },
    outbox::{Owned, outbox_insert},
};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::Instrument;
use uuid::Uuid;

use super::{
    Answered, External, Place,
    outcome::{Kind, again},
};
use crate::{
    call::{CallRequest, ModelRequest, Record, ToolAnswer, ok_text},
    models::{
        Answer, Brought, COPIES, Model, Room, Shown,
        exchange::{Failure, model_failed, model_timeout},
        form, images, input_of, openresponses,
    },
    refusal::takes_no,
    store,
};

/// How long a step in the database is tried again while it is away.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause before the outcome of a call is recorded again.
const FINISH_PAUSE_MAX: Duration = Duration::from_secs(30);

/// A started call, with all that it sends.
struct Job {
    account: AccountId,
    call: Uuid,
    tool: String,
    arguments: Map<String, Value>,
    model: Arc<Model>,
    request: ModelRequest,
    text: String,
    /// What the user of this version of the context is told.
    warning: Option<String>,
    files: Vec<Shown>,
    room: Room,
    deadline: Instant,
}

impl External {
    /// Runs a started call in a worker of its own, to its end.
    pub(crate) fn run(self: &Arc<Self>, account: AccountId, call: Uuid, place: Place, trace: &TraceContext) {
        let external = Arc::clone(self);
        let span = tracing::info_span!("external_call", otel.kind = "client", %account, tool_call_id = %call);
        child_of(&span, trace);
        let trace = trace.clone();
        let running = async move {
            let _held_to_its_end = place;
            external.outside(&account, call, &trace).await;
        };
        // Boxed: a call is held for minutes.
        self.context
            .shutdown
            .spawn_once("external call", Box::pin(running.instrument(span)));
    }

    async fn outside(&self, account: &AccountId, call: Uuid, trace: &TraceContext) {
        let begun = Instant::now();
        let loaded = self.load(account, call).await;
        let (model, answered) = match loaded {
            Ok(None) => return,
            Ok(Some(mut job)) => {
                let Some(answered) = self.ask(&mut job).await else {
                    return;
                };
                (job.model.name.clone(), answered)
            }
            Err(answer) => ("unknown".to_owned(), Err(answer)),
        };
        self.metrics.model_call(
            &model,
            answered.as_ref().map_or_else(|answer| answer.code, |_| "answered"),
            begun.elapsed(),
        );
        self.context.shutdown.crash_point("tool_gateway.call_answered").await;
        self.finish_patiently(account, call, answered, trace).await;
    }

    /// What the call sends; none: it is another runner's by now. An error is its outcome.
    async fn load(&self, account: &AccountId, call: Uuid) -> Result<Option<Job>, ToolAnswer> {
        let read = self.patiently("start", || self.read_job(account, call)).await?;
        let Some((row, context)) = read else { return Ok(None) };
        let deadline = Instant::now() + Duration::from_millis(row.left_ms.max(0).unsigned_abs());
        let request: ModelRequest = serde_json::from_value(row.request).map_err(|_| gone("what it was to send"))?;
        let model = self.models.started(account, &row.model);
        let model = model.ok_or_else(|| gone("the model"))?;
        let tool = self
            .toolbox
            .find(&row.call.record.name)
            .ok_or_else(|| gone("the tool"))?;
        let arguments = tool.schema.read(&row.call.record.arguments, usize::MAX)?;
        let context = match request.context_version {
            Some(_) => Some(context.ok_or_else(|| gone("the version of the task context"))?),
            None => None,
        };
        let body = context.as_ref().map(|context| context.body.as_str());
        let text = form(body, arguments["request"].as_str().unwrap_or_default());
        let mut room = self.models.room(account);
        let files = self.files(account, &request, &mut room).await?;
        Ok(Some(Job {
            account: account.clone(),
            call,
            tool: tool.definition.name.to_owned(),
            arguments,
            model,
            request,
            text,
            warning: context.and_then(|context| context.size.warning()),
            files,
            room,
            deadline,
        }))
    }

    async fn read_job(
        &self,
        account: &AccountId,
        call: Uuid,
    ) -> Result<Option<(store::RunningRow, Option<TaskContext>)>, StorageError> {
        let tx = self.context.database.begin(&Accounts::one(account)).await?;
        let read = async {
            let Some(row) = self.lock(&tx, account, call).await? else {
                return Ok(None);
            };
            let request: Option<ModelRequest> = serde_json::from_value(row.request.clone()).ok();
            let named = request.and_then(|request| Some((request.task, request.context_version?)));
            let context = match named {
                Some((task, version)) => task_context_version(&tx, account, &task, version).await?,
                None => None,
            };
            Ok(Some((row, context)))
        };
        let read = read.await;
        tx.commit_or_rollback(read).await
    }

    /// Locks a call that this process runs; none: it has ended, or another runner has it.
    async fn lock(&self, tx: &Tx, account: &AccountId, call: Uuid) -> Result<Option<store::RunningRow>, StorageError> {
        let row = store::call_running(tx, account, call).await?;
        // Under the lock: the sweep may just have given the call another name of this process.
        Ok(row.filter(|row| self.is_own(row.runner)))
    }

    /// The artifacts that are shown, in their order.
    async fn files(
        &self,
        account: &AccountId,
        request: &ModelRequest,
        room: &mut Room,
    ) -> Result<Vec<Shown>, ToolAnswer> {
        if request.artifacts.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self
            .patiently("find artifacts", || self.artifacts(account, request))
            .await?;
        if rows.len() < request.artifacts.len() {
            return Err(gone("an artifact"));
        }
        let bytes: usize = rows
            .iter()
            .map(|row| usize::try_from(row.bytes).unwrap_or_default())
            .sum();
        room.reserve(COPIES * bytes).await?;
        let mut files = Vec::with_capacity(rows.len());
        for row in rows {
            let content = self
                .patiently("read artifact", || self.content(account, row.id))
                .await?;
            files.push(Shown {
                name: row.name,
                media_type: row.media_type,
                content: content.ok_or_else(|| gone("an artifact"))?,
            });
        }
        Ok(files)
    }

    async fn artifacts(
        &self,
        account: &AccountId,
        request: &ModelRequest,
    ) -> Result<Vec<store::ArtifactRow>, StorageError> {
        let tx = self.context.database.begin(&Accounts::one(account)).await?;
        let rows = store::artifacts_find(&tx, account, &request.task, &request.artifacts).await;
        tx.commit_or_rollback(rows).await
    }

    async fn content(&self, account: &AccountId, id: ArtifactId) -> Result<Option<Vec<u8>>, StorageError> {
        let tx = self.context.database.begin(&Accounts::one(account)).await?;
        let content = artifact_content(&tx, account, id).await;
        tx.commit_or_rollback(content).await
    }

    /// Asks until there is an outcome; none: the process stops, and another runner asks.
    async fn ask(&self, job: &mut Job) -> Option<Answered> {
        let kind = Kind::of(&job.tool);
        let asking = async {
            let _place = match job.model.place(&job.account).await {
                Ok(place) => place,
                Err(answer) => return Err(answer),
            };
            self.ask_again(job, kind).await
        };
        match kind {
            Kind::Read => tokio::select! {
                // Dropped, it leaves a request that changes nothing and a record that the sweep of another finds.
                answered = asking => Some(answered),
                () = self.context.shutdown.cancelled() => None,
            },
            Kind::Once => Some(asking.await),
        }
    }

    async fn ask_again(&self, job: &mut Job, kind: Kind) -> Answered {
        let (deadline, timeout) = (job.deadline, job.model.settings.timeout);
        let mut fetched = Vec::new();
        let mut tries = job.request.tries;
        loop {
            let asked = timeout_at(deadline, self.ask_once(job, &mut fetched)).await;
            let failure = match asked {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => failure,
                Err(_) => return Err(model_timeout(&job.model.name, timeout)),
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = failure.lost.and_then(|lost| again(kind, lost, tries, left));
            let Some(wait) = wait else { return Err(failure.answer) };
            tries += 1;
            sleep(wait).await;
        }
    }

    /// `fetched`: files at addresses, which are read once.
    async fn ask_once(&self, job: &mut Job, fetched: &mut Vec<Brought>) -> Result<Answer, Failure> {
        let id = job.call.to_string();
        let mut answer = if job.tool == "generate_media" {
            self.paint(job, &id).await?
        } else {
            if let Some(url) = job.arguments.get("url").and_then(Value::as_str)
                && fetched.is_empty()
            {
                let (name, file) = self.models.fetcher.fetch(url, &mut job.room).await?;
                job.files.push(Shown {
                    name: name.clone(),
                    media_type: file.media_type,
                    content: file.content().to_vec(),
                });
                fetched.push(Brought {
                    name,
                    file,
                    source: ArtifactSource::Fetch,
                    source_ref: Some(url.to_owned()),
                });
                takes(&job.model, &job.files)?;
            }
            let body = openresponses::body(&job.model.settings.model, &job.text, &job.files);
            job.model.ask(body, &id, &mut job.room).await?
        };
        answer.files.append(fetched);
        if let Some(warning) = &job.warning {
            let also = answer.result.get("warning").and_then(Value::as_str);
            let all = also.map_or_else(|| warning.clone(), |also| format!("{warning} {also}"));
            answer.result.insert("warning".to_owned(), all.into());
        }
        Ok(answer)
    }

    async fn paint(&self, job: &mut Job, id: &str) -> Result<Answer, Failure> {
        let text = |name: &str| job.arguments.get(name).and_then(Value::as_str).map(str::to_owned);
        let (name, size) = (text("name"), text("size"));
        let name = name.as_deref().map_or("image", without_ending);
        let count = job.arguments.get("count").and_then(Value::as_u64).unwrap_or(1);
        let count = usize::try_from(count).unwrap_or(1);
        let body = images::body(&job.model, &job.text, count, size.as_deref());
        let limits = (count, self.models.artifact_bytes_max);
        let made = job.model.paint(body, id, limits, &mut job.room).await?;
        let mut files = Vec::with_capacity(made.images.len());
        let many = made.images.len() > 1;
        for (place, image) in (1..).zip(made.images) {
            let file = match image {
                images::Image::Content(content) => File::of(content).await,
                images::Image::At(url) => {
                    let (fetcher, model) = (&self.models.fetcher, &job.model.name);
                    Some(fetcher.fetch_made(model, &url, &mut job.room).await?)
                }
            };
            let file = file.filter(|file| file.media_type.is_image());
            let file = file.ok_or_else(|| job.model.failed("malformed", "what it made is no image"))?;
            let ending = file.media_type.as_str().rsplit('/').next().unwrap_or_default();
            let number = if many { format!("-{place}") } else { String::new() };
            files.push(Brought {
                name: format!("{name}{number}.{ending}"),
                file,
                source: ArtifactSource::Model,
                source_ref: Some(job.call.to_string()),
            });
        }
        Ok(Answer {
            result: Map::from_iter([("model".to_owned(), job.model.name.as_str().into())]),
            usage: made.usage,
            files,
        })
    }

    /// Records the outcome, however long the database refuses it. A process that has lost its registration goes on: its outcome counts
    /// unless another runner has taken the call.
    async fn finish_patiently(&self, account: &AccountId, call: Uuid, answered: Answered, trace: &TraceContext) {
        let mut answered = answered;
        let mut pause = PATIENCE_PAUSE;
        loop {
            let error = match self.finish(account, call, &answered, trace).await {
                Ok(Ok(())) => return,
                Ok(Err(answer)) => {
                    answered = Err(answer);
                    continue;
                }
                Err(error) => error,
            };
            let is_retryable = error.is_retryable();
            tracing::warn!(
                %account,
                tool_call_id = %call,
                error = &error as &dyn std::error::Error,
                is_retryable,
                "could not record the end of an external call"
            );
            if !is_retryable {
                answered = Err(internal());
            }
            if self.runner().is_none() {
                // Others may take the call soon: the outcome is offered often.
                pause = PATIENCE_PAUSE;
            }
            sleep(pause).await;
            pause = FINISH_PAUSE_MAX.min(2 * pause);
        }
    }

    /// Records the outcome of a call, where it is still this process's. The inner error: it is the outcome instead.
    async fn finish(
        &self,
        account: &AccountId,
        call: Uuid,
        answered: &Answered,
        trace: &TraceContext,
    ) -> Result<Result<(), ToolAnswer>, StorageError> {
        let tx = self.context.database.begin(&Accounts::one(account)).await?;
        let Some(row) = self.lock(&tx, account, call).await? else {
            tx.rollback().await?;
            tracing::warn!(%account, tool_call_id = %call, "an external call ended after another runner had taken it");
            return Ok(Ok(()));
        };
        let state = match answered {
            Ok(_) => ToolCallState::Finished,
            Err(answer) => answer.state,
        };
        self.end_outside(tx, account, call, row.call, (state, answered), trace)
            .await
    }

    /// Records the end of a locked call: its files, its result, and the message of it.
    pub(super) async fn end_outside(
        &self,
        tx: Tx,
        account: &AccountId,
        call: Uuid,
        row: store::CallRow,
        (state, answered): (ToolCallState, &Answered),
        trace: &TraceContext,
    ) -> Result<Result<(), ToolAnswer>, StorageError> {
        let mut asked = row.asked(account, call, trace);
        let found = store::facts(&tx, std::slice::from_ref(&asked), self.branch_depth_max)
            .await?
            .pop()
            .flatten();
        let Some(facts) = found.map(|found| found.facts) else {
            tx.rollback().await?;
            return Ok(Ok(()));
        };
        asked.claim(&facts);
        let setting = facts.setting(self.context.root(), (row.turn_id, call), trace.clone());
        let mut messages: Vec<Owned> = Vec::new();
        let (result, usage) = match answered {
            Ok(answer) => {
                let mut artifacts = Vec::new();
                for (place, brought) in answer.files.iter().enumerate() {
                    let Some(task) = facts.task() else { break };
                    let id = ArtifactId(Uuid::new_v5(&call, format!("artifact {place}").as_bytes()));
                    let name = FileName::try_from(brought.name.clone());
                    let name = name.as_deref().unwrap_or("file");
                    let new = NewArtifact {
                        account,
                        task,
                        id,
                        name,
                        file: &brought.file,
                        source: brought.source,
                        source_ref: brought.source_ref.as_deref(),
                        by: &facts.actor(),
                    };
                    match artifact_store(&tx, &new, self.artifact_account_bytes_max, &setting).await? {
                        Ok(stored) => messages.extend(stored.event),
                        Err(why) => {
                            tx.rollback().await?;
                            return Ok(Err(not_stored(&why)));
                        }
                    }
                    let (media_type, bytes) = (brought.file.media_type, brought.file.bytes());
                    artifacts.push(json!({"id": id, "name": name, "media_type": media_type, "bytes": bytes}));
                }
                let mut result = answer.result.clone();
                if !artifacts.is_empty() {
                    result.insert("artifacts".to_owned(), artifacts.into());
                }
                (ok_text(Value::Object(result)), answer.usage.clone())
            }
            Err(answer) => (answer.text(), None),
        };
        // The session is locked last: what is stored takes its time, and no claim waits for a file.
        store::session_lock(&tx, &asked).await?;
        let late = self.is_late(&tx, &asked, row.turn_id).await?;
        let record = Record {
            name: row.record.name,
            arguments: row.record.arguments,
            state,
            late,
            result,
            finished_at: facts.now,
        };
        let finished_at = store::call_finish(&tx, account, call, &record, usage).await?;
        let record = Record { finished_at, ..record };
        messages.extend(
            asked
                .finished(&record)
                .map(|finished| setting.message(&finished.message_id(), &finished)),
        );
        let outbox = outbox_insert(&tx, messages).await?;
        self.context.shutdown.crash_point("tool_gateway.effect_written").await;
        tx.commit().await?;
        self.context.shutdown.crash_point("tool_gateway.effect_committed").await;
        self.context.outbox.publish_soon(outbox);
        tracing::info!(
            %account,
            session_id = %asked.session,
            tool_call_id = %call,
            tool = asked.name,
            state = %record.state,
            late,
            "external call {}",
            record.state
        );
        Ok(Ok(()))
    }

    /// Whether the session or the turn of a call is over, read under the session's lock.
    async fn is_late(&self, tx: &Tx, asked: &CallRequest, turn: Option<TurnId>) -> Result<bool, StorageError> {
        let now = store::facts(tx, std::slice::from_ref(asked), self.branch_depth_max)
            .await?
            .pop()
            .flatten();
        let Some(facts) = now.map(|found| found.facts) else {
            return Ok(true);
        };
        let has_turn = facts
            .turn
            .as_ref()
            .is_some_and(|found| Some(found.id) == turn && !found.state.is_over());
        Ok(facts.is_closed || turn.is_some() && !has_turn)
    }

    /// Runs a step in the database until it works, for a while. An error that stays is the call's outcome.
    async fn patiently<T, F: Future<Output = Result<T, StorageError>>>(
        &self,
        what: &'static str,
        step: impl Fn() -> F,
    ) -> Result<T, ToolAnswer> {
        let until = Instant::now() + PATIENCE;
        loop {
            match step().await {
                Ok(done) => return Ok(done),
                Err(error)
                    if error.is_retryable() && Instant::now() < until && !self.context.shutdown.is_stopping() =>
                {
                    sleep(PATIENCE_PAUSE).await;
                }
                Err(error) => {
                    tracing::error!(what, error = &error as &dyn std::error::Error, "external call failed");
                    return Err(internal());
                }
            }
        }
    }
}

/// Whether the model takes the files.
pub(crate) fn takes(model: &Model, files: &[Shown]) -> Result<(), ToolAnswer> {
    let refused = files
        .iter()
        .find(|file| !model.settings.accepts.contains(&input_of(file.media_type)));
    refused.map_or(Ok(()), |file| Err(takes_no(&model.name, file.media_type)))
}

/// The name of an image, to which the ending of what was made is added.
fn without_ending(name: &str) -> &str {
    let is_image = |ending: &str| ["png", "jpg", "jpeg", "gif", "webp"].contains(&ending.to_lowercase().as_str());
    match name.rsplit_once('.') {
        Some((name, ending)) if !name.is_empty() && is_image(ending) => name,
        _ => name,
    }
}

/// The record names what is not there any more: settings have changed, or an artifact was removed.
fn gone(what: &str) -> ToolAnswer {
    model_failed("of this call", "gone", &format!("{what} is not there any more"))
}

fn internal() -> ToolAnswer {
    ToolAnswer::failed(
        "internal",
        "The call failed for a reason that is not yours.",
        "Nothing was kept. Go on without it and say so in your reply.",
    )
}

fn not_stored(why: &NotStored) -> ToolAnswer {
    match why {
        NotStored::Quota { bytes, bytes_max } => ToolAnswer::failed(
            "artifact_quota",
            format!("The account's artifacts would have {bytes} bytes, of {bytes_max} that they may."),
            "Nothing was kept. Say in your reply that artifacts which are no longer needed have to be removed.",
        ),
        NotStored::TaskNotThere | NotStored::Another => internal(),
    }
}
