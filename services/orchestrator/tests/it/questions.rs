//! Questions over the API: who may answer, once; withdrawn, listed, forgotten; and what crosses an answer.

use contracts::{Root, outgoing::Origin};
use domain::{AccountId, Actor, AgentId, Audience, Generation, QuestionId, SessionId, SessionKind, TaskId, UserId};
use orchestrator::forget::forget_once;
use serde_json::{Value, json};
use storage::{
    Accounts, Role, Setting,
    lifecycle::plan::{NewPlan, plan_submit},
    question::{About, Asker, Choices, NewQuestion, question_open},
};
use testkit::rows;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    members::member,
    seed,
    world::{Answer, Tenant, World},
};

struct Scene {
    world: World,
    tenant: Tenant,
    agent: AgentId,
    session: SessionId,
}

impl Scene {
    async fn new() -> Scene {
        let world = World::new().await;
        let tenant = world.tenant("acme").await;
        let coder = world.agent(&tenant, "coder").await;
        world.task(&tenant, "PROJ-7", &["coder"]).await;
        let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
        Scene {
            agent: AgentId::parse(&coder).unwrap(),
            session: SessionId(session),
            world,
            tenant,
        }
    }

    fn asker(&self) -> Asker {
        Asker {
            session: self.session,
            kind: SessionKind::Task,
            generation: Generation::FIRST,
            agent: self.agent,
            turn: None,
            tool_call: None,
        }
    }

    fn actor(&self) -> Actor {
        Actor {
            kind: domain::ActorKind::Agent,
            id: self.agent.to_string(),
            name: "coder".to_owned(),
            via: None,
        }
    }

    /// As the agent's tool does.
    async fn ask(&self, audience: Audience) -> QuestionId {
        let database = self.world.test.connect(Role::ToolGateway).await;
        let (account, task) = (AccountId::parse("acme").unwrap(), TaskId::parse("PROJ-7").unwrap());
        let tx = database.begin(&Accounts::one(&account)).await.unwrap();
        let new = NewQuestion {
            account: &account,
            about: About::Question,
            task: Some(&task),
            asker: Some(self.asker()),
            from: &self.actor(),
            title: "Which one?",
            body: "Which one?",
            options: Choices::default(),
            multiple: false,
            free_text: true,
            audience: vec![audience],
            lapse_at: None,
            chain: 0,
        };
        let (id, _) = question_open(&tx, &new, &setting(&Root::default())).await.unwrap();
        tx.commit().await.unwrap();
        id
    }

    async fn plan(&self) -> QuestionId {
        let database = self.world.test.connect(Role::ToolGateway).await;
        let (account, task) = (AccountId::parse("acme").unwrap(), TaskId::parse("PROJ-7").unwrap());
        let tx = database.begin(&Accounts::one(&account)).await.unwrap();
        let new = NewPlan {
            account: &account,
            task: &task,
            asker: self.asker(),
            by: &self.actor(),
            summary: "Two steps",
            plan: "One, two.",
        };
        let (id, ..) = plan_submit(&tx, &new, &setting(&Root::default()))
            .await
            .unwrap()
            .unwrap();
        tx.commit().await.unwrap();
        id
    }

    async fn answer(&self, token: &str, id: QuestionId, answer: Value) -> Answer {
        let path = self.tenant.path(&format!("/questions/{id}/answer"));
        self.world.post(token, &path, answer).await
    }

    async fn items(&self) -> Vec<String> {
        let items = "select kind || ' ' || state from notification order by position";
        self.world.test.texts(items).await
    }

    async fn task_status(&self) -> Value {
        let task = self
            .world
            .get(&self.tenant.member, &self.tenant.path("/tasks/PROJ-7"))
            .await;
        task.body["status"].clone()
    }
}

fn setting(root: &Root) -> Setting<'_> {
    Setting {
        root,
        source: "/signalbox/test",
        origin: Origin::default(),
        now: OffsetDateTime::now_utc(),
    }
}

