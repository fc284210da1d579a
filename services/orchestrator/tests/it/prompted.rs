//! Turns as delivery writes them, with prompts of the one renderer, for those who read prompts back.

use domain::{
    AccountId, Actor, AgentSlug, InstructionLayout, KeptContext, MessageId, NotificationId, StopKind, TaskId,
    TaskStatus, TurnContext, TurnId,
};
use prompt::{
    CalledTool, Extract, Further, Injected, InputFacts, InstructionFacts, KnownContext, Manifest, MarkSecret,
    OverviewEntry, PROFILE_VERSION, Past, PastLimits, PastTurn, Stopped, TaskFacts, ThreadMessage, ToolNames, input,
    instructions,
    manifest::{Because, Offer},
    note, past,
};
use serde_json::{Value, json};
use testkit::rows;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::world::{Tenant, World};

pub(crate) const TOOLS: [&str; 2] = ["task_history", "no_reply"];
pub(crate) const DESCRIPTION: &str = "Main must be green.";
pub(crate) const ROLE: &str = "Write code.";
pub(crate) const BRIEFING: &str = "We ship on Friday.";

/// An agent's session in an account.
pub(crate) struct Desk<'a> {
    pub world: &'a World,
    pub tenant: &'a Tenant,
    pub agent: String,
    /// As its client spelled it.
    pub task: Option<String>,
    pub session: Uuid,
}

/// What a turn is told, and the rows that say so.
pub(crate) struct Told {
    pub id: TurnId,
    pub number: i64,
    pub facts: InputFacts,
    pub past: Past,
    pub context: TurnContext,
    pub notes: Vec<Value>,
    pub layout: InstructionLayout,
    pub is_coordinator: bool,
    pub is_branch: bool,
    /// The version of the task's context that it has, and its text.
    pub known: Option<(i32, &'static str)>,
    pub manifest: Option<Manifest>,
    pub input: Option<String>,
}

pub(crate) fn ann() -> Actor {
    actor("u-1", "A person")
}

fn actor(id: &str, name: &str) -> Actor {
    serde_json::from_value(json!({"kind": "user", "id": id, "name": name})).unwrap()
}

pub(crate) fn goes_on(thread: i32) -> TurnContext {
    serde_json::from_value(json!({"asked": "continue", "used": "continue", "thread": thread})).unwrap()
}

impl<'a> Desk<'a> {
    /// An account with an agent and two tasks, and the agent's session on the first.
    pub(crate) async fn open(world: &'a World, tenant: &'a Tenant) -> Desk<'a> {
        let agent = world.agent(tenant, "coder").await;
        for task in ["PROJ-7", "PROJ-8"] {
            world.task(tenant, task, &["coder"]).await;
        }
        let set = format!(
            "update agent set role = '{ROLE}' where account_id = '{0}';
             update task set description = '{DESCRIPTION}' where account_id = '{0}';
             update account set briefing = '{BRIEFING}' where id = '{0}'",
            tenant.id
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(set))
            .execute(&world.test.owner)
            .await
            .unwrap();
        let desk = Desk {
            world,
            tenant,
            agent,
            task: Some("PROJ-7".to_owned()),
            session: Uuid::nil(),
        };
        desk.on(Some("PROJ-7")).await
    }

