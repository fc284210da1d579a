//! Runs one case: sends its requests to the driver, receives the service's calls and answers them, and fails at the first step that
//! does not come true. Two rules hold in every case, whatever its steps: a session has one call in progress, and an
//! outcome never changes.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    case::{self, Action, Case, Common, Expect, Step, author_of},
    driver::Driver,
    model::{Call, Model, closed_within},
    protocol::{self, Answer, EditOp, Mode, Op, Outcome, QueueState, Request, Stopping, Verb},
};

/// Interval of asking the driver again.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How late the end of a connection may be seen after the next call.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// How long a call may take to come after the last step.
const LAST_LOOK: Duration = Duration::from_millis(50);
/// An item's mark stands behind so much text that a service which quotes the beginning of an earlier item does not quote its mark.
const FILLER: &str = "This sentence only makes the text long. ";
const FILLER_REPEATS: usize = 10;
/// The beginning of marks and of ids of tool calls, behind the case's prefix.
const MARK: &str = "mark-";
const TOOL_CALL: &str = "call-";

/// Why a case did not pass.
pub struct Failure {
    pub error: anyhow::Error,
    /// The driver cannot be used any more.
    pub is_final: bool,
}

pub async fn case_run(
    case: &Case,
    prefix: &str,
    wait: Duration,
    driver: &mut Driver,
    model: &mut Model,
) -> Result<(), Failure> {
    let mut run = Run {
        prefix,
        wait,
        driver,
        model,
        sessions: BTreeMap::new(),
        versions: HashMap::new(),
        kept: HashMap::new(),
        outcomes: Vec::new(),
        asked: 0,
        is_lost: false,
    };
    let result = run.steps(case).await;
    run.release();
    let is_final = run.is_lost;
    result.map_err(|error| Failure { error, is_final })
}

struct Run<'a> {
    /// Of all ids of this case: unique for the service.
    prefix: &'a str,
    /// How long to wait for a step to come true.
    wait: Duration,
    driver: &'a mut Driver,
    model: &'a mut Model,
    sessions: BTreeMap<String, Session>,
    /// Of items that were replaced: the number of the present text.
    versions: HashMap<String, u32>,
    kept: HashMap<String, QueueState>,
    /// Outcomes that were seen, by session and item.
    outcomes: Vec<(String, String, Outcome)>,
    /// Tool calls so far.
    asked: u32,
    is_lost: bool,
}

#[derive(Default)]
struct Session {
    /// The call that the steps talk about.
    current: Option<Call>,
    /// Calls that no step has expected yet, with their items.
    pending: VecDeque<(Call, Vec<String>)>,
}

