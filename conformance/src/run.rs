//! Runs one case: sends its requests to the driver, receives the service's calls and answers them, and fails at the first step that
//! does not come true. Two rules hold in every case, whatever its steps: a session has one call in progress, and an
//! outcome never changes.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    case::{self, Case, Expect, Step, author_of},
    driver::Driver,
    model::{Call, Model, closed_within},
    protocol::{Answer, EditOp, Outcome, QueueState, Request, Stopping},
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

/// How long to wait for a step to come true.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub wait: Duration,
}

/// Why a case did not pass.
pub struct Failure {
    pub error: anyhow::Error,
    /// The driver cannot be used any more.
    pub is_final: bool,
}

pub async fn case_run(
    case: &Case,
    prefix: &str,
    limits: Limits,
    driver: &mut Driver,
    model: &mut Model,
) -> Result<(), Failure> {
    let mut run = Run {
        prefix,
        limits,
        driver,
        model,
        sessions: BTreeMap::new(),
        versions: HashMap::new(),
        kept: HashMap::new(),
        outcomes: BTreeMap::new(),
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
    limits: Limits,
    driver: &'a mut Driver,
    model: &'a mut Model,
    sessions: BTreeMap<String, Session>,
    /// Of items that were replaced: the number of the present text.
    versions: HashMap<String, u32>,
    kept: HashMap<String, QueueState>,
    /// Outcomes that were seen, by session and item.
    outcomes: BTreeMap<(String, String), Outcome>,
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
        for ((session, item), seen) in self.outcomes.clone() {
            let now = self.outcome(&session, &item).await?;
            ensure!(
                now == seen,
                "the outcome of {item} changed from {} to {}",
                seen.state,
                now.state
            );
        }
        Ok(())
    }

    async fn steps_in(&mut self, steps: &[Step]) -> anyhow::Result<()> {
        for (n, step) in (1..).zip(steps) {
            // Boxed: a step may have steps of its own.
            let done = Box::pin(self.step(step)).await;
            done.with_context(|| format!("step {n} ({})", crate::doc::step_text(step)))?;
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> anyhow::Result<()> {
        let name = step.session().to_owned();
        self.session_open(&name).await?;
        let session = self.session_id(&name);
        let now = Instant::now();
        match step {
            Step::Send(step) => {
                let answer = self
                    .send(&name, &step.send, &step.by, &step.mode, step.r#type.clone())
                    .await?;
                expect(&answer, step.expect, step.code.as_deref())
            }
            Step::Fill(step) => self.fill(&name, &step.fill, &step.by).await,
            Step::Edit(step) => {
                let version = self.versions.get(&step.edit).map_or(1, |version| *version) + 1;
                let is_new_text = step.op == EditOp::Replace;
                let request = Request::Edit {
                    revision: self.revision(&name, step).await?,
                    turn: step.turn.as_ref().map(|kept| self.turn(kept)).transpose()?,
                    text: is_new_text.then(|| self.text(&step.edit, version)),
                    session,
                    item: self.id(&step.edit),
                    op: step.op,
                    by: author_of(&step.by),
                };
                let answer = self.ask(&request).await?;
                expect(&answer, step.expect, step.code.as_deref())?;
                let follow = match answer {
                    Answer::Ok(_) => {
                        self.versions.extend(is_new_text.then(|| (step.edit.clone(), version)));
                        &step.ok
                    }
                    Answer::Refused(_) | Answer::Conflict(_) => &step.conflict,
                };
                self.steps_in(follow).await
            }
            Step::Order(step) => {
                let revision = match &step.revision {
                    Some(kept) => self.kept(kept)?.revision.clone(),
                    None => self.queue_if_offered(&name).await?.and_then(|queue| queue.revision),
                };
                let request = Request::Order {
                    session,
                    items: step.order.iter().map(|item| self.id(item)).collect(),
                    by: author_of(&step.by),
                    revision,
                };
                expect(&self.ask(&request).await?, step.expect, step.code.as_deref())
            }
            Step::Stop(step) => {
                let request = Request::Stop {
                    session,
                    by: author_of(&step.by),
                    then: step.stop,
                    turn: step.turn.as_ref().map(|kept| self.turn(kept)).transpose()?,
                };
                let stopping: Stopping = self.ask_ok(&request).await?;
                ensure!(stopping.state == step.state, "the driver says {}", stopping.state);
                Ok(())
            }
            Step::Hold(step) => {
                let (by, running) = (author_of(&step.by), step.hold);
                self.ask_done(&Request::Hold { session, by, running }).await
            }
            Step::Resume(step) => {
                let (by, gate) = (author_of(&step.by), step.resume);
                self.ask_done(&Request::Resume { session, by, gate }).await
            }
            Step::Queue(step) => self.queue_becomes(&name, step).await,
            Step::Outcome(step) => {
                let outcome = self.outcome_await(&session, &step.outcome).await?;
                ensure!(outcome.state == step.is, "it is {}: {}", outcome.state, outcome.reason);
                if let Some(reason) = &step.reason {
                    ensure!(outcome.reason.contains(reason), "the reason is: {}", outcome.reason);
                }
                Ok(())
            }
            Step::Crash(step) => {
                let path = self.current(&name).map(|call| call.path.clone()).unwrap_or_default();
                self.ask_done(&Request::Crash { what: step.crash, path }).await
            }
            Step::Call(step) => self.call(&name, &step.call).await,
            Step::Reply(step) => self.current(&name)?.reply(&step.reply),
            Step::Tool(_) => {
                let tool = self.driver.hello.tool.clone().context("the driver names no tool")?;
                self.asked += 1;
                // Says which session it is of, for a call that brings only its result.
                let id = format!("{}-call-{}-{name}", self.prefix, self.asked);
                self.current(&name)?.ask(&id, &tool)
            }
            Step::Fail(step) => self.current(&name)?.fail(step.fail),
            Step::Hang(_) => self.current(&name)?.hang(),
            Step::Closed(_) => {
                let wait = self.limits.wait;
                let call = self.current(&name)?;
                ensure!(closed_within(call, wait).await, "the call is still open after {wait:?}");
                Ok(())
            }
            Step::Quiet(step) => {
                self.receive_until(now + Duration::from_millis(step.quiet)).await?;
                self.nothing_pending()
            }
        }
    }

    // Ids and texts.

    fn id(&self, item: &str) -> String {
        format!("{}-{item}", self.prefix)
    }

    fn text(&self, item: &str, version: u32) -> String {
        let filler = FILLER.repeat(FILLER_REPEATS);
        format!("Item {item}. {filler}{}", self.mark(item, version))
    }

    fn mark(&self, item: &str, version: u32) -> String {
        format!("{}-mark-{item}-{version}-end", self.prefix)
    }

    /// The items whose marks a text holds, in its order, as cases write them: `a`, and `a/2` for its second text.
    fn items_in(&self, text: &str) -> Vec<String> {
        let begin = format!("{}-mark-", self.prefix);
        let marks = text.split(begin.as_str()).skip(1);
        let item = |rest: &str| {
            let (item, version) = rest.split_once("-end")?.0.split_once('-')?;
            Some(match version {
                "1" => item.to_owned(),
                version => format!("{item}/{version}"),
            })
        };
        marks.filter_map(item).collect()
    }

    fn session_id(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    // The driver.

    async fn ask(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let answer = self.driver.ask(request).await;
        self.is_lost |= answer.is_err();
        answer
    }

    async fn ask_ok<T: DeserializeOwned>(&mut self, request: &Request) -> anyhow::Result<T> {
        match self.ask(request).await? {
            Answer::Ok(value) => Ok(serde_json::from_value(value).context("the driver's answer")?),
            answer => bail!("the driver says {answer}"),
        }
    }

    async fn ask_done(&mut self, request: &Request) -> anyhow::Result<()> {
        self.ask_ok::<serde_json::Value>(request).await.map(drop)
    }

    async fn session_open(&mut self, name: &str) -> anyhow::Result<()> {
        if !self.sessions.contains_key(name) {
            let request = Request::Session {
                session: self.session_id(name),
                task: self.prefix.to_owned(),
                agent: name.to_owned(),
            };
            self.ask_done(&request).await.context("could not create a session")?;
            self.sessions.insert(name.to_owned(), Session::default());
        }
        Ok(())
    }

    async fn send(
        &mut self,
        name: &str,
        item: &str,
        by: &str,
        mode: &str,
        kind: Option<String>,
    ) -> anyhow::Result<Answer> {
        let request = Request::Send {
            session: self.session_id(name),
            item: self.id(item),
            by: author_of(by),
            mode: mode.to_owned(),
            text: self.text(item, 1),
            kind,
        };
        self.ask(&request).await
    }

    async fn fill(&mut self, name: &str, item: &str, by: &str) -> anyhow::Result<()> {
        let max = self.driver.hello.queue_items_max.context("the driver names no limit")?;
        for n in 1..=max + 1 {
            let answer = self.send(name, &format!("{item}{n}"), by, "followup", None).await?;
            match answer {
                Answer::Ok(_) => {}
                Answer::Refused(_) | Answer::Conflict(_) => return expect(&answer, Expect::No, Some("queue_full")),
            }
        }
        bail!("more than {max} items were accepted")
    }

    async fn queue(&mut self, name: &str) -> anyhow::Result<QueueState> {
        let session = self.session_id(name);
        self.ask_ok(&Request::Queue { session }).await
    }

    /// A driver without `queue` gets edits without revisions.
    async fn queue_if_offered(&mut self, name: &str) -> anyhow::Result<Option<QueueState>> {
        match self.driver.hello.ops.contains(&crate::protocol::Op::Queue) {
            true => self.queue(name).await.map(Some),
            false => Ok(None),
        }
    }

    async fn revision(&mut self, name: &str, step: &case::Edit) -> anyhow::Result<Option<String>> {
        let queue = match &step.revision {
            Some(kept) => Some(self.kept(kept)?.clone()),
            None => self.queue_if_offered(name).await?,
        };
        let Some(queue) = queue else {
            return Ok(None);
        };
        Ok(match step.op {
            EditOp::Promote => queue.revision,
            EditOp::Replace | EditOp::Withdraw | EditOp::Steer | EditOp::Inject => {
                let id = self.id(&step.edit);
                queue
                    .items
                    .into_iter()
                    .find(|item| item.item == id)
                    .and_then(|item| item.revision)
            }
        })
    }

    fn kept(&self, name: &str) -> anyhow::Result<&QueueState> {
        self.kept.get(name).with_context(|| format!("no step keeps {name}"))
    }

    fn turn(&self, kept: &str) -> anyhow::Result<String> {
        let running = self.kept(kept)?.running.as_ref();
        Ok(running
            .with_context(|| format!("no turn was running in {kept}"))?
            .turn
            .clone())
    }

    async fn queue_becomes(&mut self, name: &str, step: &case::Queue) -> anyhow::Result<()> {
        let ids = |items: &[String]| items.iter().map(|item| self.id(item)).collect::<Vec<_>>();
        let (waiting, running) = (ids(&step.queue), step.running.as_deref().map(ids));
        let deadline = Instant::now() + self.limits.wait;
        loop {
            let queue = self.queue(name).await?;
            let found: Vec<&str> = queue.items.iter().map(|item| item.item.as_str()).collect();
            let in_turn = queue.running.as_ref().map_or(&[][..], |turn| &turn.items);
            let fits = found == waiting
                && running.as_ref().is_none_or(|running| in_turn == running)
                && step.gate.as_ref().is_none_or(|gate| queue.gate.as_ref() == Some(gate));
            if fits {
                if let Some(keep) = &step.keep {
                    self.kept.insert(keep.clone(), queue);
                }
                return Ok(());
            }
            let gate = queue.gate.as_deref().unwrap_or("none");
            ensure!(
                Instant::now() < deadline,
                "waiting: {found:?}, running: {in_turn:?}, gate: {gate}"
            );
            sleep(ASK_EVERY).await;
        }
    }

    async fn outcome(&mut self, session: &str, item: &str) -> anyhow::Result<Outcome> {
        let (session, item) = (session.to_owned(), self.id(item));
        self.ask_ok(&Request::Outcome { session, item }).await
    }

    async fn outcome_await(&mut self, session: &str, item: &str) -> anyhow::Result<Outcome> {
        let deadline = Instant::now() + self.limits.wait;
        loop {
            let outcome = self.outcome(session, item).await?;
            if outcome.state.is_outcome() {
                let key = (session.to_owned(), item.to_owned());
                let first = self.outcomes.entry(key).or_insert_with(|| outcome.clone());
                ensure!(
                    *first == outcome,
                    "the outcome was {} before, now {}",
                    first.state,
                    outcome.state
                );
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
        let deadline = Instant::now() + self.limits.wait;
        loop {
            let session = self.sessions.get_mut(name).expect("the step has opened it");
            if let Some((call, items)) = session.pending.pop_front() {
                ensure!(items == expected, "the call has {items:?}");
                session.current = Some(call);
                return Ok(());
            }
            match timeout_at(deadline, self.model.calls.recv()).await {
                Err(_) => bail!("no call came within {:?}", self.limits.wait),
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
        let begin = format!("{}-call-", self.prefix);
        let asked = call
            .results
            .iter()
            .find_map(|id| id.strip_prefix(begin.as_str())?.split_once('-'));
        let name = match (asked, items.is_empty()) {
            (Some((_, name)), _) => name.to_owned(),
            (None, false) => self.session_of(&items[0]),
            // Of an earlier case, which has ended.
            (None, true) => return call.reply("late").or(Ok(())),
        };
        let session = self.sessions.get_mut(&name).context("a call of an unknown session")?;
        let before = session
            .pending
            .back_mut()
            .map(|(call, _)| call)
            .or(session.current.as_mut());
        if let Some(before) = before
            && before.is_open()
        {
            let closed = closed_within(before, CLOSE_GRACE).await;
            ensure!(
                closed,
                "a second call, with {items:?}, while another call of the session is in progress"
            );
        }
        session.pending.push_back((call, items));
        Ok(())
    }

    /// Items of other sessions than `main` have the session's name before a dot: `other.a`.
    fn session_of(&self, item: &str) -> String {
        let name = item.split_once('.').map_or(case::SESSION, |(name, _)| name);
        name.to_owned()
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
            let open = session
                .current
                .into_iter()
                .chain(session.pending.into_iter().map(|(call, _)| call));
            for mut call in open {
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
    let fits = fits
        && match answer {
            Answer::Refused(refusal) | Answer::Conflict(refusal) => code.is_none_or(|code| refusal.code == code),
            Answer::Ok(_) => true,
        };
    ensure!(fits, "the driver says {answer}");
    Ok(())
}
