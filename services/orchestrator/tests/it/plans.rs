//! How the statement of a batch finds its rows: by primary keys, whatever the tables held when it was planned.

use orchestrator::handlers::ended_turns::ENDED_TURNS;
use storage::Role;
use testkit::{
    Fixture, TestDatabase,
    plans::{Planned, check_plans},
};

const STATEMENTS: [Planned; 1] = [(ENDED_TURNS, 2, &["turn_pkey", "agent_pkey", "task_pkey"])];

#[tokio::test]
async fn ended_turns_are_found_one_by_one() {
    let test = TestDatabase::fresh().await;
    let account = Fixture(&test).account("acme").await;
    let database = test.connect(Role::Orchestrator).await;
    check_plans(&database, &account, &STATEMENTS, "empty").await;
    sqlx::query("vacuum analyze").execute(&test.owner).await.unwrap();
    check_plans(&database, &account, &STATEMENTS, "counted when new").await;
}
