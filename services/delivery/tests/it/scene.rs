//! One account, one agent, one task, an open session, and delivery with a stub provider.

use std::{net::SocketAddr, ops::Deref};

use domain::{AccountId, AgentId, SessionId, TaskId};
use sqlx::{PgPool, Row};
use storage::Role;
use testkit::{Running, Seen, StubProvider, World, eventually, rows};

use crate::told::nothing_twice;

pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) provider: StubProvider,
    pub(crate) account: AccountId,
    pub(crate) agent: AgentId,
    pub(crate) task: TaskId,
    pub(crate) session: SessionId,
    pub(crate) key: String,
}

/// Delivery in a scene.
pub(crate) struct Delivery {
    running: Running<SocketAddr>,
    owner: PgPool,
}

impl Delivery {
    /// An orderly stop. What the turns of the scene were told is then complete, and nothing of it twice.
    pub(crate) async fn stop(self) {
        self.running.stop().await;
        nothing_twice(&self.owner).await;
    }

    pub(crate) fn cut_off(self) {
        self.running.cut_off();
    }
}

impl Deref for Delivery {
    type Target = Running<SocketAddr>;

    fn deref(&self) -> &Running<SocketAddr> {
        &self.running
    }
}

impl Scene {
    pub(crate) async fn with(script: impl Fn(&Seen) -> testkit::Reply + Send + Sync + 'static) -> Scene {
        let provider = StubProvider::start(script).await;
        let mut world = World::start().await;
        world.provider(&provider);
        Scene::of(world, provider).await
    }

    pub(crate) async fn of(world: World, provider: StubProvider) -> Scene {
        let fixture = world.fixture();
        let account = fixture.account("acme").await;
        let agent = fixture.agent(&account, "coder").await;
        let task = fixture.task(&account, "PROJ-7", &[agent]).await;
        let (session, key) = fixture.session(&account, &task, agent).await;
        Scene {
            world,
            provider,
            account,
            agent,
            task,
            session,
            key,
        }
    }

    pub(crate) async fn run(&self) -> Delivery {
        Delivery {
            running: self.world.run(Role::Delivery, delivery::start).await,
            owner: self.world.database.owner.clone(),
        }
    }

    pub(crate) async fn enqueue(&self, id: &str, body: &str) {
        self.world
            .fixture()
            .enqueue(&self.account, self.session, id, body)
            .await;
    }

    /// As the resolver does after new items.
    pub(crate) async fn wake(&self) {
        let resolved = serde_json::json!({
            "account": "acme", "task": "PROJ-7", "session_id": self.session, "session_key": self.key, "generation": 1,
            "agent_id": self.agent, "position": 1,
        });
        let subject = "signalbox.session.resolved.acme.PROJ-7".to_owned();
        self.world
            .publish_as_service(subject, resolved.to_string().into_bytes())
            .await;
    }

    pub(crate) async fn state(&self, id: &str) -> (String, Option<String>) {
        let row = sqlx::query("select state, reason from notification where id = $1")
            .bind(id)
            .fetch_one(&self.world.database.owner)
            .await
            .unwrap();
        (row.get(0), row.get(1))
    }

    /// Waits until the notification has the state.
    pub(crate) async fn until(&self, id: &str, state: &str) {
        eventually(&format!("notification {id} becomes {state}"), || async {
            (self.state(id).await.0 == state).then_some(())
        })
        .await;
    }

    /// One column of the session's turns, in order.
    pub(crate) async fn turns(&self, column: &str) -> Vec<String> {
        let sql = format!("select coalesce(({column})::text, '') from turn order by session_id, number");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .fetch_all(&self.world.database.owner)
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Records a tool call as the tool-gateway does.
    pub(crate) async fn tool_recorded(&self, call_id: &str, ordinal: i32, result: &str) {
        let row = rows("tool_call").with("call_id", call_id).with("ordinal", ordinal);
        let row = row
            .with("result", result)
            .from("turn t where t.state = 'awaiting_tools'");
        row.insert(&self.world.database.owner).await;
    }

    /// Answers a tool call as the tool-gateway does: its row, then the wake-up.
    pub(crate) async fn tool_finished(&self, call_id: &str, ordinal: i32, result: &str) {
        self.tool_recorded(call_id, ordinal, result).await;
        let turn = self.turns("id").await[0].clone();
        let finished = serde_json::json!({
            "account": "acme", "task": "PROJ-7", "session_id": self.session, "generation": 1, "fence": 1, "turn_id": turn,
            "call_id": call_id, "ordinal": ordinal, "name": "task_history", "state": "finished", "result": result,
        });
        self.world
            .publish_as_service(
                "signalbox.tool.finished.acme.PROJ-7".to_owned(),
                finished.to_string().into_bytes(),
            )
            .await;
    }
}
