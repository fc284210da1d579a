//! An account's whole life, so that every statement of the services is executed for it: notifications of every kind, turns that
//! call tools, fail, wait and resume, tasks that close with waiting items, agents that are removed.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use contracts::{
    Headers, Outgoing, header,
    tools::{subagent_cancel, subagent_spawn, submit_plan},
};
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use storage::{Role, session::sessions_lock::SESSIONS_THERE};
use testkit::{
    OpenIdProvider, Reply, Says, Seen, Tenant, enqueued, eventually, rows,
    tools::{arguments, in_order, named},
};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{
    own::{PAGED, reading, removing, writing},
    trials::Trials,
};
use crate::{
    crossing::{
        attempt::{Door, Request},
        field::Field,
        generator::Ids,
    },
    house::House,
};

/// Mark in a notification's text: the agent's action.
pub(super) const FAILS: &str = "please fail";
pub(super) const WAITS: &str = "please wait";
const HOLDS: &str = "please hold";
/// Longer than the walk holds a turn, however slow the trials are.
const HELD: Duration = Duration::from_secs(300);
pub(super) const LINGERS: &str = "please linger";
/// Marks before a task, and before the status that it gets.
pub(super) const CALLS: &str = "please call ";
/// Mark before calls, each a tool and its arguments, with the other one between them.
pub(super) const USES: &str = "please use ";
pub(super) const USED: &str = " and ";
/// Mark before a task.
const PLANS: &str = "please plan ";
/// Mark before what branches are asked, which may be another mark; and before the id of one that its parent ends.
const BRANCHES: &str = "please branch ";
const ENDS: &str = "please end ";

pub(crate) fn script(seen: &Seen) -> Reply {
    let input = seen.input();
    // Without the note about a stopped turn, which quotes what that turn was about.
    let input = input.rsplit_once("Notification: ").map_or(&*input, |(_, own)| own);
    let is_new = seen.tool_outputs().is_empty();
    // Their arguments may be other marks.
    if let Some((_, calls)) = input.split_once(USES) {
        if !is_new {
            return Reply::text("done");
        }
        let calls = calls.lines().next().expect("calls").split(USED).enumerate();
        let calls = calls.map(|(place, call)| {
            let (name, said) = call.split_once(' ').expect("a tool and its arguments");
            (
                format!("c-{place}"),
                name.to_owned(),
                serde_json::from_str(said).expect("arguments"),
            )
        });
        return Reply::Calls(calls.collect());
    }
    if let Some((_, asked)) = input.split_once(BRANCHES) {
        let part = json!({"request": asked.lines().next().expect("a request")});
        let parts = json!({"subagents": [part, part]});
        return match is_new {
            true => Reply::call("c-split", subagent_spawn::NAME, parts),
            false => Reply::text("done"),
        };
    }
    if let Some((_, branch)) = input.split_once(ENDS).filter(|_| is_new) {
        let ends = json!({"branch_id": &branch[..36]});
        let call = |name: &str, arguments| (format!("c-{name}"), name.to_owned(), arguments);
        return Reply::Calls(vec![
            call("subagent_list", json!({})),
            call(subagent_cancel::NAME, ends),
        ]);
    }
    if input.contains(FAILS) {
        return Reply::Status(400, r#"{"error": {"message": "no"}}"#.to_owned(), Vec::new());
    }
    if input.contains(WAITS) {
        return Reply::Status(503, String::new(), Vec::new());
    }
    if input.contains(HOLDS) {
        return Reply::After(HELD, Box::new(Reply::text("held")));
    }
    if input.contains(LINGERS) {
        return Reply::After(Duration::from_secs(3), Box::new(Reply::text("at last")));
    }
    if let Some((_, task)) = input.split_once(PLANS).filter(|_| is_new) {
        let task = task.split_whitespace().next().expect("a task");
        let plan = json!({"task_id": task, "plan": "p", "summary": "s"});
        return Reply::call("c-plan", submit_plan::NAME, plan);
    }
    if let Some((_, id)) = input
        .split_once("Question ")
        .filter(|_| is_new && input.contains("of kind plan"))
    {
        let said = json!({"question_id": &id[..36], "verdict": "approved"});
        return Reply::call("c-answer", "answer_question", said);
    }
    let said = input.split_once(CALLS).filter(|_| is_new);
    let Some((_, said)) = said else {
        return Reply::text("done");
    };
    let mut words = said.split_whitespace();
    let (task, status) = (words.next().expect("a task"), words.next().expect("a status"));
    let id = |_: &str, of| named(of, task, "tester");
    // A plan would keep the task: it has a step of its own.
    let tools = in_order().into_iter().filter(|tool| tool.name != submit_plan::NAME);
    let calls = tools.enumerate().map(|(place, tool)| {
        let said = arguments(&tool, |_| false, id, status);
        (format!("c-{place}"), tool.name.to_owned(), said)
    });
    Reply::Calls(calls.collect())
}

/// The first request of a text with this mark, and each one of an image, is answered late.
const DRAGS: &str = "please drag";

pub(crate) fn model_script() -> impl Fn(usize, &str) -> Says + Send + Sync + 'static {
    let dragged = AtomicUsize::new(0);
    move |_, body| match (body.contains("prompt"), body.contains(DRAGS)) {
        (true, drags) => Says::images(&["iVBORw0KGgphbiBpbWFnZQ=="]).after(if drags { 12 } else { 0 }),
        (false, true) if dragged.fetch_add(1, Ordering::Relaxed) == 0 => Says::text("a late answer").after(3),
        (false, _) => Says::text("a model's answer"),
    }
}

pub(crate) struct Walk<'a> {
    pub(crate) house: &'a mut House,
    pub(crate) field: &'a Field,
    pub(crate) tenant: &'a Tenant,
    pub(crate) ids: &'a Ids,
    pub(crate) trials: &'a Trials,
    /// By which people sign in.
    pub(crate) people: &'a OpenIdProvider,
}

/// Where a list that is read in pages goes on.
fn next_cursor(request: &Request, answer: &str) -> Option<String> {
    if !request.path.ends_with(PAGED) {
        return None;
    }
    let page: Value = serde_json::from_str(answer).ok()?;
    Some(page["next_cursor"].as_str()?.to_owned())
}