fn said(answer: &Answer) -> (u16, &str) {
    (answer.status.as_u16(), answer.body["code"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn only_the_asked_answer_and_only_once() {
    let scene = Scene::new().await;
    let tenant = &scene.tenant;
    let text = || json!({"text": "This one"});
    let id = scene.ask(Audience::Admins).await;
    for token in [&tenant.service, &tenant.publisher, &tenant.gateway] {
        let refused = scene.answer(token, id, text()).await;
        assert_eq!(said(&refused), (403, "forbidden"));
    }
    let refused = scene.answer(&tenant.member, id, text()).await;
    assert_eq!(said(&refused), (403, "not_asked"));
    let shown = scene
        .world
        .get(&tenant.member, &tenant.path(&format!("/questions/{id}")))
        .await;
    assert_eq!(
        (&shown.body["may_answer"], &shown.body["agent"]),
        (&json!(false), &json!("coder"))
    );
    for (wrong, field) in [
        (json!({}), "text"),
        (json!({"verdict": "approved"}), "verdict"),
        (json!({"options": ["a"]}), "options"),
    ] {
        let invalid = scene.answer(&tenant.admin, id, wrong).await;
        assert_eq!(said(&invalid), (422, "invalid_answer"));
        assert!(
            invalid.body["detail"].as_str().unwrap().starts_with(field),
            "{invalid:?}"
        );
    }
    let key = "same";
    let path = tenant.path(&format!("/questions/{id}/answer"));
    let keyed = async || {
        let call = scene.world.call(axum::http::Method::POST, &path).token(&tenant.admin);
        call.header("idempotency-key", key).json(&text()).send().await
    };
    let (first, again) = (keyed().await, keyed().await);
    assert_eq!((first.status.as_u16(), &first.body["state"]), (200, &json!("answered")));
    assert_eq!(again.body, first.body);
    let second = scene.answer(&tenant.admin, id, text()).await;
    assert_eq!(said(&second), (409, "already_answered"));
    assert_eq!(scene.items().await, ["answer queued"]);
    let missing = scene.answer(&tenant.admin, QuestionId(Uuid::nil()), text()).await;
    assert_eq!(said(&missing), (404, "not_found"));
    let events = scene
        .world
        .sent_on("signalbox.event.acme.PROJ-7.question.answered")
        .await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].payload["data"]["by"]["name"], "a admin");
}

#[tokio::test]
async fn two_answers_at_once_have_one_winner() {
    let scene = Scene::new().await;
    for round in 1..=8 {
        let id = scene.ask(Audience::Members).await;
        let (member, admin) = (&scene.tenant.member, &scene.tenant.admin);
        let (one, two) = futures::join!(
            scene.answer(member, id, json!({"text": "One"})),
            scene.answer(admin, id, json!({"text": "Two"})),
        );
        let mut told = [said(&one), said(&two)];
        told.sort_unstable();
        assert_eq!(told, [(200, ""), (409, "already_answered")]);
        assert_eq!(scene.items().await.len(), round, "one answer, one item");
    }
}

#[tokio::test]
async fn an_answer_and_the_end_of_its_task_have_one_order() {
    for _ in 0..6 {
        let scene = Scene::new().await;
        let id = scene.ask(Audience::Members).await;
        let done = async {
            let path = scene.tenant.path("/tasks/PROJ-7");
            scene
                .world
                .patch(&scene.tenant.member, &path, json!({"status": "done"}))
                .await
        };
        let (answered, done) = futures::join!(scene.answer(&scene.tenant.member, id, json!({"text": "x"})), done);
        assert_eq!(done.status, 200, "{done:?}");
        match said(&answered) {
            // Its item is of no use any more.
            (200, _) => assert_eq!(scene.items().await, ["answer cancelled"]),
            told => {
                assert_eq!(told, (409, "cancelled"));
                assert_eq!(scene.items().await, [""; 0]);
            }
        }
        let open = "select count(*) from question where state = 'open'";
        assert_eq!(scene.world.test.count(open).await, 0);
    }
}

#[tokio::test]
async fn a_withdrawn_question_tells_the_asker_that_there_is_no_answer() {
    let scene = Scene::new().await;
    let id = scene.ask(Audience::Members).await;
    let path = scene.tenant.path(&format!("/questions/{id}/withdraw"));
    let withdrawn = scene
        .world
        .post(&scene.tenant.member, &path, json!({"reason": "obsolete"}))
        .await;
    assert_eq!(
        (withdrawn.status.as_u16(), &withdrawn.body["reason"]),
        (200, &json!("obsolete"))
    );
    let again = scene.world.post(&scene.tenant.member, &path, json!({})).await;
    assert_eq!(said(&again), (409, "withdrawn"));
    let bodies = scene
        .world
        .test
        .texts("select title || ': ' || body from notification")
        .await;
    assert_eq!(
        bodies,
        ["Your question was withdrawn: Which one?: a member withdrew it. There is no answer.\nReason: obsolete\n"]
    );
    let late = scene.answer(&scene.tenant.admin, id, json!({"text": "x"})).await;
    assert_eq!(said(&late), (409, "withdrawn"));
}

#[tokio::test]
async fn lists_show_what_is_asked_and_of_whom() {
    let scene = Scene::new().await;
    let tenant = &scene.tenant;
    let for_admins = scene.ask(Audience::Admins).await;
    let for_all = scene.ask(Audience::Members).await;
    let ids = async |token: &str, query: &str| -> Vec<String> {
        let listed = scene
            .world
            .get(token, &tenant.path(&format!("/questions?{query}")))
            .await;
        assert_eq!(listed.status, 200, "{listed:?}");
        let items = listed.body["items"].as_array().unwrap().iter();
        items.map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    };
    let (admins, all) = (for_admins.to_string(), for_all.to_string());
    assert_eq!(ids(&tenant.member, "").await, [all.clone(), admins.clone()]);
    assert_eq!(ids(&tenant.member, "mine=true").await, std::slice::from_ref(&all));
    assert_eq!(ids(&tenant.admin, "mine=true").await, [all.clone(), admins.clone()]);
    assert_eq!(ids(&tenant.service, "mine=true").await, [""; 0]);
    assert_eq!(
        ids(&tenant.member, "task=proj-7&state=open&kind=question").await.len(),
        2
    );
    assert_eq!(ids(&tenant.member, "kind=plan").await, [""; 0]);
    scene.answer(&tenant.admin, for_admins, json!({"text": "x"})).await;
    assert_eq!(ids(&tenant.admin, "mine=true").await, std::slice::from_ref(&all));
    assert_eq!(
        ids(&tenant.admin, "state=answered").await,
        std::slice::from_ref(&admins)
    );
    // Ended ones are kept for a time.
    forget_once(&scene.world.app, &CancellationToken::new()).await.unwrap();
    assert_eq!(ids(&tenant.admin, "").await.len(), 2);
    scene
        .world
        .execute("update question set ended_at = now() - interval '1 year' where ended_at is not null")
        .await;
    forget_once(&scene.world.app, &CancellationToken::new()).await.unwrap();
    assert_eq!(ids(&tenant.admin, "").await, [all]);
}

#[tokio::test]
async fn a_message_answers_only_what_its_author_is_asked() {
    let scene = Scene::new().await;
    let tenant = &scene.tenant;
    scene.world.task(tenant, "PROJ-8", &[]).await;
    let id = scene.ask(Audience::Members).await;
    let post = async |token: &str, task: &str| {
        let path = tenant.path(&format!("/tasks/{task}/messages"));
        scene
            .world
            .post(token, &path, json!({"body": "This one", "answers": id}))
            .await
    };
    assert_eq!(said(&post(&tenant.service, "PROJ-7").await), (403, "not_asked"));
    assert_eq!(said(&post(&tenant.member, "PROJ-8").await), (400, "invalid_field"));
    let thread = "select count(*) from message";
    assert_eq!(scene.world.test.count(thread).await, 0, "both or none");
    let posted = post(&tenant.member, "PROJ-7").await;
    assert_eq!((posted.status.as_u16(), &posted.body["notified"]), (201, &json!([])));
    assert_eq!(said(&post(&tenant.member, "PROJ-7").await), (409, "already_answered"));
    assert_eq!(scene.world.test.count(thread).await, 1);
    assert_eq!(scene.items().await, ["answer queued"]);
}

#[tokio::test]
async fn each_end_of_a_plan_moves_its_task() {
    let scene = Scene::new().await;
    let tenant = &scene.tenant;
    let task = tenant.path("/tasks/PROJ-7");
    let patch = async |status: &str| {
        scene
            .world
            .patch(&tenant.member, &task, json!({"status": status}))
            .await
    };
    patch("review").await;
    for (answer, status) in [
        (json!({"verdict": "denied"}), "review"),
        (json!({"verdict": "changes", "text": "smaller"}), "review"),
        (json!({"verdict": "approved"}), "in_progress"),
    ] {
        let id = scene.plan().await;
        assert_eq!(scene.task_status().await, "awaiting_approval");
        let held = patch("review").await;
        assert_eq!(said(&held), (409, "awaiting_answer"));
        assert!(
            held.body["detail"].as_str().unwrap().contains(&id.to_string()),
            "{held:?}"
        );
        let answered = scene.answer(&tenant.member, id, answer).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        assert_eq!(scene.task_status().await, status);
    }
    let id = scene.plan().await;
    let withdrawn = tenant.path(&format!("/questions/{id}/withdraw"));
    scene.world.post(&tenant.admin, &withdrawn, json!({})).await;
    assert_eq!(scene.task_status().await, "in_progress");
    // Removing the agent withdraws its plan.
    let id = scene.plan().await;
    let gone = scene
        .world
        .delete(&tenant.admin, &tenant.path(&format!("/agents/{}", scene.agent)))
        .await;
    assert!(gone.status.is_success(), "{gone:?}");
    assert_eq!(scene.task_status().await, "in_progress");
    let late = scene.answer(&tenant.admin, id, json!({"verdict": "approved"})).await;
    assert_eq!(said(&late), (409, "withdrawn"));
}

#[tokio::test]
async fn a_plan_gate_is_the_tasks_own_or_its_accounts() {
    let scene = Scene::new().await;
    let tenant = &scene.tenant;
    let task = tenant.path("/tasks/PROJ-7");
    let change = async |gate: Value| {
        scene
            .world
            .patch(&tenant.member, &task, json!({"plan_gate": gate}))
            .await
    };
    let required = json!({"mode": "required", "audience": ["role:admin"]});
    assert_eq!(change(required.clone()).await.body["plan_gate"], required);
    assert_eq!(
        said(&change(json!({"mode": "required", "audience": ["ann"]})).await),
        (400, "invalid_field")
    );
    // Who does not decide on the plan does not take the decision away.
    for looser in [
        Value::Null,
        json!({"mode": "off"}),
        json!({"mode": "required"}),
        json!({"mode": "required", "audience": ["role:member", "role:admin"]}),
    ] {
        assert_eq!(said(&change(looser).await), (403, "not_asked"));
    }
    let by_admin = scene
        .world
        .patch(&tenant.admin, &task, json!({"plan_gate": null}))
        .await;
    assert_eq!(by_admin.body["plan_gate"], Value::Null, "{by_admin:?}");
    let account = json!({"plan_gate": {"mode": "required"}});
    let changed = scene.world.patch(&tenant.admin, &tenant.path(""), account).await;
    assert_eq!(
        changed.body["plan_gate"],
        json!({"mode": "required", "audience": null}),
        "{changed:?}"
    );
    let events = scene.world.sent_on("signalbox.event.acme.PROJ-7.task.changed").await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].payload["data"]["what"], "plan_gate");
}

