//! Two accounts in one batch with the same ids of agents, tasks, sessions, messages, notifications and turns. Row-level
//! security shows a batch the rows of both, so only the code's own conditions separate them, in SQL and in memory.

use std::sync::Arc;

use delivery::{
    metrics::Metrics,
    providers::{FunctionCall, ProviderAnswer},
    store::SessionName,
    turn::{call::Report, claim::Claimer, recorder::Recorder, settle::CallOutcome, work::Work},
};
use domain::AccountId;
use runtime::{Outbox, Shutdown, settings::OutboxSettings};
use storage::Database;
use testkit::{Reply, rows};

use crate::{
    claims::{claimer, replica},
    scene::Scene,
};

const TWIN: &str = "umbra";

/// `acme`, whose agent coordinates, with a thread, a briefing and queued work; then its twin.
async fn twins() -> (Scene, [SessionName; 2]) {
    let scene = Scene::with(|_| Reply::text("never asked")).await;
    let fixture = scene.world.fixture();
    fixture.account_set(&scene.account, "coordinator_task", "proj-7").await;
    fixture
        .account_set(&scene.account, "briefing", "briefing of acme")
        .await;
    fixture.message(&scene.account, &scene.task, "message of acme").await;
    scene.enqueue("n-1", "body of acme").await;
    sqlx::raw_sql(
        "update task set title = 'title of acme', description = 'description of acme';
         update agent set name = 'agent of acme', role = 'role of acme'",
    )
    .execute(&scene.world.database.owner)
    .await
    .unwrap();
    let twin = fixture.twin(&scene.account, TWIN).await;
    let names = [(scene.account.clone(), scene.session), (twin, scene.session)];
    (scene, names)
}

fn of<'a>(work: &'a [Work], account: &AccountId) -> &'a Work {
    let mut found = work.iter().filter(|work| work.turn.account == *account);
    let one = found.next().expect("each has its work");
    assert!(found.next().is_none(), "once");
    one
}

/// Each work holds its own texts, and none of the other account.
fn check_apart(work: &[Work], names: &[SessionName; 2], own: &[&str]) {
    for ((ours, _), (theirs, _)) in [(&names[0], &names[1]), (&names[1], &names[0])] {
        let text = format!("{:?}", of(work, ours));
        for word in own {
            assert!(text.contains(&format!("{word} of {ours}")), "{word}: {text}");
        }
        assert!(!text.contains(theirs.as_str()), "{theirs}: {text}");
    }
}

fn report(work: &Work, outcome: CallOutcome) -> Report {
    Report {
        work: work.clone(),
        outcome,
        mismatch: None,
        fault: None,
        unconfirmed: None,
    }
}

fn answered(text: String, calls: Vec<FunctionCall>) -> CallOutcome {
    CallOutcome::Answered(ProviderAnswer {
        text,
        calls,
        ..ProviderAnswer::default()
    })
}

/// Each turn has text and requests a tool.
fn asking(work: &[Work]) -> Vec<Report> {
    let call = FunctionCall {
        call_id: "c-1".to_owned(),
        name: "task_history".to_owned(),
        arguments: "{}".to_owned(),
    };
    let said = |account| answered(format!("on the way of {account}"), vec![call.clone()]);
    work.iter().map(|work| report(work, said(&work.turn.account))).collect()
}

async fn recorder(scene: &Scene, claimer: &Claimer, database: &Database) -> Recorder {
    Recorder {
        database: database.clone(),
        root: claimer.root.clone(),
        starter: claimer.starter.clone(),
        metrics: Metrics::default(),
        outbox: Outbox::start(
            database,
            &scene.world.bus().await,
            &OutboxSettings::default(),
            &Shutdown::new(),
        ),
        recorded: Arc::default(),
        passes_locked: false,
        shutdown: Shutdown::new(),
    }
}

