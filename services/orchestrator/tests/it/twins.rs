//! Two accounts in one batch with the same ids. Row-level security lets a batch see both, so only the statements' conditions
//! separate them, in SQL and in memory.

use domain::AccountId;
use messaging::BatchHandler;
use orchestrator::handlers::turn_finished::TurnFinishedHandler;
use testkit::Fixture;

use crate::{
    replies::event,
    seed::{self, Ended},
    world::World,
};

#[tokio::test]
async fn replies_of_twins_enter_each_ones_thread() {
    let world = World::new().await;
    let acme = world.tenant("acme").await;
    let coder = world.agent(&acme, "coder").await;
    world.task(&acme, "PROJ-7", &["coder"]).await;
    let session = seed::session(&world, &acme, "PROJ-7", &coder, 1, true).await;
    let said = |reply| Ended {
        reply,
        ..Ended::default()
    };
    let first = seed::turn(&world, &acme, session, 1, said("first of acme")).await;
    let second = seed::turn(&world, &acme, session, 2, said("second of acme")).await;
    Fixture(&world.test)
        .twin(&AccountId::parse("acme").unwrap(), "umbra")
        .await;
    sqlx::raw_sql(
        "update turn set no_reply = true where account_id = 'umbra' and number = 2;
         update agent set name = 'coder of umbra' where account_id = 'umbra'",
    )
    .execute(&world.test.owner)
    .await
    .unwrap();

    let mut umbra = acme.clone();
    umbra.id = "umbra".to_owned();
    let handler = TurnFinishedHandler::new(world.app.clone());
    let batch = [
        event(&umbra, second),
        event(&acme, first),
        event(&umbra, first),
        event(&acme, second),
    ];
    let verdicts = handler.handle(&batch).await;
    let subjects: Vec<Vec<String>> = verdicts
        .iter()
        .map(|verdict| {
            crate::replies::published(verdict)
                .iter()
                .map(|sent| sent.subject.clone())
                .collect()
        })
        .collect();
    let posted = |account: &str| vec![format!("signalbox.event.{account}.PROJ-7.message.posted")];
    assert_eq!(subjects, [vec![], posted("acme"), posted("umbra"), posted("acme")]);
    assert_eq!(
        world
            .test
            .texts("select concat_ws(' ', account_id, author_name, body) from message order by account_id, body")
            .await,
        [
            "acme coder first of acme",
            "acme coder second of acme",
            "umbra coder of umbra first of umbra",
        ]
    );
}