impl Run<'_> {
    async fn steps(&mut self, case: &Case) -> anyhow::Result<()> {
        self.steps_in(&case.steps).await?;
        self.receive_until(Instant::now() + LAST_LOOK).await?;
        self.nothing_pending()?;
        for (session, item, seen) in std::mem::take(&mut self.outcomes) {
            let now = self.outcome(&session, &item).await?;
            let (from, to) = (seen.state, now.state);
            ensure!(now == seen, "the outcome of {item} changed from {from} to {to}");
        }
        Ok(())
    }

    async fn steps_in(&mut self, steps: &[Step]) -> anyhow::Result<()> {
        for (n, step) in (1..).zip(steps) {
            // Boxed: a step may have steps of its own.
            let done = Box::pin(self.step(step)).await;
            done.with_context(|| format!("step {n} ({})", step.text))?;
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> anyhow::Result<()> {
        let (name, by) = (step.common.session.as_str(), step.common.by.as_str());
        if !self.sessions.contains_key(name) {
            let (task, agent) = (self.prefix.to_owned(), name.to_owned());
            let created = self.ask_ok::<Value>(name, by, Verb::Session { task, agent }).await;
            created.context("could not create a session")?;
            self.sessions.insert(name.to_owned(), Session::default());
        }
        let verb = match &step.action {
            Action::Send(new) => self.new_item(&new.send, &new.mode, new.r#type.clone()),
            Action::Edit(edit) => self.edit(step, edit).await?,
            Action::Order(order) => {
                let queue = self.queue_seen(&step.common).await?;
                let items = order.order.iter().map(|item| self.id(item)).collect();
                Verb::Order {
                    items,
                    revision: queue.revision,
                }
            }
            Action::Stop(stop) => Verb::Stop {
                then: stop.stop,
                turn: self.turn(&step.common)?,
            },
            Action::Hold(hold) => Verb::Hold { running: hold.hold },
            Action::Resume(resume) => Verb::Resume { gate: resume.resume },
            Action::Crash(crash) => {
                let path = self.current(name).map(|call| call.path.clone()).unwrap_or_default();
                Verb::Crash {
                    what: crash.crash,
                    path,
                }
            }
            Action::Fill(fill) => return self.fill(name, by, &fill.fill).await,
            Action::Queue(queue) => return self.queue_becomes(name, queue).await,
            Action::Outcome(expected) => {
                let Outcome { state, reason } = self.outcome_await(name, &expected.outcome).await?;
                let fits = state == expected.is && expected.reason.as_ref().is_none_or(|part| reason.contains(part));
                ensure!(fits, "it is {state}: {reason}");
                return Ok(());
            }
            Action::Call(call) => return self.call(name, &call.call).await,
            Action::Reply(reply) => return self.current(name)?.reply(&reply.reply),
            Action::Tool(_) => {
                let tool = self.driver.hello.tool.clone().context("the driver names no tool")?;
                self.asked += 1;
                // Says which session it is of, for a call that brings only its result.
                let id = format!("{}{}-{name}", self.id(TOOL_CALL), self.asked);
                return self.current(name)?.ask(&id, &tool);
            }
            Action::Fail(fail) => return self.current(name)?.fail(fail.fail),
            Action::Hang(_) => return self.current(name)?.hang(),
            Action::Closed(_) => {
                let wait = self.wait;
                ensure!(
                    closed_within(self.current(name)?, wait).await,
                    "the call is still open after {wait:?}"
                );
                return Ok(());
            }
            Action::Quiet(quiet) => {
                self.receive_until(Instant::now() + Duration::from_millis(quiet.quiet))
                    .await?;
                return self.nothing_pending();
            }
        };
        let answer = self.ask(name, by, verb).await?;
        expect(&answer, step.common.expect, step.common.code.as_deref())?;
        match (&step.action, answer) {
            (Action::Stop(stop), Answer::Ok(answer)) => {
                let Stopping { state } = serde_json::from_value(answer).context("the driver's answer")?;
                ensure!(state == stop.state, "the driver says {state}");
                Ok(())
            }
            (Action::Edit(edit), Answer::Ok(_)) => {
                *self.versions.entry(edit.edit.clone()).or_insert(1) += u32::from(edit.op == EditOp::Replace);
                self.steps_in(&edit.ok).await
            }
            (Action::Edit(edit), Answer::Refused(_) | Answer::Conflict(_)) => self.steps_in(&edit.conflict).await,
            _ => Ok(()),
        }
    }

    // Ids and texts.

    fn id(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn text(&self, item: &str, version: u32) -> String {
        let filler = FILLER.repeat(FILLER_REPEATS);
        format!("Item {item}. {filler}{}{item}-{version}-end", self.id(MARK))
    }

    /// The items whose marks a text holds, in its order, as cases write them: `a`, and `a/2` for its second text.
    fn items_in(&self, text: &str) -> Vec<String> {
        let begin = self.id(MARK);
        let item = |rest: &str| {
            let (item, version) = rest.split_once("-end")?.0.split_once('-')?;
            Some(match version {
                "1" => item.to_owned(),
                version => format!("{item}/{version}"),
            })
        };
        text.split(&begin).skip(1).filter_map(item).collect()
    }

    // The driver.

    async fn ask(&mut self, name: &str, by: &str, verb: Verb) -> anyhow::Result<Answer> {
        let (session, by) = (Some(self.id(name)), Some(author_of(by)));
        let answer = self.driver.ask(&Request { session, by, verb }).await;
        self.is_lost |= answer.is_err();
        answer
    }

    async fn ask_ok<T: DeserializeOwned>(&mut self, name: &str, by: &str, verb: Verb) -> anyhow::Result<T> {
        match self.ask(name, by, verb).await? {
            Answer::Ok(value) => Ok(serde_json::from_value(value).context("the driver's answer")?),
            answer => bail!("the driver says {answer}"),
        }
    }

    fn new_item(&self, item: &str, mode: &str, kind: Option<String>) -> Verb {
        let (text, item, mode) = (self.text(item, 1), self.id(item), mode.to_owned());
        Verb::Send(protocol::Send { item, mode, text, kind })
    }

    async fn fill(&mut self, name: &str, by: &str, item: &str) -> anyhow::Result<()> {
        let max = self.driver.hello.queue_items_max.context("the driver names no limit")?;
        for n in 1..=max + 1 {
            let verb = self.new_item(&format!("{item}{n}"), Mode::Followup.word(), None);
            let answer = self.ask(name, by, verb).await?;
            if !matches!(answer, Answer::Ok(_)) {
                return expect(&answer, Expect::No, Some("queue_full"));
            }
        }
        bail!("more than {max} items were accepted")
    }

    async fn edit(&mut self, step: &Step, edit: &case::Edit) -> anyhow::Result<Verb> {
        let queue = self.queue_seen(&step.common).await?;
        let version = self.versions.get(&edit.edit).map_or(1, |version| *version);
        let item = self.id(&edit.edit);
        let of_item = queue.items.iter().find(|waiting| waiting.item == item);
        Ok(Verb::Edit(protocol::Edit {
            revision: match edit.op {
                EditOp::Promote => queue.revision,
                EditOp::Replace | EditOp::Withdraw | EditOp::Steer | EditOp::Inject => {
                    of_item.and_then(|item| item.revision.clone())
                }
            },
            turn: self.turn(&step.common)?,
            text: (edit.op == EditOp::Replace).then(|| self.text(&edit.edit, version + 1)),
            item,
            op: edit.op,
        }))
    }

    /// The queue as a step has kept it, or as it is. A driver without `queue` gets edits without revisions.
    async fn queue_seen(&mut self, common: &Common) -> anyhow::Result<QueueState> {
        match &common.revision {
            Some(kept) => self.kept(kept).cloned(),
            None if self.driver.hello.ops.contains(&Op::Queue) => {
                self.ask_ok(&common.session, case::AUTHOR, Verb::Queue).await
            }
            None => Ok(QueueState::default()),
        }
    }

    fn kept(&self, name: &str) -> anyhow::Result<&QueueState> {
        self.kept.get(name).with_context(|| format!("no step keeps {name}"))
    }

    /// The turn that a step names.
    fn turn(&self, common: &Common) -> anyhow::Result<Option<String>> {
        let turn = |kept: &String| {
            let running = self.kept(kept)?.running.clone();
            Ok(running.with_context(|| format!("no turn was running in {kept}"))?.turn)
        };
        common.turn.as_ref().map(turn).transpose()
    }

    async fn queue_becomes(&mut self, name: &str, step: &case::Queue) -> anyhow::Result<()> {
        let ids = |items: &[String]| items.iter().map(|item| self.id(item)).collect::<Vec<_>>();
        let (waiting, running) = (ids(&step.queue), step.running.as_deref().map(ids));
        let deadline = Instant::now() + self.wait;
        loop {
            let queue: QueueState = self.ask_ok(name, case::AUTHOR, Verb::Queue).await?;
            let found: Vec<&str> = queue.items.iter().map(|item| item.item.as_str()).collect();
            let in_turn = queue.running.as_ref().map_or(&[][..], |turn| &turn.items);
            let has_gate = step.gate.is_none() || queue.gate == step.gate;
            if found == waiting && has_gate && running.as_ref().is_none_or(|running| in_turn == running) {
                self.kept.extend(step.keep.clone().map(|keep| (keep, queue)));
                return Ok(());
            }
            let gate = queue.gate.as_deref().unwrap_or("none");
            let in_time = Instant::now() < deadline;
            ensure!(in_time, "waiting: {found:?}, running: {in_turn:?}, gate: {gate}");
            sleep(ASK_EVERY).await;
        }
    }

    async fn outcome(&mut self, name: &str, item: &str) -> anyhow::Result<Outcome> {
        let item = self.id(item);
        self.ask_ok(name, case::AUTHOR, Verb::Outcome { item }).await
    }

    async fn outcome_await(&mut self, name: &str, item: &str) -> anyhow::Result<Outcome> {
        let deadline = Instant::now() + self.wait;
        loop {
            let outcome = self.outcome(name, item).await?;
            if outcome.state.is_outcome() {
                self.outcomes.push((name.to_owned(), item.to_owned(), outcome.clone()));
                return Ok(outcome);
            }
            ensure!(Instant::now() < deadline, "it has no outcome: {}", outcome.state);
            sleep(ASK_EVERY).await;
        }
    }

    // The model.

    fn current(&mut self, name: &str) -> anyhow::Result<&mut Call> {
        let call = self.sessions.get_mut(name).and_then(|session| session.current.as_mut());
        call.context("no step has seen a call in this session")
    }

    async fn call(&mut self, name: &str, expected: &[String]) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.wait;
        loop {
            let session = self.sessions.get_mut(name).expect("the step has opened it");
            if let Some((call, items)) = session.pending.pop_front() {
                ensure!(items == expected, "the call has {items:?}");
                session.current = Some(call);
                return Ok(());
            }
            match timeout_at(deadline, self.model.calls.recv()).await {
                Err(_) => bail!("no call came within {:?}", self.wait),
                Ok(call) => self.sort(call.context("the model's server has ended")?).await?,
            }
        }
    }

    async fn receive_until(&mut self, deadline: Instant) -> anyhow::Result<()> {
        while let Ok(call) = timeout_at(deadline, self.model.calls.recv()).await {
            self.sort(call.context("the model's server has ended")?).await?;
        }
        Ok(())
    }

    /// Puts a call to its session: the one of its items, or of the tool call whose result it brings.
    async fn sort(&mut self, mut call: Call) -> anyhow::Result<()> {
        let items = self.items_in(&call.text);
        let begin = self.id(TOOL_CALL);
        let asked = call
            .results
            .iter()
            .find_map(|id| id.strip_prefix(&begin)?.split_once('-'));
        let is_early = call.text.contains(MARK) || call.results.iter().any(|id| id.contains(TOOL_CALL));
        let name = match (asked, items.first()) {
            (Some((_, name)), _) => name,
            // Items of other sessions have the session's name before a dot: `other.a`.
            (None, Some(item)) => item.split_once('.').map_or(case::SESSION, |(name, _)| name),
            // Of an earlier case, which has ended.
            (None, None) if is_early => return call.reply("late").or(Ok(())),
            (None, None) => bail!("a call came that has neither an item nor a tool result"),
        };
        let session = self.sessions.get_mut(name).context("a call of an unknown session")?;
        let pending = session.pending.back_mut().map(|(call, _)| call);
        let before = pending.or(session.current.as_mut());
        if let Some(before) = before.filter(|call| !call.is_answered()) {
            let is_closed = closed_within(before, CLOSE_GRACE).await;
            ensure!(
                is_closed,
                "a call with {items:?} came while another one of the session was in progress"
            );
        }
        session.pending.push_back((call, items));
        Ok(())
    }

    fn nothing_pending(&self) -> anyhow::Result<()> {
        let pending = self.sessions.values().flat_map(|session| &session.pending);
        let items: Vec<_> = pending.map(|(_, items)| items).collect();
        ensure!(items.is_empty(), "a call came that no step expects, with {items:?}");
        Ok(())
    }

    /// Answers what the case leaves open, so that the service goes on.
    fn release(&mut self) {
        for session in std::mem::take(&mut self.sessions).into_values() {
            let pending = session.pending.into_iter().map(|(call, _)| call);
            for mut call in session.current.into_iter().chain(pending) {
                // A call that was closed, or that hangs, is dropped.
                let _ = call.reply("the case is over");
            }
        }
    }
}

/// Compares an answer with what a step expects of it.
fn expect(answer: &Answer, expected: Expect, code: Option<&str>) -> anyhow::Result<()> {
    let fits = match (answer, expected) {
        (Answer::Ok(_), Expect::Ok | Expect::Either)
        | (Answer::Refused(_), Expect::Refused | Expect::No)
        | (Answer::Conflict(_), Expect::Conflict | Expect::No | Expect::Either) => true,
        (Answer::Ok(_), Expect::Refused | Expect::Conflict | Expect::No)
        | (Answer::Refused(_), Expect::Ok | Expect::Conflict | Expect::Either)
        | (Answer::Conflict(_), Expect::Ok | Expect::Refused) => false,
    };
    let refusal = answer.refusal();
    let has_code = refusal.is_none_or(|refusal| code.is_none_or(|code| refusal.code == code));
    ensure!(fits && has_code, "the driver says {answer}");
    Ok(())
}