#[tokio::test]
async fn twins_in_one_batch_stay_apart() {
    let (scene, names) = twins().await;
    let (claimer, database) = claimer(&scene).await;
    let replica = replica(&database).await;
    let recorder = recorder(&scene, &claimer, &database).await;

    // Both begin: sessions, queues, threads, overviews.
    let begun = claimer.claim(&names, replica).await.unwrap().work;
    check_apart(
        &begun,
        &names,
        &["briefing", "message", "body", "title", "agent", "role"],
    );
    recorder.record(&asking(&begun), None).await.unwrap();

    // Both resume, in turns of one id, with their tools' results.
    sqlx::raw_sql(
        "update turn set id = (select id from turn where account_id = 'acme') where account_id = 'umbra';
         update session set active_turn_id = (select id from turn where account_id = 'acme');
         update notification set turn_id = (select id from turn where account_id = 'acme')",
    )
    .execute(&scene.world.database.owner)
    .await
    .unwrap();
    let calls = rows("tool_call")
        .set("id", "t.session_id")
        .set("result", "'result of ' || t.account_id");
    calls.from("turn t").insert(&scene.world.database.owner).await;
    let resumed = claimer.claim(&names, replica).await.unwrap().work;
    check_apart(&resumed, &names, &["on the way", "result"]);
    assert_eq!(resumed[0].turn.id, resumed[1].turn.id, "the twins share a turn id");

    // One has its answer, the other was not resumed.
    let acme = report(
        of(&resumed, &names[0].0),
        answered("reply of acme".to_owned(), Vec::new()),
    );
    let umbra = report(of(&resumed, &names[1].0), CallOutcome::Aborted);
    let recorded = recorder.record(&[umbra, acme], None).await.unwrap();
    assert_eq!(recorded.free.len(), 2);
    let rows = scene
        .world
        .database
        .texts(
            "select concat_ws(' ', n.account_id, n.state, t.state, coalesce(t.reply, '-'), t.task_history_called, s.phase,
                              s.active_turn_id is null)
             from notification n join turn t on t.account_id = n.account_id and t.id = n.turn_id
             join session s on s.account_id = n.account_id and s.id = n.session_id order by n.account_id",
        )
        .await;
    assert_eq!(
        rows,
        [
            "acme delivered finished reply of acme t idle t",
            "umbra cancelled aborted - t idle t"
        ]
    );
}

#[tokio::test]
async fn turns_in_flight_of_twins_are_counted_separately() {
    let (scene, names) = twins().await;
    let fixture = scene.world.fixture();
    let task = fixture.task(&scene.account, "OTHER-1", &[]).await;
    fixture.session(&scene.account, &task, scene.agent).await;
    let owner = &scene.world.database.owner;
    let turn = rows("turn").set("id", "s.id").with("state", "awaiting_tools");
    turn.from("session s where s.task_id = 'other-1'").insert(owner).await;
    let waits = "update session set phase = 'waiting', active_turn_id = id where task_id = 'other-1'";
    sqlx::query(waits).execute(owner).await.unwrap();
    fixture.twin(&scene.account, TWIN).await;
    // One has a turn in flight and room for another; the other's turn waits, and there is room for one.
    sqlx::raw_sql(
        "update session set phase = 'running', lease_owner = gen_random_uuid() where account_id = 'acme' and task_id = 'other-1';
         update account set turns_in_flight_max = case id when 'acme' then 2 else 1 end",
    )
    .execute(owner)
    .await
    .unwrap();

    let (claimer, database) = claimer(&scene).await;
    let claimed = claimer.claim(&names, replica(&database).await).await.unwrap();
    assert!(claimed.left.is_empty(), "no room: {:?}", claimed.left);
    for (account, _) in &names {
        assert_eq!(of(&claimed.work, account).turn.account, *account);
    }
}

#[tokio::test]
async fn tools_of_twins_are_requested_again_separately() {
    let (scene, names) = twins().await;
    let (claimer, database) = claimer(&scene).await;
    let replica = replica(&database).await;
    let recorder = recorder(&scene, &claimer, &database).await;
    let begun = claimer.claim(&names, replica).await.unwrap().work;
    recorder.record(&asking(&begun), None).await.unwrap();
    sqlx::raw_sql(
        "update session set wake_at = now() + case account_id when 'acme' then interval '-1 s' else interval '1 day' end",
    )
    .execute(&scene.world.database.owner)
    .await
    .unwrap();

    let claimed = claimer.claim(&names, replica).await.unwrap();
    assert_eq!(claimed.left, names, "no replica takes the lease");
    let asked: Vec<&str> = claimed
        .outbox
        .iter()
        .flat_map(|row| &row.messages)
        .map(|message| message.subject.as_str())
        .collect();
    assert_eq!(asked, ["signalbox.tool.requested.acme.PROJ-7"]);
    let looked_after = "select concat_ws(' ', account_id, phase, case when wake_at < now() then 'due'
                               when wake_at < now() + interval '1 hour' then 'soon' else 'tomorrow' end)
                        from session order by account_id";
    assert_eq!(
        scene.world.database.texts(looked_after).await,
        ["acme waiting soon", "umbra waiting tomorrow"]
    );
}