/// A question to a person is mail to that person. A question to a role is mail to the task's owner; without an owner, to the members who
/// wrote last in the task's thread; without such members, to the admins.
#[tokio::test]
async fn who_may_answer_hears_of_it_and_of_its_end() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let ann = member(world, &scene.tenant, "ann", "admin").await;
    let ben = member(world, &scene.tenant, "ben", "member").await;
    member(world, &scene.tenant, "cleo", "member").await;
    let heard = async |question: QuestionId| {
        let sql =
            format!("select string_agg(to_user, ' ' order by to_user) from mail where question_id = '{question}'");
        let heard: Option<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&world.test.owner)
            .await
            .unwrap();
        heard.unwrap_or_default()
    };
    assert_eq!(
        heard(scene.ask(Audience::Members).await).await,
        "ann",
        "nobody else is near"
    );
    let named = scene.ask(Audience::User(UserId::parse("cleo").unwrap())).await;
    assert_eq!(heard(named).await, "cleo");
    let of_orchestrator = scene
        .ask(Audience::Orchestrator(Some(UserId::parse("ben").unwrap())))
        .await;
    assert_eq!(
        heard(of_orchestrator).await,
        "ben",
        "the person answers for the orchestrator"
    );
    let path = scene.tenant.path("/tasks/PROJ-7/messages");
    let wrote = world.post(&ben, &path, json!({"body": "I look at it."})).await;
    assert_eq!(wrote.status, 201, "{wrote:?}");
    let asked = scene.ask(Audience::Members).await;
    assert_eq!(heard(asked).await, "ben", "who wrote last");
    assert_eq!(
        heard(scene.ask(Audience::Admins).await).await,
        "ann",
        "who wrote may not answer"
    );
    world.execute("update task set board = 'user:cleo'").await;
    assert_eq!(
        heard(scene.ask(Audience::Members).await).await,
        "cleo",
        "whose task it is"
    );

    let inbox = world.get(&ben, "/api/me/inbox").await;
    let shown = inbox.body["items"].as_array().unwrap().iter();
    let mail = shown
        .clone()
        .find(|mail| mail["question_id"] == asked.to_string())
        .unwrap();
    assert_eq!(
        json!([
            mail["message_type"],
            mail["why"],
            mail["context_task_id"],
            mail["from"]["kind"],
            mail["read_at"]
        ]),
        json!(["question", "question", "proj-7", "session", null])
    );
    assert!(
        mail["content"].as_str().unwrap().starts_with("Which one?\n\nQuestion "),
        "{mail}"
    );
    let answered = scene.answer(&ann, asked, json!({"text": "The second."})).await;
    assert_eq!(answered.status, 200, "{answered:?}");
    let path = format!("/api/me/inbox/{}", mail["id"].as_str().unwrap());
    let mail = world.get(&ben, &path).await.body;
    assert_eq!(mail["receipt"]["reason"], "answered by ann's name", "{mail}");
    assert!(!mail["read_at"].is_null(), "{mail}");
}

/// An outage that stops a thousand tasks fills no inbox.
#[tokio::test]
async fn who_has_very_much_to_read_is_told_no_more() {
    let scene = Scene::new().await;
    let world = &scene.world;
    member(world, &scene.tenant, "ann", "admin").await;
    rows("mail")
        .with("to_user", "ann")
        .set("from_user", "null")
        .with("from_service", "builds")
        .with("from_name", "builds")
        .from("generate_series(1, 999) n")
        .insert(&world.test.owner)
        .await;
    let count = "select count(*) from mail where question_id is not null";
    for expected in [1, 1] {
        scene.ask(Audience::Members).await;
        assert_eq!(world.test.count(count).await, expected);
    }
}