impl Walk<'_> {
    pub(crate) async fn all(&mut self) {
        self.requests(writing(self.tenant, self.ids)).await;
        self.requests(reading(self.tenant, self.ids)).await;
        self.people().await;
        self.personas().await;
        self.board().await;
        self.turns().await;
        self.assembled().await;
        self.addressed().await;
        self.entered().await;
        self.locked().await;
        self.ended_before().await;
        self.refused_and_failed().await;
        self.tools_that_are_awaited().await;
        self.stopped().await;
        self.edited().await;
        self.paused().await;
        self.without_provider().await;
        self.planned().await;
        self.approved().await;
        self.reviewed().await;
        self.timed().await;
        self.modelled().await;
        self.branched().await;
        self.replayed().await;
        self.handed_over().await;
        self.reset().await;
        self.rotated().await;
        self.closing().await;
        // Lists have newer rows.
        self.requests(reading(self.tenant, self.ids)).await;
        self.stranded().await;
        self.agent_goes().await;
        self.requests(removing(self.tenant, self.ids)).await;
        // Statements of periodic work.
        self.house.up().await;
    }

    pub(super) async fn requests(&self, requests: Vec<Request>) {
        for request in requests {
            self.trials.next_step();
            let answer = self.field.send(&request).await;
            assert!(answer.status < 500, "{request:?}: {answer:?}");
            if let Some(cursor) = next_cursor(&request, &answer.body) {
                let path = request.path.replace(PAGED, &format!("cursor={cursor}"));
                let answer = self.field.send(&Request { path, ..request }).await;
                assert_eq!(answer.status, 200, "{answer:?}");
            }
        }
    }

    /// What earlier steps began has ended, or has had ten seconds for it: the statements of the next step are about its own turn first.
    pub(super) async fn quiet(&self) {
        // But for the turn that the account begins with.
        let working = "select count(*) from session
                       where account_id = 'alder' and phase in ('running', 'waiting') and task_id is distinct from 'alder-1'";
        for _ in 0..100 {
            if self.house.world.database.count(working).await == 0 {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) async fn delivered(&self, task: &str, id: &str, body: &str) {
        self.trials.next_step();
        self.house.notify(&self.tenant.account, task, "coder", id, body).await;
        self.house.until(&self.tenant.account, id, "delivered").await;
    }

    pub(super) async fn api(&self, method: &'static str, path: &str, body: &Value) -> Value {
        let (status, body) = self.asked(method, path, body).await;
        assert!(status < 300, "{method} {path}: {body}");
        body
    }

    pub(super) async fn conflicts(&self, method: &'static str, path: &str, body: &Value) {
        let (status, body) = self.asked(method, path, body).await;
        assert_eq!(status, 409, "{method} {path}: {body}");
    }

    pub(super) async fn asked(&self, method: &'static str, path: &str, body: &Value) -> (u16, Value) {
        self.trials.next_step();
        let answer = self.field.send(&self.request(method, path, body)).await;
        (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::Null))
    }

    /// An admin's, of this account.
    fn request(&self, method: &'static str, path: &str, body: &Value) -> Request {
        Request {
            door: Door::Api,
            method,
            path: format!("/api/orgs/{}{path}", self.tenant.account),
            token: self.tenant.keys["admin"].clone(),
            headers: Vec::new(),
            body: Some(body).filter(|body| !body.is_null()).map(Value::to_string),
        }
    }

    /// On tasks that both accounts have, on new ones, without a task; the coordinator's; with tools, to the end.
    async fn turns(&self) {
        for (task, body) in [
            ("LIVE-1", "b"),
            ("LIVE-1", "please call LIVE-1 pending"),
            ("CHAT", "please call CHAT in_progress"),
            ("-", "b"),
            ("T-1", "please call T-1 review"),
            ("T-1", "b"),
        ] {
            let id = format!("turn-{task}-{}", body.len());
            self.quiet().await;
            self.delivered(task, &id, body).await;
            self.delivered(task, &format!("{id}-again"), "b").await;
        }
        // The chat has no assignee, so that every agent is its coordinator.
        self.api("PATCH", "/tasks/CHAT", &json!({"assignees": []})).await;
        self.quiet().await;
        self.delivered("CHAT", "to-anybody", "please call CHAT in_progress")
            .await;
        // A sender without a session of this kind.
        let (account, id) = (&self.tenant.account, "to-tester");
        self.house.notify(account, "-", "tester", id, "b").await;
        self.house.until(account, id, "delivered").await;
        self.delivered("T-1", "ends-it", "please call T-1 done").await;
    }

    /// Turns whose prompts hold those before them.
    async fn assembled(&self) {
        let policy = |policy: Value| json!({"context_policy": policy});
        self.api("PATCH", "/agents/coder", &policy(json!("assembled"))).await;
        self.delivered("LIVE-1", "assembled", "please call LIVE-1 pending")
            .await;
        self.delivered("LIVE-1", "assembled-again", "b").await;
        self.api("PATCH", "/agents/coder", &policy(Value::Null)).await;
    }

    /// By ids, in answer to a message, repeated, and for the assignees.
    async fn addressed(&self) {
        let account = &self.tenant.account;
        let first = |sql: &'static str| async move {
            let texts = self.house.world.database.texts(sql).await;
            texts.first().expect("one is there").clone()
        };
        let agent = first("select id::text from agent where account_id = 'alder' and slug = 'coder'").await;
        let message = first("select id::text from message where account_id = 'alder' and task_id = 'live-1'").await;
        self.trials.next_step();
        let payload = json!({"id": "by-ids", "agent": agent, "message_id": message, "body": "b"});
        self.house.publish(account, "LIVE-1", payload.clone()).await;
        self.house.until(account, "by-ids", "delivered").await;
        self.house.publish(account, "LIVE-1", payload).await;
        self.trials.next_step();
        let all = json!({"id": "to-all", "body": "b"});
        self.house.publish(account, "LIVE-1", all).await;
        self.part_of("to-all").await;
    }

    async fn part_of(&self, id: &str) {
        eventually("a part is delivered", || async {
            let parts = self.house.notification(&self.tenant.account, id).await;
            parts.to_string().contains("delivered").then_some(())
        })
        .await;
    }

    /// Refused, then accepted by a redrive after its agents were created; failed, then retried.
    async fn refused_and_failed(&self) {
        let account = &self.tenant.account;
        self.trials.next_step();
        let both = json!({"id": "both", "agents": ["coder", "late"], "body": "b"});
        self.house.publish(account, "LIVE-1", both).await;
        self.house.until(account, "both", "refused").await;
        self.house.notify(account, "LIVE-1", "coder", "fails", FAILS).await;
        self.house.until(account, "fails", "failed").await;
        self.api("POST", "/agents", &json!({"slug": "late", "name": "n"})).await;
        let letters = eventually("both letters", || async {
            let letters = self.house.get(&format!("/api/orgs/{account}/dead-letters")).await;
            let of = |word: &str| {
                let mut items = letters["items"].as_array()?.iter();
                let letter = items.find(|letter| letter["payload"].to_string().contains(word))?;
                Some(letter["id"].as_str()?.to_owned())
            };
            Some([of("late")?, of(FAILS)?])
        })
        .await;
        for letter in letters {
            self.api("POST", &format!("/dead-letters/{letter}/redrive"), &json!({}))
                .await;
        }
        self.part_of("both").await;
    }

    /// A session is woken while another transaction has locked its row: delivery looks whether the session is there, and retries.
    async fn locked(&self) {
        self.trials.next_step();
        let account = &self.tenant.account;
        let mut holder = self.house.world.database.owner.begin().await.unwrap();
        let session: Value = sqlx::query_scalar(
            "select jsonb_build_object('account', account_id, 'task', null, 'session_id', id, 'session_key', key,
                                       'generation', generation, 'agent_id', agent_id, 'position', queue_tail)
             from session where account_id = $1 and kind = 'system' and closed_at is null limit 1 for update",
        )
        .bind(account.as_str())
        .fetch_one(&mut *holder)
        .await
        .unwrap();
        let subject = format!("signalbox.session.resolved.{account}.-");
        let payload = session.to_string().into_bytes();
        self.house.world.publish_as_service(subject, payload).await;
        eventually("delivery has looked for the locked session", || async {
            let book = self.trials.book();
            let is_asked = book.keys().any(|(_, sql)| sql == SESSIONS_THERE);
            is_asked.then_some(())
        })
        .await;
        holder.rollback().await.unwrap();
    }

    /// A turn that a delivery of the previous version ended: the orchestrator posts its reply.
    async fn ended_before(&self) {
        let account = &self.tenant.account;
        let client = self.house.world.operator().await;
        let finished = format!("signalbox.event.{account}.LIVE-1.turn.finished");
        let mut heard = client.subscribe(finished.clone()).await.unwrap();
        client.flush().await.unwrap();
        self.delivered("LIVE-1", "ended-before", "b").await;
        let event = timeout(Duration::from_secs(20), heard.next()).await;
        let event = event.expect("an event").expect("a connection");
        let mut headers = Headers::default();
        headers.set(header::RECEIPT, Uuid::now_v7().to_string());
        let event = Outgoing {
            subject: finished,
            headers,
            payload: event.payload.to_vec(),
        };
        self.trials.next_step();
        for answer in self.house.world.bus().await.publish_all(&[event]).await {
            answer.expect("stored");
        }
        eventually("the orchestrator has posted it", || async {
            let is_posted = |sql: &str| sql.contains("insert into message") && sql.contains("from unnest(");
            self.trials.book().keys().any(|(_, sql)| is_posted(sql)).then_some(())
        })
        .await;
    }

    /// A service that knows the conversation enters an item, and repeats it.
    async fn entered(&self) {
        let (account, id) = (&self.tenant.account, "entered");
        for _ in 0..2 {
            self.trials.next_step();
            self.house.enter(Role::Delivery, account, id).await;
            self.house.until(account, id, "delivered").await;
        }
    }

    /// The tools do not run for a while, so that they are requested again, and one turn gets an item with its results; and once
    /// more after they ran.
    async fn tools_that_are_awaited(&mut self) {
        let client = self.house.world.operator().await;
        let mut heard = client.subscribe("signalbox.tool.>").await.unwrap();
        client.flush().await.unwrap();
        self.trials.next_step();
        self.house.kill(Role::ToolGateway);
        let account = self.tenant.account.clone();
        // Of two turns, so that two calls share a transaction.
        for (task, id) in [("T-2", "awaits"), ("T-3", "awaits-too")] {
            let body = format!("please call {task} pending");
            self.house.notify(&account, task, "coder", id, &body).await;
        }
        eventually("the tools of both were asked for again", || async {
            let again = "select coalesce(wake_at - waiting_since > interval '1.5 s', false)::text from session s
                         join turn t on t.account_id = s.account_id and t.id = s.active_turn_id
                         where s.task_id in ('t-2', 't-3')";
            let again = self.house.world.database.texts(again).await;
            (again == ["true", "true"]).then_some(())
        })
        .await;
        self.trials.next_step();
        let person = json!({"kind": "user", "id": "u-1", "name": "A person"});
        let given = json!({"id": "is-given", "agent": "coder", "body": "b", "queue_mode": "inject", "sender": person});
        self.house.publish(&account, "T-2", given).await;
        self.house.until(&account, "is-given", "queued").await;
        self.trials.next_step();
        self.house.up().await;
        for id in ["awaits", "awaits-too", "is-given"] {
            self.house.until(&account, id, "delivered").await;
        }
        let mut said = Vec::new();
        while let Some(Some(message)) = heard.next().now_or_never() {
            said.push(message);
        }
        let asked = said.iter().find(|message| message.subject.contains(".requested."));
        let asked = asked.expect("it was asked for");
        let (subject, payload) = (asked.subject.to_string(), asked.payload.to_vec());
        self.trials.next_step();
        self.house.world.publish_as_service(subject, payload).await;
        let answered = async { while !heard.next().await.expect("a connection").subject.contains(".finished.") {} };
        timeout(Duration::from_secs(20), answered).await.expect("an answer");
    }

    /// A running turn is ended by a steer, what came meanwhile with mode `collect` is one turn; then a turn that waits for
    /// another attempt is stopped, with an item behind it, and its session is resumed.
    async fn stopped(&mut self) {
        let account = self.tenant.account.clone();
        self.sent("is-held", "followup", HOLDS).await;
        self.house.until(&account, "is-held", "running").await;
        for id in ["joins-1", "joins-2"] {
            self.sent(id, "collect", "b").await;
            self.house.until(&account, id, "queued").await;
        }
        self.sent("steers", "steer", "b").await;
        self.house.until(&account, "is-held", "cancelled").await;
        for id in ["steers", "joins-1", "joins-2"] {
            self.house.until(&account, id, "delivered").await;
        }

        self.sent("is-stopped", "followup", WAITS).await;
        let waiting = "select id::text from session
                       where account_id = 'alder' and task_id = 'live-1' and phase = 'backoff' and active_turn_id is not null";
        let session = eventually("its turn waits for another attempt", || async {
            self.house.world.database.texts(waiting).await.pop()
        })
        .await;
        self.sent("goes-on", "followup", "b").await;
        self.house.until(&account, "goes-on", "queued").await;
        self.api("POST", &format!("/sessions/{session}/stop"), &json!({})).await;
        self.house.until(&account, "is-stopped", "cancelled").await;
        self.api("POST", &format!("/sessions/{session}/resume"), &json!({}))
            .await;
        self.house.until(&account, "goes-on", "delivered").await;

        // Resumed before the turn has ended.
        self.sent("is-ended", "followup", WAITS).await;
        let session = eventually("its turn waits, too", || async {
            self.house.world.database.texts(waiting).await.pop()
        })
        .await;
        self.house.kill(Role::Delivery);
        for act in ["stop", "resume"] {
            self.api("POST", &format!("/sessions/{session}/{act}"), &json!({}))
                .await;
        }
        self.trials.next_step();
        self.house.up().await;
        self.house.until(&account, "is-ended", "cancelled").await;
    }

    /// What waits behind a turn is listed, changed, moved, injected and withdrawn; a steered one ends the turn. Then the lease of
    /// a turn is released.
    async fn edited(&self) {
        let account = &self.tenant.account;
        self.sent("is-edited", "followup", HOLDS).await;
        self.house.until(account, "is-edited", "running").await;
        for id in ["edit-1", "edit-2", "edit-3"] {
            self.sent(id, "followup", "b").await;
            self.house.until(account, id, "queued").await;
        }
        let session =
            "select id::text from session where account_id = 'alder' and task_id = 'live-1' and phase = 'running'";
        let session = self.house.world.database.texts(session).await.remove(0);
        let queue = format!("/sessions/{session}/queue");
        let first = self.api("GET", &format!("{queue}?limit=1"), &Value::Null).await;
        let cursor = first["next_cursor"].as_str().expect("a second page");
        self.api("GET", &format!("{queue}?cursor={cursor}"), &Value::Null).await;
        let change = json!({"revision": 1, "body": "c"});
        self.api("PATCH", &format!("{queue}/edit-1"), &change).await;
        let revision = self.api("GET", &queue, &Value::Null).await["revision"].take();
        let promoted = json!({"revision": revision});
        let promoted = self.api("POST", &format!("{queue}/edit-3/promote"), &promoted).await;
        let order = json!({"revision": promoted["revision"], "items": ["edit-1", "edit-2", "edit-3"]});
        self.api("PUT", &format!("{queue}/order"), &order).await;
        self.api("POST", &format!("{queue}/edit-3/inject"), &json!({})).await;
        self.api("DELETE", &format!("{queue}/edit-1"), &Value::Null).await;
        self.api("POST", &format!("{queue}/edit-2/steer"), &json!({})).await;
        for id in ["edit-2", "edit-3"] {
            self.house.until(account, id, "delivered").await;
        }

        self.sent("lingers", "followup", LINGERS).await;
        self.house.until(account, "lingers", "running").await;
        self.api("POST", &format!("/sessions/{session}/release"), &json!({}))
            .await;
        self.house.until(account, "lingers", "delivered").await;
    }

    /// External models are asked: by a call whose runner is gone, by one whose process has to register again, and by one that ends well.
    async fn modelled(&self) {
        let database = &self.house.world.database;
        // The tool-gateway was restarted, at another address.
        let field = Field::of(self.house);
        let context = "insert into task_context (account_id, task_id, version, body, characters, cut_characters, author_kind, author_id, author_name)
                       values ('alder', 'live-1', 1000, 'c', 1, 0, 'user', 'ann', 'Ann') on conflict do nothing";
        sqlx::query(context).execute(&database.owner).await.unwrap();
        let artifacts =
            "select id::text from artifact where account_id = 'alder' and task_id = 'live-1' order by id limit 1";
        let artifact = database.texts(artifacts).await.remove(0);
        self.api("PATCH", "", &json!({"task_context_layer": "always"})).await;
        // A request of the walk has reset the session that the tenant begins with: the next one has its turn first.
        self.trials.next_step();
        self.house
            .notify(&self.tenant.account, "LIVE-1", "coder", "asks-models", "hello")
            .await;
        self.house.until(&self.tenant.account, "asks-models", "delivered").await;
        let key = "select key from session where account_id = 'alder' and task_id = 'live-1' and kind = 'task' and closed_at is null";
        let session = database.texts(key).await.remove(0);
        let asks = |tool: &str, body: Value| Request {
            door: Door::Agent,
            method: "POST",
            path: format!("/agent/tools/{tool}"),
            token: self.tenant.keys["gateway"].clone(),
            headers: vec![("x-openclaw-session-key", session.clone())],
            body: Some(body.to_string()),
        };
        let orphaned = |orphan: &'static str| async move {
            let running = "select count(*) from tool_call where account_id = 'alder' and state = 'running'";
            eventually("a running call", || async {
                (database.count(running).await == 1).then_some(())
            })
            .await;
            sqlx::query(orphan).execute(&database.owner).await.unwrap();
        };
        for (tool, body, orphan) in [
            (
                "ask_model",
                json!({"request": DRAGS, "artifacts": [artifact]}),
                "update tool_call set runner = gen_random_uuid() where account_id = 'alder' and state = 'running'",
            ),
            (
                "generate_media",
                json!({"request": DRAGS}),
                "update replica set lease_until = now() where id in (select runner from tool_call where state = 'running')",
            ),
        ] {
            self.trials.next_step();
            let request = asks(tool, body);
            let sent = field.send(&request);
            tokio::pin!(sent);
            let answer = tokio::select! {
                answer = &mut sent => panic!("{tool} ended before it had no runner: {answer:?}"),
                () = orphaned(orphan) => sent.await,
            };
            assert_eq!(answer.status, 200, "{tool}: {answer:?}");
        }
        self.trials.next_step();
        let answer = field.send(&asks("generate_media", json!({"request": "r"}))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let turn = "select turn_id::text from notification where account_id = 'alder' and id = 'asks-models'";
        let turn = database.texts(turn).await.remove(0);
        self.trials.next_step();
        self.api("GET", &format!("/audit/isolation?turn={turn}"), &Value::Null)
            .await;
    }

    /// The provider takes no calls: new turns are parked, and one between two attempts waits. Then one tries, and all goes on.
    async fn without_provider(&self) {
        const OPEN: &str = "insert into provider_breaker (key, state, epoch, probe_at, providers)
            values ('default', 'open', 1, now() + interval '1 hour', '{default}')
            on conflict (key) do update set state = 'open', epoch = provider_breaker.epoch + 1, probe_at = excluded.probe_at, providers = excluded.providers";
        let (account, database) = (&self.tenant.account, &self.house.world.database);
        let execute = async |sql: &'static str| {
            sqlx::query(sql).execute(&database.owner).await.unwrap();
        };
        for (task, body) in [("P-1", WAITS), ("P-2", "b"), ("P-3", "b")] {
            self.api("POST", "/tasks", &json!({"id": task, "title": "t"})).await;
            self.trials.next_step();
            self.house.notify(account, task, "coder", task, body).await;
            if task == "P-1" {
                self.house.until(account, "P-1", "running").await;
                let waits =
                    "select count(*) from session where account_id = 'alder' and task_id = 'p-1' and phase = 'backoff'";
                eventually("its turn waits", || async {
                    (database.count(waits).await == 1).then_some(())
                })
                .await;
                execute(OPEN).await;
            }
        }
        let parked = "select count(*) from session where account_id = 'alder' and gate = 'provider'";
        eventually("two are parked", || async {
            (database.count(parked).await == 2).then_some(())
        })
        .await;
        self.trials.next_step();
        execute("update session set wake_at = now() where account_id = 'alder' and task_id = 'p-1'").await;
        let deferred = "select count(*) from session where account_id = 'alder' and task_id = 'p-1' and phase = 'backoff' and wake_at > now()";
        eventually("its turn waits on", || async {
            (database.count(deferred).await == 1).then_some(())
        })
        .await;
        self.trials.next_step();
        execute("update provider_breaker set probe_at = now()").await;
        for id in ["P-2", "P-3"] {
            self.house.until(account, id, "delivered").await;
        }
        self.api("POST", "/tasks/P-1/cancel", &json!({})).await;
        self.house.until(account, "P-1", "cancelled").await;
    }

    async fn open_question(&self) -> String {
        let open = "select id::text from question where account_id = 'alder' and state = 'open' and kind in ('tool', 'review')";
        eventually("somebody is asked", || async {
            self.house.world.database.texts(open).await.pop()
        })
        .await
    }

    /// A plan keeps what a service sends until another plan takes its place and an agent approves it. A question is answered by a
    /// message, another one is withdrawn.
    async fn planned(&self) {
        let account = &self.tenant.account;
        let agent = "select id::text from agent where account_id = 'alder' and slug = 'tester' and removed_at is null";
        let tester = self.house.world.database.texts(agent).await.remove(0);
        let task = json!({"id": "PLAN-1", "title": "t", "assignees": ["coder"]});
        self.api("POST", "/tasks", &task).await;
        let gate = |audience: &str| json!({"plan_gate": {"mode": "required", "audience": [audience]}});
        self.api("PATCH", "/tasks/PLAN-1", &gate("role:admin")).await;
        self.delivered("PLAN-1", "plans-1", "please plan PLAN-1").await;
        self.trials.next_step();
        let waits = json!({"id": "waits-for-plan", "agent": "coder", "body": "b"});
        self.house.publish(account, "PLAN-1", waits).await;
        let keeps =
            "select q.id::text from question q join session s on s.account_id = q.account_id and s.gate_ref = q.id
                     where q.account_id = 'alder' and q.task_id = 'plan-1' and q.state = 'open' and q.kind = 'plan'";
        let plan = eventually("the plan keeps it", || async {
            self.house.world.database.texts(keeps).await.pop()
        })
        .await;
        for path in [format!("/questions/{plan}"), "/questions?kind=plan".to_owned()] {
            self.api("GET", &path, &Value::Null).await;
        }
        // After a first page of one question, a second page has the plan.
        self.requests(vec![self.request("GET", &format!("/questions?{PAGED}"), &Value::Null)])
            .await;
        self.api("PATCH", "/tasks/PLAN-1", &gate(&format!("agent:{tester}")))
            .await;
        self.delivered("PLAN-1", "plans-2", "please plan PLAN-1").await;
        self.house.until(account, "waits-for-plan", "delivered").await;
        self.delivered("PLAN-1", "asks", "please call PLAN-1 review").await;
        self.delivered("PLAN-1", "asks-again", "please call PLAN-1 review")
            .await;
        let open = "select id::text from question
                    where account_id = 'alder' and task_id = 'plan-1' and state = 'open' and kind = 'question' order by id";
        let open = self.house.world.database.texts(open).await;
        let said = json!({"body": "b", "answers": open[0]});
        self.api("POST", "/tasks/PLAN-1/messages", &said).await;
        self.api("POST", &format!("/questions/{}/withdraw", open[1]), &json!({}))
            .await;
        self.delivered("PLAN-1", "plans-3", "please plan PLAN-1").await;
    }

    /// A call waits until it is approved, and is remembered; another one goes with its turn; a third runs. Then the rule changes.
    async fn approved(&self) {
        let account = &self.tenant.account;
        let rule = json!({"scope": {"kind": "agent", "id": "coder"}, "tool": "task_history", "verdict": "ask"});
        let rule = self.api("POST", "/tool-policies", &rule).await["id"].take();
        let rule = format!("/tool-policies/{}", rule.as_str().expect("its id"));
        let calls = "please call LIVE-1 in_progress";
        self.trials.next_step();
        self.house.notify(account, "LIVE-1", "coder", "asks-1", calls).await;
        let question = format!("/questions/{}", self.open_question().await);
        self.api("GET", "/questions?kind=tool", &Value::Null).await;
        let session = self.house.world.database.texts(
            "select session_id::text from question where account_id = 'alder' and state = 'open' and kind = 'tool'",
        );
        let stop = format!("/sessions/{}/stop", session.await[0]);
        self.api("POST", &stop, &json!({"then": "continue"})).await;
        self.house.until(account, "asks-1", "cancelled").await;
        self.api("GET", &question, &Value::Null).await;
        self.trials.next_step();
        self.house.notify(account, "LIVE-1", "coder", "asks-2", calls).await;
        let question = format!("/questions/{}", self.open_question().await);
        let hash = self.api("GET", &question, &Value::Null).await["arguments_hash"].take();
        let approval = json!({"verdict": "approved", "arguments_hash": hash, "remember": true});
        self.api("POST", &format!("{question}/answer"), &approval).await;
        self.house.until(account, "asks-2", "delivered").await;
        self.delivered("LIVE-1", "allowed", calls).await;
        let other = json!({"scope": {"kind": "agent", "id": "coder"}, "tool": "task_history", "verdict": "deny"});
        self.conflicts("POST", "/tool-policies", &other).await;
        self.conflicts("PUT", &rule, &json!({"revision": 9, "visible": true}))
            .await;
        // Too many, of an agent that is not there.
        rows("tool_policy")
            .with("account_id", account)
            .with("scope_kind", "agent")
            .set("scope_id", "gen_random_uuid()::text")
            .from("generate_series(1, 500)")
            .insert(&self.house.world.database.owner)
            .await;
        let another = json!({"scope": {"kind": "agent", "id": "coder"}, "tool": "no_reply", "verdict": "allow"});
        self.api("POST", "/tool-policies", &another).await;
        self.api("PUT", &rule, &json!({"revision": 1, "visible": true})).await;
        self.api("DELETE", &rule, &Value::Null).await;
    }

    /// A task is called done, sent back, called done again, and approved.
    async fn reviewed(&self) {
        self.api(
            "POST",
            "/tasks",
            &json!({"id": "REV-1", "title": "t", "assignees": ["coder"]}),
        )
        .await;
        let stages = json!({"stages": [{"name": "one"}, {"name": "two", "audience": ["role:admin"]}]});
        self.api("PUT", "/tasks/REV-1/stages", &stages).await;
        self.delivered("REV-1", "works", "b").await;
        let done = json!({"status": "done"});
        for (n, answer) in [
            json!({"verdict": "changes", "text": "more"}),
            json!({"verdict": "approved", "accept_stale": true}),
            json!({"verdict": "approved"}),
        ]
        .into_iter()
        .enumerate()
        {
            for _ in 0..2 {
                self.api("PATCH", "/tasks/REV-1", &done).await;
            }
            let question = self.open_question().await;
            self.api("POST", &format!("/questions/{question}/answer"), &answer)
                .await;
            self.delivered("LIVE-1", &format!("meanwhile-{n}"), "b").await;
        }
        self.api("PATCH", "/tasks/REV-1", &json!({"status": "in_progress"}))
            .await;
        self.api("PUT", "/tasks/REV-1/stages", &json!({"stages": [{"name": "three"}]}))
            .await;
        self.api("PATCH", "/tasks/REV-1", &done).await;
        self.api("PATCH", "/tasks/REV-1", &json!({"status": "done", "override": true}))
            .await;
    }

    /// A turn in progress is ended by a hold, and what waits behind it is parked until it is released; then the task is
    /// cancelled.
    async fn paused(&self) {
        let account = &self.tenant.account;
        self.sent("runs", "followup", HOLDS).await;
        self.house.until(account, "runs", "running").await;
        self.sent("is-kept", "followup", "b").await;
        self.house.until(account, "is-kept", "queued").await;
        let running =
            "select id::text from session where account_id = 'alder' and task_id = 'live-1' and closed_at is null";
        let session = &self.house.world.database.texts(running).await[0];
        let scopes = [
            ("account", account.as_str()),
            ("task", "LIVE-1"),
            ("agent", "coder"),
            ("session", session),
        ];
        for (kind, id) in scopes {
            let body = json!({"scope": {"kind": kind, "id": id}, "dry_run": true});
            self.api("POST", "/holds", &body).await;
        }
        let body = json!({"scope": {"kind": "task", "id": "LIVE-1"}, "running": "stop"});
        let hold = self.api("POST", "/holds", &body).await["id"].take();
        self.house.until(account, "runs", "cancelled").await;
        eventually("its session is parked", || async {
            let parked = "select id::text from session where account_id = 'alder' and gate = 'pause'";
            (self.house.world.database.texts(parked).await.len() == 1).then_some(())
        })
        .await;
        let parked = "select id::text from session where account_id = 'alder' and gate = 'pause'";
        let session = self.house.world.database.texts(parked).await.remove(0);
        let change = json!({"revision": 1, "title": "t"});
        self.api("PATCH", &format!("/sessions/{session}/queue/is-kept"), &change)
            .await;
        let hold = hold.as_str().expect("its id");
        self.api("DELETE", &format!("/holds/{hold}"), &Value::Null).await;
        self.house.until(account, "is-kept", "delivered").await;
        self.sent("is-cut", "followup", HOLDS).await;
        self.house.until(account, "is-cut", "running").await;
        for dry_run in [true, false] {
            let body = json!({"reason": "r", "dry_run": dry_run});
            self.api("POST", "/tasks/LIVE-1/cancel", &body).await;
        }
        self.house.until(account, "is-cut", "cancelled").await;
        self.api("PATCH", "/tasks/LIVE-1", &json!({"status": "in_progress"}))
            .await;
    }

    /// Timers: one fires and its turn sets others, one cannot fire, one is cleared, one is of a question that is withdrawn. A
    /// notification is too old.
    async fn timed(&self) {
        let owner = &self.house.world.database.owner;
        let texts = async |sql: &'static str| self.house.world.database.texts(sql).await;
        self.delivered("T-8", "sets-timers", "please call T-8 review").await;
        let fired = async |what: &str| {
            self.trials.next_step();
            sqlx::raw_sql(
                "update timer set due_at = now(), note = 'please call T-8 review'
                 where account_id = 'alder' and task_id = 't-8' and state = 'waiting'",
            )
            .execute(owner)
            .await
            .unwrap();
            eventually(what, || async {
                let due = "select id::text from timer
                           where account_id = 'alder' and task_id = 't-8' and state = 'waiting' and due_at <= now()";
                let working = "select id from notification where account_id = 'alder' and task_id = 't-8'
                               and state in ('queued', 'running')";
                (texts(due).await.is_empty() && texts(working).await.is_empty()).then_some(())
            })
            .await;
        };
        fired("its timer fires").await;
        let close = "update session set closed_at = now(), close_reason = 'reset' where account_id = 'alder' and task_id = 't-8'";
        sqlx::raw_sql(close).execute(owner).await.unwrap();
        fired("its next timer fires without a session").await;

        let bad = "session s where s.account_id = 'alder' and s.task_id = 'live-1' and s.closed_at is null";
        self.trials.next_step();
        rows("timer").with("payload", "{}").from(bad).insert(owner).await;
        eventually("it is tried again later", || async {
            let later = "select id::text from timer where account_id = 'alder' and reason like 'could not fire%'";
            (!texts(later).await.is_empty()).then_some(())
        })
        .await;
        let waits = "select id::text from timer where account_id = 'alder' and task_id = 't-8' and state = 'waiting'";
        let waits = eventually("its turn has set another", async || texts(waits).await.pop()).await;
        self.api("DELETE", &format!("/timers/{waits}"), &Value::Null).await;
        self.api("GET", "/timers?task=T-8", &Value::Null).await;

        let consumer = json!({"name": "wall"});
        for _ in 0..2 {
            self.api("POST", "/event-consumers", &consumer).await;
        }
        self.api("GET", "/event-consumers", &Value::Null).await;
        self.api("DELETE", "/event-consumers/wall", &Value::Null).await;

        let open = "session s where s.account_id = 'alder' and s.task_id = 'live-1' and s.closed_at is null";
        rows("question")
            .set("lapse_at", "now() + interval '1 hour'")
            .with("title", "lapses")
            .from(open)
            .insert(owner)
            .await;
        rows("timer")
            .with("kind", "question_lapse")
            .set("due_at", "q.lapse_at")
            .set("key", "q.id::text")
            .from("session s join question q on q.account_id = s.account_id and q.session_id = s.id and q.title = 'lapses'")
            .insert(owner)
            .await;
        let asks = texts("select id::text from question where account_id = 'alder' and title = 'lapses'").await;
        self.api("POST", &format!("/questions/{}/withdraw", asks[0]), &json!({}))
            .await;

        self.sent("is-old", "followup", HOLDS).await;
        self.house.until(&self.tenant.account, "is-old", "running").await;
        self.sent("too-old", "followup", "b").await;
        self.house.until(&self.tenant.account, "too-old", "queued").await;
        self.trials.next_step();
        let old = "update notification set created_at = now() - interval '30 days' where account_id = 'alder' and id = 'too-old'";
        sqlx::raw_sql(old).execute(owner).await.unwrap();
        self.house.until(&self.tenant.account, "too-old", "failed").await;
        self.sent("cuts-it-off", "steer", "b").await;
        for (id, state) in [("is-old", "cancelled"), ("cuts-it-off", "delivered")] {
            self.house.until(&self.tenant.account, id, state).await;
        }
    }

    /// A task goes to another agent, with a turn in progress and with what waits, and with a plan that awaits approval.
    async fn handed_over(&self) {
        let account = &self.tenant.account;
        let task = json!({"id": "T-9", "title": "t", "assignees": ["coder"]});
        self.api("POST", "/tasks", &task).await;
        self.house.notify(account, "T-9", "tester", "came-before", "b").await;
        self.house.until(account, "came-before", "delivered").await;
        self.house.notify(account, "T-9", "coder", "is-handed", HOLDS).await;
        self.house.until(account, "is-handed", "running").await;
        for id in ["goes-with-it", "goes-too"] {
            self.house.notify(account, "T-9", "coder", id, "b").await;
            self.house.until(account, id, "queued").await;
        }
        let own =
            "session s where s.account_id = 'alder' and s.task_id = 't-9' and s.closed_at is null and s.queued > 0";
        let owner = &self.house.world.database.owner;
        let of_it = "select id::text from session where account_id = 'alder' and task_id = 't-9' and closed_at is null and queued > 0";
        let session = self.house.world.database.texts(of_it).await.remove(0);
        enqueued(account, session)
            .with("id", "stays-behind")
            .with("kind", "timer")
            .insert(owner)
            .await;
        rows("timer")
            .set("due_at", "now() + interval '1 hour'")
            .from(own)
            .insert(owner)
            .await;
        rows("question").with("kind", "plan").from(own).insert(owner).await;
        for dry_run in [true, false] {
            let body = json!({"from": "coder", "to": "tester", "dry_run": dry_run});
            self.api("POST", "/tasks/T-9/handover", &body).await;
        }
        self.house.until(account, "goes-too", "delivered").await;
    }

    async fn sent(&self, id: &str, mode: &str, body: &str) {
        self.trials.next_step();
        let payload = json!({"id": id, "agent": "coder", "body": body, "queue_mode": mode});
        self.house.publish(&self.tenant.account, "LIVE-1", payload).await;
    }

    /// Branches end with their turns, in which they call all tools; by their parent, by a person, by their time, and with a reset.
    async fn branched(&self) {
        let database = &self.house.world.database;
        let live = async |count: usize| {
            let live = "select id::text from branch where account_id = 'alder' and state = 'live' order by id";
            eventually(&format!("{count} branches live"), || async {
                let ids = database.texts(live).await;
                (ids.len() == count).then_some(ids)
            })
            .await
        };
        let parent = "select s.id::text from session s join agent a on a.account_id = s.account_id and a.id = s.agent_id
                      where s.account_id = 'alder' and s.kind = 'task' and s.task_id = 'live-1' and a.slug = 'coder' and s.closed_at is null";
        let splits = async |id: &str, asked: &str| {
            self.delivered("LIVE-1", id, &format!("{BRANCHES}{asked}")).await;
        };
        splits("splits-1", "please call LIVE-1 review").await;
        live(0).await;

        splits("splits-2", HOLDS).await;
        let ids = live(2).await;
        let session = database.texts(parent).await.remove(0);
        for path in [
            "/tasks/LIVE-1/branches?state=live".to_owned(),
            format!("/branches/{}", ids[0]),
            format!("/sessions?parent={session}"),
            "/tasks/LIVE-1/next".to_owned(),
            "/tasks/LIVE-1/graph".to_owned(),
        ] {
            self.api("GET", &path, &Value::Null).await;
        }
        let page = self.api("GET", "/tasks/LIVE-1/graph?limit=1", &Value::Null).await;
        let next = page["next_cursor"].as_str().expect("more turns");
        self.api(
            "GET",
            &format!("/tasks/LIVE-1/graph?limit=1&cursor={next}"),
            &Value::Null,
        )
        .await;
        self.delivered("LIVE-1", "ends-one", &format!("{ENDS}{}", ids[0])).await;
        self.api("POST", &format!("/branches/{}/cancel", ids[1]), &json!({"reason": "r"}))
            .await;
        live(0).await;

        splits("splits-3", HOLDS).await;
        live(2).await;
        self.trials.next_step();
        let due = "update timer set due_at = now() where account_id = 'alder' and kind = 'branch_deadline' and state = 'waiting'";
        sqlx::raw_sql(due).execute(&database.owner).await.unwrap();
        live(0).await;

        splits("splits-4", HOLDS).await;
        live(2).await;
        let session = database.texts(parent).await.remove(0);
        self.api("POST", &format!("/sessions/{session}/reset"), &json!({"reason": "r"}))
            .await;
        live(0).await;
    }

    /// A turn with calls of tools is run again, as it was and with another role.
    async fn replayed(&self) {
        let database = &self.house.world.database;
        let turn = "select t.id::text from turn t join session s on s.account_id = t.account_id and s.id = t.session_id
                    where t.account_id = 'alder' and t.task_id = 'live-1' and t.state = 'finished' and t.context is not null and t.number > 1
                      and s.kind = 'task' and jsonb_array_length(t.journal) > 0 order by t.id limit 1";
        let turn = database.texts(turn).await.remove(0);
        for spec in [json!({}), json!({"profile": {"role": "r"}})] {
            let begun = self.api("POST", &format!("/turns/{turn}/replays"), &spec).await;
            eventually("the replay has ended", || async {
                let open =
                    "select id::text from session where account_id = 'alder' and kind = 'replay' and closed_at is null";
                database.texts(open).await.is_empty().then_some(())
            })
            .await;
            let id = begun["id"].as_str().expect("a replay");
            let replay = self.api("GET", &format!("/replays/{id}"), &Value::Null).await;
            self.api(
                "GET",
                &format!("/turns/{}", replay["turn"].as_str().expect("a turn")),
                &Value::Null,
            )
            .await;
        }
        let list = format!("/turns/{turn}/replays?limit=1");
        let page = self.api("GET", &list, &Value::Null).await;
        let next = page["next_cursor"].as_str().expect("another replay");
        self.api("GET", &format!("{list}&cursor={next}"), &Value::Null).await;
    }

    /// A session is reset while its turn runs, and at rest while a pause keeps what waits; a closed one is not.
    async fn reset(&self) {
        let account = &self.tenant.account;
        let open = "select s.id::text from session s join agent a on a.account_id = s.account_id and a.id = s.agent_id
                    where s.account_id = 'alder' and s.kind = 'task' and s.task_id = 'live-1' and a.slug = 'coder' and s.closed_at is null";
        self.sent("is-reset", "followup", HOLDS).await;
        self.house.until(account, "is-reset", "running").await;
        for id in ["moves-1", "moves-2"] {
            self.sent(id, "followup", "b").await;
            self.house.until(account, id, "queued").await;
        }
        let old = self.house.world.database.texts(open).await.remove(0);
        let reset = json!({"reason": "r"});
        self.api("POST", &format!("/sessions/{old}/reset"), &reset).await;
        self.house.until(account, "is-reset", "cancelled").await;
        for id in ["moves-1", "moves-2"] {
            self.house.until(account, id, "delivered").await;
        }
        self.conflicts("POST", &format!("/sessions/{old}/reset"), &reset).await;

        let hold = json!({"scope": {"kind": "task", "id": "LIVE-1"}});
        let hold = self.api("POST", "/holds", &hold).await;
        self.sent("is-dropped", "followup", "b").await;
        self.house.until(account, "is-dropped", "queued").await;
        let session = self.house.world.database.texts(open).await.remove(0);
        let reset = json!({"reason": "r", "queue": "cancel"});
        self.api("POST", &format!("/sessions/{session}/reset"), &reset).await;
        self.house.until(account, "is-dropped", "cancelled").await;
        let hold = hold["id"].as_str().expect("a hold");
        self.api("DELETE", &format!("/holds/{hold}"), &Value::Null).await;
    }

    /// Every turn but the first of a generation is over its limit of tokens; the instructions are asked for, too.
    async fn rotated(&self) {
        let limits = json!({"rotation": {"tokens_max": 1, "profile_changed": true}});
        self.api("PATCH", "/agents/coder", &limits).await;
        for id in ["turns-1", "turns-2", "turns-3"] {
            self.delivered("LIVE-1", id, "b").await;
        }
        self.api("PATCH", "/agents/coder", &json!({"rotation": null})).await;
    }

    /// A task closes while an item that carries over waits: behind a turn that waits for tools, and behind one that waits for
    /// another attempt.
    async fn closing(&self) {
        let account = &self.tenant.account;
        self.house.notify(account, "T-2", "coder", "waits", WAITS).await;
        eventually("it waits for another attempt", || async {
            let waiting = "select id::text from session where account_id = 'alder' and phase = 'backoff'";
            (!self.house.world.database.texts(waiting).await.is_empty()).then_some(())
        })
        .await;
        for task in ["T-2".to_owned(), format!("{}-1", account.to_uppercase())] {
            let id = format!("goes-on-{task}");
            let payload = json!({"id": id, "agent": "coder", "body": "b", "metadata": {"reopen": true}});
            self.trials.next_step();
            self.house.publish(account, &task, payload).await;
            self.house.until(account, &id, "queued").await;
            // One of them has a stage that is not passed.
            let done = json!({"status": "done", "override": true});
            self.api("PATCH", &format!("/tasks/{task}"), &done).await;
            self.house.until(account, &id, "delivered").await;
        }
    }

    /// An agent has gone round, and is parked; a review whose agent gives no verdict.
    async fn goes_round(&self) {
        let account = &self.tenant.account;
        self.api("POST", "/tasks", &json!({"id": "LOOP-1", "title": "t"})).await;
        self.delivered("LOOP-1", "begins", "b").await;
        let round =
            "update session set streak = 100, streak_since = now() where account_id = 'alder' and task_id = 'loop-1'";
        let owner = &self.house.world.database.owner;
        sqlx::query(round).execute(owner).await.expect("a hundred turns");
        self.trials.next_step();
        let again = json!({"id": "again", "agent": "coder", "body": "b"});
        self.house.publish(account, "LOOP-1", again).await;
        eventually("it is parked", || async {
            let parked = "select id::text from session where account_id = 'alder' and gate = 'no_progress'";
            (!self.house.world.database.texts(parked).await.is_empty()).then_some(())
        })
        .await;
        self.api("PATCH", "/tasks/LOOP-1", &json!({"status": "in_progress"}))
            .await;
        self.api("POST", "/tasks", &json!({"id": "REV-2", "title": "t"})).await;
        let agent = "select id::text from agent where account_id = 'alder' and slug = 'coder' and removed_at is null";
        let coder = self.house.world.database.texts(agent).await.remove(0);
        let stages = json!({"stages": [{"name": "one", "audience": [format!("agent:{coder}")]}]});
        self.api("PUT", "/tasks/REV-2/stages", &stages).await;
        self.api("PATCH", "/tasks/REV-2", &json!({"status": "done"})).await;
        eventually("its reviewer had a turn", || async {
            let had =
                "select id from notification where account_id = 'alder' and task_id = 'rev-2' and state = 'delivered'";
            (!self.house.world.database.texts(had).await.is_empty()).then_some(())
        })
        .await;
    }

    /// A task that nothing moves on for an hour: its agent is told. What failed before has other facts by now.
    async fn stranded(&self) {
        self.goes_round().await;
        let account = &self.tenant.account;
        self.api("PATCH", "", &json!({"liveness": "recover"})).await;
        for id in ["LEFT-1", "LEFT-2"] {
            let task = json!({"id": id, "title": "t", "assignees": ["coder"]});
            self.api("POST", "/tasks", &task).await;
        }
        let left = "update task set updated_at = updated_at - interval '1 hour' where account_id = 'alder' and id in ('left-1', 'left-2')";
        sqlx::query(left)
            .execute(&self.house.world.database.owner)
            .await
            .expect("an hour passes");
        self.trials.next_step();
        let told = async |of_task: &'static str| {
            eventually("its agent is told", || async {
                self.house.world.database.texts(of_task).await.pop()
            })
            .await
        };
        let item = told("select notification_id from recovery where account_id = 'alder' and task_id = 'left-1'").await;
        let dismissed = told("select id::text from recovery where account_id = 'alder' and task_id = 'left-2'").await;
        // Nothing has moved this one on, so no sweep closes it.
        self.trials.next_step();
        self.api("POST", &format!("/recoveries/{dismissed}/dismiss"), &json!({}))
            .await;
        self.house.until(account, &item, "delivered").await;
        self.api("PATCH", "/tasks/LEFT-1", &json!({"status": "done"})).await;
        self.house.until(account, "again", "delivered").await;
        eventually("the reviewer is asked once more", || async {
            let asked = "select id::text from recovery where account_id = 'alder' and cause = 'review_undecided'";
            (!self.house.world.database.texts(asked).await.is_empty()).then_some(())
        })
        .await;
        self.api("PATCH", "/tasks/LOOP-1", &json!({"status": "blocked"})).await;
        self.api("GET", "/tasks/LOOP-1/next", &Value::Null).await;
    }

    async fn agent_goes(&self) {
        self.api("DELETE", "/agents/tester", &Value::Null).await;
        self.api(
            "DELETE",
            &format!("/agents/{}-reviewer", self.tenant.account),
            &Value::Null,
        )
        .await;
    }
}