    /// The same agent's session on another task, or on none.
    pub(crate) async fn on(&self, task: Option<&str>) -> Desk<'a> {
        let session = Uuid::now_v7();
        let row = rows("session").with("account_id", &self.tenant.id).with("id", session);
        let row = match task {
            Some(task) => row.with("task_id", task.to_ascii_lowercase()),
            None => row,
        };
        row.with("agent_id", &self.agent).insert(&self.world.test.owner).await;
        Desk {
            world: self.world,
            tenant: self.tenant,
            agent: self.agent.clone(),
            task: task.map(str::to_owned),
            session,
        }
    }

    /// A notification of the session, with its row.
    pub(crate) async fn notified(&self, id: &str, body: &str) -> InputFacts {
        let row = rows("notification")
            .with("id", id)
            .with("body", body)
            .with("title", "CI");
        let row = row.with("state", "delivered").with("position", 1);
        let of = format!(
            "session s where s.account_id = '{}' and s.id = '{}'",
            self.tenant.id, self.session
        );
        row.from(of).insert(&self.world.test.owner).await;
        InputFacts {
            notification: NotificationId::parse(id).unwrap(),
            kind: "test".to_owned(),
            answer_to: None,
            result_of: None,
            mail: None,
            sender: ann(),
            title: Some("CI".to_owned()),
            body: body.to_owned(),
            about_message: None,
            task: self.task.as_ref().map(|task| TaskFacts {
                id: TaskId::parse(task).unwrap(),
                title: format!("Title of {task}"),
                description: DESCRIPTION.to_owned(),
                status: TaskStatus::Inbox,
            }),
            extract: Extract::default(),
            description: None,
            briefing: None,
            overview: None,
            further: Vec::new(),
            is_interrupted: false,
            stopped: None,
            subagents: Vec::new(),
        }
    }

    /// A message in a task's thread, with its row.
    pub(crate) async fn message(&self, task: &str, body: &str) -> ThreadMessage {
        let id = MessageId(Uuid::now_v7());
        let row = rows("message")
            .with("account_id", &self.tenant.id)
            .with("id", id)
            .with("body", body);
        let row = row
            .with("task_id", task.to_ascii_lowercase())
            .set("created_at", "'2026-01-02 03:04:05.6+00'");
        row.insert(&self.world.test.owner).await;
        ThreadMessage {
            id,
            author: ann(),
            body: body.to_owned(),
            at: OffsetDateTime::from_unix_timestamp(1_767_323_045).unwrap(),
        }
    }

    pub(crate) fn told(&self, number: i64, facts: InputFacts) -> Told {
        Told {
            id: TurnId(Uuid::now_v7()),
            number,
            facts,
            past: Past::default(),
            context: goes_on(1),
            notes: Vec::new(),
            layout: InstructionLayout::Layered,
            is_coordinator: false,
            is_branch: false,
            known: None,
            manifest: None,
            input: None,
        }
    }

    /// The turn's row; gives its manifest.
    pub(crate) async fn write(&self, told: &Told) -> Manifest {
        let account = AccountId::parse(&self.tenant.id).unwrap();
        let mut manifest = Manifest::new(told.layout);
        let slug = AgentSlug::parse("coder").unwrap();
        let kept = told
            .known
            .and_then(|(version, body)| Some((version, KeptContext::of(body)?)));
        let task_context = kept
            .zip(told.facts.task.as_ref())
            .map(|((version, kept), task)| KnownContext {
                task: &task.id,
                version,
                body: kept.body,
                size: kept.size,
            });
        let profile = instructions(
            &InstructionFacts {
                account: &account,
                agent_slug: &slug,
                agent_name: "coder",
                agent_role: ROLE,
                has_task: self.task.is_some(),
                is_coordinator: told.is_coordinator,
                is_branch: told.is_branch,
                orchestrator: None,
                persona: None,
                task_context,
                tools: &ToolNames::new(str::to_owned),
            },
            &mut manifest,
        );
        let marks = MarkSecret::new([7; 32]).marks(&account, told.id);
        let text = input(&told.facts, marks, &mut manifest);
        manifest.parts.extend(told.past.parts.iter().cloned());
        manifest.left_out.extend(told.past.left_out);
        manifest.context = Some(told.context.clone());
        manifest.tools = Some(Offer::of(TOOLS.into_iter()));
        let manifest = told.manifest.clone().unwrap_or(manifest);
        let text = told.input.clone().unwrap_or(text);
        let keep = "insert into instruction_text (account_id, hash, version, body) values ($1, $2, $3, $4) on conflict do nothing";
        sqlx::query(keep)
            .bind(&self.tenant.id)
            .bind(&profile.hash)
            .bind(PROFILE_VERSION)
            .bind(&*profile.text)
            .execute(&self.world.test.owner)
            .await
            .unwrap();
        let ids =
            std::iter::once(&told.facts.notification).chain(told.facts.further.iter().map(|item| &item.notification));
        let ids: Vec<String> = ids.map(|id| format!("\"{id}\"")).collect();
        let row = rows("turn")
            .with("id", told.id)
            .with("number", told.number)
            .with("input", &text)
            .with("notification_ids", format!("{{{}}}", ids.join(",")))
            .with("profile_version", PROFILE_VERSION)
            .with("profile_hash", &profile.hash)
            .with("manifest", json!({"layout": told.layout}))
            .set(
                "manifest_packed",
                format!("'\\x{}'::bytea", hex::encode(manifest.packed())),
            )
            .with("tools", format!("{{{}}}", TOOLS.join(",")))
            .with("context", json!(told.context))
            .with("thread", told.context.thread)
            .with("notes", json!(told.notes))
            .with("reply", format!("Reply {}.", told.number));
        let of = format!(
            "session s where s.account_id = '{}' and s.id = '{}'",
            self.tenant.id, self.session
        );
        row.from(of).insert(&self.world.test.owner).await;
        manifest
    }

    /// A turn about one notification.
    pub(crate) async fn turn(&self, number: i64) -> Told {
        let id = format!("n-{}-{number}", self.session.simple());
        let facts = self.notified(&id, &format!("Body {number}.")).await;
        let told = self.told(number, facts);
        self.write(&told).await;
        told
    }

    /// A turn that was written, as later ones know it.
    pub(crate) fn past_turn(&self, told: &Told, manifest: &Manifest) -> PastTurn {
        let account = AccountId::parse(&self.tenant.id).unwrap();
        let marks = MarkSecret::new([7; 32]).marks(&account, told.id);
        PastTurn {
            id: told.id,
            state: domain::TurnState::Finished,
            input: input(&told.facts, marks, &mut Manifest::new(told.layout)),
            manifest: Some(manifest.clone()),
            notes: Vec::new(),
            called: Vec::<CalledTool>::new(),
            reply: Some(format!("Reply {}.", told.number)),
        }
    }

    /// The entries of turns that were written, newest first.
    pub(crate) fn past_of(&self, turns: &[(&Told, Manifest)], limits: &PastLimits) -> Past {
        let entry = |(told, manifest): &(&Told, Manifest)| self.past_turn(told, manifest);
        let turns: Vec<PastTurn> = turns.iter().map(entry).collect();
        past(&turns, turns.len() + 3, limits, Because::Past, &[])
    }

    /// A note with one item, as the turn has it beside the results of its first answer.
    pub(crate) async fn noted(&self, turn: TurnId, id: &str, body: &str) -> Value {
        let facts = self.notified(id, body).await;
        let item = Injected {
            notification: facts.notification,
            sender: facts.sender,
            title: facts.title,
            body: facts.body,
        };
        let account = AccountId::parse(&self.tenant.id).unwrap();
        let marks = MarkSecret::new([7; 32]).marks_of_note(&account, turn, 0);
        json!({"round": 1, "text": note([&item], marks), "notification_ids": [id]})
    }

    pub(crate) async fn audit(&self, query: &str) -> Value {
        let path = self.tenant.path(&format!("/audit/isolation?{query}"));
        let answer = self.world.get(&self.tenant.member, &path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }
}

pub(crate) fn further(facts: &InputFacts) -> Further {
    Further {
        notification: facts.notification.clone(),
        title: facts.title.clone(),
        body: facts.body.clone(),
    }
}

/// What is told of a turn that was about this.
pub(crate) fn stopped(facts: &InputFacts) -> Stopped {
    Stopped {
        kind: StopKind::Stopped,
        by: "Ann".to_owned(),
        at: OffsetDateTime::UNIX_EPOCH,
        about: Some((facts.sender.clone(), facts.body.clone())),
    }
}

pub(crate) fn overview(task: &str) -> Vec<OverviewEntry> {
    vec![OverviewEntry {
        id: TaskId::parse(task).unwrap(),
        title: format!("Title of {task}"),
        status: TaskStatus::Inbox,
    }]
}