/// However many calls an answer has, one of them is in the stream at a time.
#[tokio::test]
async fn calls_of_an_answer_are_requested_one_by_one() {
    let scene = Scene::with(|_| Reply::text("never asked")).await;
    scene.enqueue("n-1", "x").await;
    let names = [(scene.account.clone(), scene.session)];
    let (claimer, database) = claimer(&scene).await;
    let replica = replica(&database).await;
    let recorder = recorder(&scene, &claimer, &database).await;
    let begun = claimer.claim(&names, replica).await.unwrap().work;
    let calls = ["c-1", "c-2", "c-3"].map(|id| FunctionCall {
        call_id: id.to_owned(),
        name: "task_history".to_owned(),
        arguments: "{}".to_owned(),
    });
    let answer = report(&begun[0], answered(String::new(), calls.to_vec()));
    recorder.record(&[answer], None).await.unwrap();
    assert_eq!(
        scene.world.database.texts("select asked::text from session").await,
        ["1"]
    );

    let claim = async || -> Vec<i64> {
        let claimed = claimer.claim(&names, replica).await.unwrap();
        assert_eq!(claimed.left, names, "no replica takes the lease");
        let ordinal =
            |payload: &[u8]| serde_json::from_slice::<serde_json::Value>(payload).unwrap()["ordinal"].as_i64();
        let messages = claimed.outbox.iter().flat_map(|row| &row.messages);
        let asked = messages.filter_map(|message| ordinal(&message.payload));
        asked.collect()
    };
    assert!(claim().await.is_empty(), "the first is on its way");
    for (call, next) in [("c-1", 2), ("c-2", 3)] {
        scene.tool_recorded(call, next - 1, "{}").await;
        assert_eq!(claim().await, [i64::from(next)]);
        assert!(claim().await.is_empty(), "for any other wake-up");
    }
    let due = "update session set wake_at = now() - interval '1 s'";
    sqlx::query(due).execute(&scene.world.database.owner).await.unwrap();
    assert_eq!(claim().await, [3], "asked for again");
}

/// Two of the first answer's calls were never requested when its wait was over. The second answer's calls do not wait
/// for them.
#[tokio::test]
async fn missing_results_of_an_earlier_answer_block_no_later_call() {
    let scene = Scene::with(|_| Reply::text("never asked")).await;
    scene.enqueue("n-1", "x").await;
    let names = [(scene.account.clone(), scene.session)];
    let (claimer, database) = claimer(&scene).await;
    let replica = replica(&database).await;
    let recorder = recorder(&scene, &claimer, &database).await;
    let answer = |ids: &[&str]| {
        let call = |id: &&str| FunctionCall {
            call_id: (*id).to_owned(),
            name: "task_history".to_owned(),
            arguments: "{}".to_owned(),
        };
        answered(String::new(), ids.iter().map(call).collect())
    };
    let begun = claimer.claim(&names, replica).await.unwrap().work;
    let first = report(&begun[0], answer(&["c-1", "c-2", "c-3"]));
    recorder.record(&[first], None).await.unwrap();
    let waited = "update turn set waiting_since = now() - interval '1 day'";
    sqlx::query(waited).execute(&scene.world.database.owner).await.unwrap();
    let resumed = claimer.claim(&names, replica).await.unwrap().work;
    let second = report(&resumed[0], answer(&["d-1", "d-2"]));
    recorder.record(&[second], None).await.unwrap();

    // A result of the first answer arrives late.
    scene.tool_recorded("c-1", 1, "{}").await;
    assert!(claimer.claim(&names, replica).await.unwrap().outbox.is_empty());
    scene.tool_recorded("d-1", 4, "{}").await;
    let claimed = claimer.claim(&names, replica).await.unwrap();
    assert_eq!(claimed.left, names);
    let asked: Vec<serde_json::Value> = claimed
        .outbox
        .iter()
        .flat_map(|row| &row.messages)
        .map(|message| serde_json::from_slice(&message.payload).unwrap())
        .collect();
    assert_eq!((asked.len(), &asked[0]["ordinal"]), (1, &serde_json::json!(5)));
    scene.tool_recorded("d-2", 5, "{}").await;
    let work = claimer.claim(&names, replica).await.unwrap().work;
    assert_eq!(work.len(), 1, "all awaited results are recorded");
}
