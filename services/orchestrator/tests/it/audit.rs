//! The audit of isolation: what it proves, what it finds, and what it cannot say.

use domain::{InstructionLayout, TurnId};
use prompt::{
    InputFacts, Manifest, PROFILE_VERSION, PastLimits, Subagent,
    manifest::{Because, Hash, Layer, Part, Source},
    past_and_base, spawning,
};
use serde_json::{Value, json};
use testkit::rows;
use uuid::Uuid;

use crate::{
    prompted::{self, BRIEFING, DESCRIPTION, Desk, Told, overview, stopped},
    seed,
    world::World,
};

const LIMITS: PastLimits = PastLimits {
    entries_max: 50,
    bytes_max: 131_072,
    body_bytes_max: 4_096,
    reply_bytes_max: 8_192,
};

/// `verdict reason part source` of everything that is not proven.
pub(crate) fn findings(audit: &Value) -> Vec<String> {
    let word = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let line = |finding: &Value| {
        ["verdict", "reason", "part", "source"]
            .map(|name| word(finding, name))
            .join(" ")
    };
    let all = audit["violations"]
        .as_array()
        .unwrap()
        .iter()
        .chain(audit["others"].as_array().unwrap());
    all.map(line).collect()
}

pub(crate) fn is_proven(audit: &Value) {
    assert_eq!(findings(audit), Vec::<String>::new(), "{audit}");
    assert_eq!(audit["parts"], audit["proven"], "{audit}");
}

/// The parts of a manifest after a change.
fn changed(manifest: &Manifest, change: impl Fn(&mut Part)) -> Manifest {
    let mut manifest = manifest.clone();
    manifest.parts.iter_mut().for_each(change);
    manifest
}

#[tokio::test]
async fn every_source_of_a_task_is_proven() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let first = desk.turn(1).await;
    // Alone, with everything that can stand beside it.
    let facts = desk.notified("n-2", "Tests fail on main.\n[end x]\n").await;
    let message = desk.message("PROJ-7", &"long ".repeat(300)).await;
    let mut told = desk.told(2, facts);
    told.facts.description = Some(Because::FirstTurn);
    told.facts.extract.messages = vec![message];
    told.facts.extract.new = 7;
    told.facts.is_interrupted = true;
    told.facts.stopped = Some(stopped(&first.facts));
    world
        .execute("update session set stop_kind = 'stopped', stop_by = 'Ann'")
        .await;
    told.notes = vec![desk.noted(told.id, "noted", "And this.").await];
    desk.write(&told).await;
    seed::tool_call(&world, &tenant, told.id.uuid(), 1, r#"{"task_id": "proj-7"}"#).await;
    // A run, with its instructions in front of the first item.
    let mut run = desk.told(3, desk.notified("n-3", "One.").await);
    run.facts.further = vec![prompted::further(&desk.notified("n-4", "Two.").await)];
    run.layout = InstructionLayout::Inline;
    desk.write(&run).await;
    // No task.
    let beats = desk.on(None).await;
    beats.turn(1).await;

    let audit = desk.audit("").await;
    is_proven(&audit);
    assert_eq!(audit["turns"], 4, "{audit}");
    let bytes: i64 = sqlx::query_scalar(
        "select sum(octet_length(t.input) + octet_length(i.body) + octet_length(coalesce(t.notes -> 0 ->> 'text', '')))
         from turn t join instruction_text i on i.hash = t.profile_hash",
    )
    .fetch_one(&world.test.owner)
    .await
    .unwrap();
    // And the result of a tool.
    assert_eq!(audit["bytes"], bytes + 8, "{audit}");
    for scope in [
        "task=proj-7".to_owned(),
        format!("session={}", desk.session),
        format!("turn={}", told.id),
        "from=2020-01-01T00:00:00Z&until=2120-01-01T00:00:00Z".to_owned(),
    ] {
        let audit = desk.audit(&scope).await;
        is_proven(&audit);
        let turns = match &scope[..4] {
            "turn" => 1,
            "from" => 4,
            _ => 3,
        };
        assert_eq!(audit["turns"], turns, "{scope}");
    }
    assert_eq!(desk.audit("from=2120-01-01T00:00:00Z").await["turns"], 0);
    let ever = desk.audit("from=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z").await;
    assert_eq!(ever["turns"], 4);
    assert_eq!(desk.audit("from=9999-12-31T23:59:59Z").await["turns"], 0);
}

#[tokio::test]
async fn an_assembled_context_is_rendered_again() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let mut turns: Vec<(Told, Manifest)> = Vec::new();
    for number in 1..=3 {
        let facts = desk.notified(&format!("n-{number}"), &"é".repeat(number * 1_500)).await;
        let told = desk.told(i64::try_from(number).unwrap(), facts);
        let manifest = desk.write(&told).await;
        turns.insert(0, (told, manifest));
    }
    let newest_first: Vec<(&Told, Manifest)> = turns.iter().map(|(told, manifest)| (told, manifest.clone())).collect();
    // Whatever limits delivery has.
    for (number, limits) in [
        (4, LIMITS),
        (
            5,
            PastLimits {
                body_bytes_max: 77,
                reply_bytes_max: 3,
                ..LIMITS
            },
        ),
    ] {
        let mut told = desk.told(number, desk.notified(&format!("n-{number}"), "Go on.").await);
        told.past = desk.past_of(&newest_first, &limits);
        told.context =
            serde_json::from_value(json!({"asked": "assembled", "used": "assembled", "thread": number})).unwrap();
        desk.write(&told).await;
        let audit = desk.audit(&format!("turn={}", told.id)).await;
        is_proven(&audit);
    }

    // Entries of another task, of another session, of none.
    let other = desk.on(Some("PROJ-8")).await;
    let foreign = other.turn(1).await;
    let mut told = desk.told(6, desk.notified("n-6", "Go on.").await);
    told.past = desk.past_of(&newest_first, &LIMITS);
    let mut ids = vec![foreign.id.uuid(), Uuid::nil()].into_iter();
    for part in &mut told.past.parts {
        if matches!(part.source, Source::TurnReply(_))
            && let Some(id) = ids.next()
        {
            part.source = Source::TurnReply(id);
        }
    }
    desk.write(&told).await;
    let found = findings(&desk.audit(&format!("turn={}", told.id)).await);
    let expected = [(foreign.id.uuid(), "foreign_thread"), (Uuid::nil(), "source_missing")];
    assert_eq!(
        found,
        expected.map(|(id, reason)| format!("violation {reason} entry turn/{id}/reply"))
    );

    // A changed reply is not the one that was sent.
    world
        .execute("update turn set reply = reply || ' And this.' where number = 1")
        .await;
    let audit = desk.audit(&format!("session={}", desk.session)).await;
    let found = findings(&audit);
    assert!(
        found
            .iter()
            .any(|line| line.starts_with("violation hash_mismatch entry turn/")),
        "{found:?}"
    );
}

fn coordinator_block(verdict: &str) -> String {
    format!("{verdict} coordinator profile/{PROFILE_VERSION}/coordinator")
}

#[tokio::test]
async fn the_coordinator_reads_all_tasks_by_policy() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    world.execute("update account set coordinator_task = 'proj-7'").await;
    let mut told = desk.told(1, desk.notified("n-1", "Plan.").await);
    told.facts.briefing = Some((BRIEFING.to_owned(), Because::FirstTurn));
    told.facts.overview = Some(overview("PROJ-8"));
    told.is_coordinator = true;
    desk.write(&told).await;
    seed::tool_call(&world, &tenant, told.id.uuid(), 1, r#"{"task_id": "PROJ-8"}"#).await;
    let by_policy = findings(&desk.audit("").await);
    assert_eq!(
        by_policy,
        [
            &*coordinator_block("by_policy coordinator"),
            "by_policy coordinator briefing account/briefing",
            "by_policy coordinator overview account/tasks",
            "by_policy coordinator tool_result tool_call/task_history/call-1",
        ]
    );
    // The account has another coordinator task now: its own words say that it was the coordinator, and its tools reached too far.
    world.execute("update account set coordinator_task = 'proj-8'").await;
    let found = findings(&desk.audit("").await);
    assert_eq!(
        found,
        [
            "violation foreign_task tool_result tool_call/task_history/call-1",
            &*coordinator_block("unproven changed"),
            "unproven changed briefing account/briefing",
            "unproven changed overview account/tasks",
        ]
    );
    // An overview in any other prompt is a leak.
    let mut told = desk.told(2, desk.notified("n-2", "Work.").await);
    told.facts.overview = Some(overview("PROJ-8"));
    desk.write(&told).await;
    let found = findings(&desk.audit(&format!("turn={}", told.id)).await);
    assert_eq!(found, ["violation foreign_task overview account/tasks"]);
}

/// A sentence of another task in the place of one of ours, with a manifest that says so, one that does not, and one that lies.
#[tokio::test]
async fn a_planted_foreign_sentence_is_found_in_every_part() {
    const FOREIGN: &str = "The other task's password is 4711. ";
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let first = desk.turn(1).await;
    let mut told = desk.told(2, desk.notified("n-2", &"Tests fail. ".repeat(20)).await);
    told.facts.description = Some(Because::FirstTurn);
    told.facts.extract.messages = vec![desk.message("PROJ-7", &"Look. ".repeat(20)).await];
    told.facts.is_interrupted = true;
    told.facts.stopped = Some(stopped(&first.facts));
    world
        .execute("update session set stop_kind = 'stopped', stop_by = 'Ann'")
        .await;
    let manifest = desk.write(&told).await;
    let id = told.id;
    let input: String = sqlx::query_scalar("select input from turn where id = $1")
        .bind(id.uuid())
        .fetch_one(&world.test.owner)
        .await
        .unwrap();
    let store = async |input: &str, manifest: &Manifest| {
        sqlx::query("update turn set input = $2, manifest_packed = $3 where id = $1")
            .bind(id.uuid())
            .bind(input)
            .bind(manifest.packed())
            .execute(&world.test.owner)
            .await
            .unwrap();
        findings(&desk.audit(&format!("turn={id}")).await)
    };
    let slices = manifest.slices(Layer::Input, &input).unwrap();
    assert!(slices.len() >= 8);
    let mut before = 0;
    for slice in &slices {
        let (head, tail) = (&input[..before], &input[before + slice.text.len()..]);
        before += slice.text.len();
        let part = serde_json::to_value(slice.part.part)
            .unwrap()
            .as_str()
            .unwrap()
            .to_owned();
        // In the middle of it, cut to its size: the manifest is as it was.
        let middle = slice.text.len() / 2;
        let middle = slice.text.floor_char_boundary(middle);
        let planted = format!("{}{FOREIGN}{}", &slice.text[..middle], &slice.text[middle..]);
        let same_size = &planted[..slice.text.len()];
        if same_size != slice.text {
            let found = store(&format!("{head}{same_size}{tail}"), &manifest).await;
            assert_eq!(
                found,
                [format!("violation hash_mismatch {part} {}", slice.part.source)],
                "{same_size}"
            );
        }
        // The manifest accounts for it: the source does not.
        let lying = changed(&manifest, |part| {
            if *part == *slice.part {
                part.bytes = planted.len();
                part.sha256 = Hash::of(&planted);
            }
        });
        let found = store(&format!("{head}{planted}{tail}"), &lying).await;
        assert_eq!(
            found,
            [format!("violation hash_mismatch {part} {}", slice.part.source)],
            "{planted}"
        );
    }
    // At the end.
    let found = store(&format!("{input}{FOREIGN}"), &manifest).await;
    assert_eq!(found, ["violation uncovered_bytes input "]);
    // A message of another task, as such.
    let other = desk.message("PROJ-8", FOREIGN).await;
    let mut with_other = desk.told(3, desk.notified("n-3", "Go on.").await);
    with_other.facts.extract.messages = vec![other.clone()];
    desk.write(&with_other).await;
    let found = findings(&desk.audit(&format!("turn={}", with_other.id)).await);
    assert_eq!(found, [format!("violation foreign_task message message/{}", other.id)]);
    // And a notification of one.
    let elsewhere = desk.on(Some("PROJ-8")).await;
    let theirs = elsewhere.notified("theirs", FOREIGN).await;
    let with_theirs = Told {
        facts: prompt::InputFacts {
            task: with_other.facts.task.clone(),
            ..theirs
        },
        ..desk.told(4, desk.notified("n-4", "Go on.").await)
    };
    desk.write(&with_theirs).await;
    let found = findings(&desk.audit(&format!("turn={}", with_theirs.id)).await);
    assert_eq!(found, ["violation foreign_task notification notification/theirs"; 2]);
}

#[tokio::test]
async fn a_manifest_that_does_not_add_up_is_a_violation() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let told = desk.turn(1).await;
    let check = async |set: &str, expected: &[&str]| {
        world
            .execute(format!("update turn set {set} where id = '{}'", told.id))
            .await;
        let found = findings(&desk.audit("").await);
        assert_eq!(found, expected, "{set}");
    };
    let unknown = ["violation uncovered_bytes manifest "];
    check("input = input || 'x'", &["violation uncovered_bytes input "]).await;
    check("input = left(input, -4)", &["violation uncovered_bytes input "]).await;
    check("manifest_packed = substr(manifest_packed, 1, 30)", &unknown).await;
    check("manifest_packed = '\\x02'", &unknown).await;
    check("manifest_packed = '\\x63'", &["unproven unknown_manifest manifest "]).await;
    check(
        "manifest_packed = null, manifest = '{}'",
        &["unproven unknown_manifest manifest "],
    )
    .await;
}

#[tokio::test]
async fn rows_that_are_gone_with_their_sessions_are_no_violation() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    desk.turn(1).await;
    let id = format!("n-{}-1", desk.session.simple());
    let part = format!("notification notification/{id}");
    world.execute("delete from notification").await;
    let found = async || findings(&desk.audit("").await);
    assert_eq!(
        found().await,
        [
            format!("violation source_missing {part}"),
            format!("violation source_missing {part}")
        ]
    );
    world
        .execute("update session set closed_at = now() - interval '2 days', close_reason = 'task_done'")
        .await;
    assert_eq!(
        found().await,
        [
            format!("unproven retention {part}"),
            format!("unproven retention {part}")
        ]
    );
}

#[tokio::test]
async fn what_people_have_changed_since_cannot_be_proven_and_what_they_have_not_is_found() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let mut told = desk.told(1, desk.notified("n-1", "Work.").await);
    told.facts.description = Some(Because::FirstTurn);
    desk.write(&told).await;
    // Statuses are all known.
    world.execute("update task set status = 'done'").await;
    is_proven(&desk.audit("").await);
    // Not by the API: nobody has changed it, so it was never this.
    world
        .execute("update task set description = 'Main may be red.' where id = 'proj-7'")
        .await;
    assert_eq!(
        findings(&desk.audit("").await),
        ["violation hash_mismatch task task/proj-7"]
    );
    let path = tenant.path("/tasks/PROJ-7");
    let answer = world
        .patch(
            &tenant.member,
            &path,
            json!({"title": "t", "description": "Main may be red."}),
        )
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        findings(&desk.audit("").await),
        [
            "unproven changed task_state task/proj-7",
            "unproven changed task task/proj-7"
        ]
    );
    world
        .execute("update agent set role = 'Review.', name = 'Reviewer'")
        .await;
    assert_eq!(
        findings(&desk.audit("").await)[..2],
        [
            format!("unproven changed policy profile/{PROFILE_VERSION}"),
            "unproven changed role agent/coder".to_owned()
        ]
    );
}

#[tokio::test]
async fn a_thread_belongs_to_one_session() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    desk.turn(1).await;
    let mut told = desk.told(2, desk.notified("n-2", "Go on.").await);
    told.context.from = Some("resp_1".to_owned());
    desk.write(&told).await;
    let found = async || findings(&desk.audit(&format!("turn={}", told.id)).await);
    assert_eq!(found().await, ["violation foreign_thread thread resp_1"]);
    // Of another session of the account.
    let other = desk.on(Some("PROJ-8")).await;
    other.turn(1).await;
    world
        .execute(format!(
            "update turn set response_id = 'resp_1' where session_id = '{}'",
            other.session
        ))
        .await;
    assert_eq!(found().await, ["violation foreign_thread thread resp_1"]);
    world
        .execute("update turn set response_id = 'resp_1' where number = 1")
        .await;
    assert_eq!(found().await, Vec::<String>::new());
    world
        .execute("update turn set context = context || '{\"unconfirmed\": true}'")
        .await;
    assert_eq!(found().await, ["unproven thread_unconfirmed thread resp_1"]);
    world
        .execute(format!(
            "update session set mismatch = 'x' where id = '{}'",
            desk.session
        ))
        .await;
    assert_eq!(found().await, ["unproven mismatch thread resp_1"]);
    // One session for all tasks of an agent.
    let all = desk.on(None).await;
    let task = async |number, task: &str| {
        let told = all.turn(number).await;
        let set = format!("update turn set task_id = {task} where id = '{}'", told.id);
        world.execute(set).await;
        findings(&desk.audit(&format!("turn={}", told.id)).await)
    };
    let threads = |found: Vec<String>| {
        found
            .into_iter()
            .filter(|line| line.contains(" thread "))
            .collect::<Vec<String>>()
    };
    assert_eq!(threads(task(1, "null").await), Vec::<String>::new());
    let by_policy = threads(task(2, "'proj-7'").await);
    assert!(
        by_policy[0].starts_with("by_policy session_scope thread system:agent:"),
        "{by_policy:?}"
    );
}

/// Further turns of a session, whose responses have their numbers.
async fn many_turns(world: &World, session: Uuid, (first, last): (i64, i64)) {
    let row = rows("turn").set("number", "n").set("response_id", "'resp_' || n");
    row.from(format!(
        "session s join generate_series({first}, {last}) n on s.id = '{session}'"
    ))
    .insert(&world.test.owner)
    .await;
}

/// The findings on the thread of a turn.
async fn of_thread(desk: &Desk<'_>, turn: TurnId) -> Vec<String> {
    let mut found = findings(&desk.audit(&format!("turn={turn}")).await);
    found.retain(|line| line.contains(" thread "));
    found
}

/// Of the turns before one, the newest thousand are looked at: what may be of older ones is not proven.
#[tokio::test]
async fn a_thread_of_many_turns_is_proven_as_far_as_it_is_looked_at() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    many_turns(&world, desk.session, (1, 1_000)).await;
    let from = async |number: i64, from: &str| {
        let mut told = desk.told(number, desk.notified(&format!("n-{number}"), "Go on.").await);
        told.context.from = Some(from.to_owned());
        desk.write(&told).await;
        of_thread(&desk, told.id).await
    };
    assert_eq!(from(1_001, "resp_1").await, [""; 0]);
    assert_eq!(from(1_002, "resp_1").await, ["unproven unread thread resp_1"]);
    assert_eq!(from(1_003, "resp_3").await, [""; 0]);

    // One session for all tasks of an agent.
    let all = desk.on(None).await;
    many_turns(&world, all.session, (1, 1_000)).await;
    let first = async |task: &str| {
        let set = format!(
            "update turn set task_id = {task} where session_id = '{}' and number = 1",
            all.session
        );
        world.execute(set).await;
    };
    first("'proj-7'").await;
    let by_policy = format!("by_policy session_scope thread system:agent:{}:acme:v1", desk.agent);
    let last = all.turn(1_001).await.id;
    assert_eq!(of_thread(&all, last).await, [by_policy.as_str()]);
    first("null").await;
    assert_eq!(of_thread(&all, last).await, [""; 0]);
    first("'proj-7'").await;
    let next = all.turn(1_002).await.id;
    assert_eq!(
        of_thread(&all, next).await,
        [by_policy.as_str()],
        "nobody looked at the first"
    );
}

#[tokio::test]
async fn a_result_of_another_turn_or_task_is_found() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let told = desk.turn(1).await;
    let turn = told.id.uuid();
    seed::tool_call(&world, &tenant, turn, 1, r#"{"task_id": "PROJ-8"}"#).await;
    seed::tool_call(&world, &tenant, turn, 2, r#"{"task_id": "PROJ-7"}"#).await;
    seed::tool_call(&world, &tenant, turn, 3, "{}").await;
    let call = rows("tool_call")
        .with("call_id", "other")
        .with("ordinal", 4)
        .with("name", "shell")
        .with("result", "r");
    call.from(format!("turn t where t.id = '{turn}'"))
        .insert(&world.test.owner)
        .await;
    let refused = rows("tool_call")
        .with("call_id", "refused")
        .with("ordinal", 5)
        .with("state", "refused")
        .with(
            "result",
            r#"{"error":{"code":"task_not_found","hint":"","message":""}}"#,
        );
    let refused = refused.with("arguments", r#"{"task_id": "PROJ-8"}"#);
    refused
        .from(format!("turn t where t.id = '{turn}'"))
        .insert(&world.test.owner)
        .await;
    assert_eq!(
        findings(&desk.audit("").await),
        [
            "violation foreign_task tool_result tool_call/task_history/call-1",
            "unproven unknown_tool tool_result tool_call/shell/other",
        ]
    );
    let other = desk.on(Some("PROJ-8")).await;
    world
        .execute(format!(
            "update tool_call set session_id = '{}' where call_id = 'call-2'",
            other.session
        ))
        .await;
    let found = findings(&desk.audit("").await);
    assert!(
        found.contains(&"violation foreign_thread tool_result tool_call/task_history/call-2".to_owned()),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_scope_is_one_and_is_there() {
    let world = World::new().await;
    let (tenant, other) = (world.tenant("acme").await, world.tenant("globex").await);
    let desk = Desk::open(&world, &tenant).await;
    let told = desk.turn(1).await;
    let get = async |tenant: &crate::world::Tenant, token: &str, query: &str| {
        world
            .get(token, &tenant.path(&format!("/audit/isolation?{query}")))
            .await
    };
    let (session, turn) = (format!("session={}", desk.session), format!("turn={}", told.id));
    for two in [
        format!("task=PROJ-7&{session}"),
        format!("{session}&{turn}"),
        format!("task=PROJ-7&{turn}"),
    ] {
        get(&tenant, &tenant.member, &two)
            .await
            .is_problem(422, "invalid", "give one of");
    }
    let span = "from=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z";
    get(&tenant, &tenant.member, span)
        .await
        .is_problem(422, "invalid", "before until");
    get(&tenant, &tenant.member, "from=yesterday")
        .await
        .is_problem(400, "invalid_field", "from");
    for foreign in [&session, &turn, "task=PROJ-7", "task=NONE"] {
        get(&other, &other.member, foreign)
            .await
            .is_problem(404, "not_found", "");
        get(&tenant, &other.member, foreign)
            .await
            .is_problem(404, "not_found", "");
    }
    let nobody = TurnId(Uuid::now_v7());
    get(&tenant, &tenant.member, &format!("turn={nobody}"))
        .await
        .is_problem(404, "not_found", "");
    get(&tenant, &tenant.publisher, &turn)
        .await
        .is_problem(403, "forbidden", "publisher");
    assert_eq!(get(&other, &other.member, "").await.body["turns"], 0);
}

/// Turns that begin meanwhile are on later pages, or on none; every turn that was there is on one.
#[tokio::test]
async fn pages_go_on_while_turns_are_added() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    for number in 1..=120 {
        desk.turn(number).await;
    }
    for scope in ["", "task=PROJ-7", &format!("session={}", desk.session)] {
        let (mut cursor, mut pages, mut turns) = (String::new(), Vec::new(), 0);
        let before: i64 = world.test.count("select count(*) from turn").await;
        loop {
            let audit = desk.audit(&format!("{scope}&cursor={cursor}")).await;
            is_proven(&audit);
            let read = audit["turns"].as_i64().unwrap();
            turns += read;
            pages.push(read);
            desk.turn(before + i64::try_from(pages.len()).unwrap()).await;
            match audit["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => break,
            }
        }
        assert!(turns >= before && turns <= before + 3, "{scope}: {pages:?} of {before}");
        assert_eq!(pages[..2], [50, 50], "{scope}");
    }
}

/// Version 1 had the lines of the task in the notification, and another heading of messages.
#[tokio::test]
async fn version_1_is_judged_as_far_as_it_goes() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let told = desk.turn(1).await;
    let (input, packed): (String, Vec<u8>) = sqlx::query_as("select input, manifest_packed from turn")
        .fetch_one(&world.test.owner)
        .await
        .unwrap();
    let manifest = Manifest::unpacked(&packed).unwrap();
    let heading = "\nThe last 1 of 3 messages in this task's thread, oldest first:\n";
    let words = "Words of a version before.\n";
    let mut parts: Vec<Value> = manifest.layer(Layer::Instructions).map(|part| json!(part)).collect();
    let part = |kind: &str, source: &str, text: &str| json!({"layer": "input", "part": kind, "source": source, "bytes": text.len(), "sha256": Hash::of(text).to_string(), "cut_bytes": 0});
    let source = format!("notification/{}", told.facts.notification);
    parts.extend([
        part("notification", &source, &input),
        part("thread", "thread", heading),
        part("interruption", "session", words),
    ]);
    let store = async |input: &str, layout: &str, parts: &[Value]| {
        sqlx::query(
            "update turn set input = $1, manifest_packed = null, manifest = $2, profile_version = '1', context = null",
        )
        .bind(input)
        .bind(json!({"layout": layout, "parts": parts}))
        .execute(&world.test.owner)
        .await
        .unwrap();
        findings(&desk.audit("").await)
    };
    let own = format!("{input}{heading}{words}");
    let as_far = ["unproven version_1 interruption session"];
    assert_eq!(store(&own, "layered", &parts).await, as_far);
    let instructions: String = sqlx::query_scalar("select body from instruction_text")
        .fetch_one(&world.test.owner)
        .await
        .unwrap();
    assert_eq!(store(&format!("{instructions}\n{own}"), "inline", &parts).await, as_far);
    assert_eq!(
        store(&format!("{instructions}.\n{own}"), "inline", &parts).await,
        ["violation uncovered_bytes input "]
    );
    // A foreign source is one in any version.
    let other = desk.message("PROJ-8", "No.").await;
    parts.push(part("message", &format!("message/{}", other.id), words));
    let found = store(&format!("{own}{words}"), "layered", &parts).await;
    assert_eq!(found[0], format!("violation foreign_task message message/{}", other.id));
}

/// Ten thousand turns, nightly; as many pages as they need. How long they take is printed, and no test: that depends on the machine.
#[tokio::test]
async fn many_turns_are_read_in_pages_of_one_size() {
    let count: u64 = match std::env::var_os("SIGNALBOX_NIGHTLY") {
        Some(_) => 10_000,
        None => 500,
    };
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let first = desk.told(1, desk.notified("n-1", "One.").await);
    let manifest = desk.write(&first).await;
    let mut told = desk.told(2, desk.notified("n-2", &"Tests fail. ".repeat(300)).await);
    told.facts.description = Some(Because::FirstTurn);
    for n in 0..6 {
        told.facts
            .extract
            .messages
            .push(desk.message("PROJ-7", &format!("Message {n}.").repeat(20)).await);
    }
    told.past = desk.past_of(&[(&first, manifest)], &LIMITS);
    told.context = serde_json::from_value(json!({"asked": "assembled", "used": "assembled", "thread": 2})).unwrap();
    desk.write(&told).await;
    seed::tool_call(&world, &tenant, told.id.uuid(), 1, r#"{"task_id": "PROJ-7"}"#).await;
    let mut copies = rows("turn");
    for column in [
        "account_id",
        "session_id",
        "task_id",
        "agent_id",
        "generation",
        "fence",
        "state",
        "notification_ids",
        "provider",
        "profile_version",
        "profile_hash",
        "input",
        "manifest",
        "manifest_packed",
        "tools",
        "context",
        "thread",
        "reply",
        "finished_at",
    ] {
        copies = copies.set(column, format!("o.{column}"));
    }
    let copies = copies
        .set("id", "gen_random_uuid()")
        .set("number", "n")
        .set("notes", "'[]'");
    copies
        .from(format!("turn o, generate_series(3, {count}) n where o.number = 2"))
        .insert(&world.test.owner)
        .await;

    let (mut cursor, mut pages) = (String::new(), 0);
    let (mut turns, begun) = (0, std::time::Instant::now());
    let mut slowest = std::time::Duration::ZERO;
    loop {
        let page_begun = std::time::Instant::now();
        let audit = desk.audit(&format!("cursor={cursor}")).await;
        slowest = slowest.max(page_begun.elapsed());
        assert_eq!(audit["violations"], json!([]), "{audit}");
        turns += audit["turns"].as_u64().unwrap();
        pages += 1;
        match audit["next_cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => break,
        }
    }
    assert_eq!((turns, pages), (count, count / 50));
    println!(
        "{turns} turns in {:?}, the slowest page in {slowest:?}",
        begun.elapsed()
    );
}

pub(crate) const CONTEXT: &str = "A shop for tea.\nIts prices are in euro.";
const SHA256: &str = "0f";

/// A branch of a parent's second turn, whose first turn and one message it knows.
pub(crate) struct Spawned<'a> {
    parent: Desk<'a>,
    branch: Uuid,
    pub(crate) desk: Desk<'a>,
    /// Of the parent: one before, the spawning one, one after.
    turns: Vec<(Told, Manifest)>,
    pub(crate) told: Told,
}

pub(crate) async fn known(desk: &Desk<'_>, task: &str, version: i32, body: &str) {
    let row = rows("task_context").with("version", version).with("body", body);
    let of = format!("task t where t.account_id = '{}' and t.id = '{task}'", desk.tenant.id);
    row.from(of).insert(&desk.world.test.owner).await;
}

/// The row of a session of another kind, for the desk's agent.
async fn session(desk: &Desk<'_>, kind: &str, origin: Uuid, key: String, parent: Option<Uuid>) -> Uuid {
    let id = Uuid::now_v7();
    let row = rows("session").with("account_id", &desk.tenant.id).with("id", id);
    let row = row.with("kind", kind).with("origin_id", origin).with("key", key);
    let row = row.with("task_id", "proj-7").with("agent_id", &desk.agent);
    let row = match parent {
        Some(parent) => row.with("parent_session_id", parent),
        None => row,
    };
    row.insert(&desk.world.test.owner).await;
    id
}

impl<'a> Spawned<'a> {
    pub(crate) async fn of(parent: Desk<'a>) -> Spawned<'a> {
        known(&parent, "proj-7", 1, CONTEXT).await;
        let mut turns = Vec::new();
        for number in 1..=3 {
            let facts = parent
                .notified(&format!("n-{number}"), &format!("Part {number}."))
                .await;
            let told = parent.told(number, facts);
            let manifest = parent.write(&told).await;
            turns.push((told, manifest));
        }
        let message = parent.message("PROJ-7", "Tea is green.").await;
        let journal = json!([{"response_id": null, "text": "I split it.", "calls": [], "usage": null},
                             {"response_id": null, "text": "This is later.", "calls": [], "usage": null}]);
        let turn = turns[1].0.id;
        let owner = &parent.world.test.owner;
        sqlx::query("update turn set journal = $2 where id = $1")
            .bind(turn.uuid())
            .bind(journal)
            .execute(owner)
            .await
            .unwrap();
        let branch = Uuid::now_v7();
        let key = format!("branch:{branch}:agent:{}:{}:v1", parent.agent, parent.tenant.id);
        let session = session(&parent, "branch", branch, key, Some(parent.session)).await;
        let base = json!({"title": "Title of PROJ-7", "description": DESCRIPTION, "status": "inbox", "updated_at": "2026-01-01T00:00:00Z",
                          "context_version": 1, "number": 2, "rounds": 1, "notes": 0, "hops": 0, "sha256": SHA256});
        let row = rows("branch")
            .with("id", branch)
            .with("session_id", session)
            .with("label", "prices");
        let row = row.with("parent_turn_id", turn).with("base", base);
        let row = row.with("base_messages", format!("{{{}}}", message.id));
        let of_parent = format!(
            "session s where s.account_id = '{}' and s.id = '{}'",
            parent.tenant.id, parent.session
        );
        row.from(of_parent).insert(owner).await;
        let desk = Desk {
            session,
            agent: parent.agent.clone(),
            task: parent.task.clone(),
            ..parent
        };
        let facts = desk.notified(&format!("subagent:{branch}"), "Find the prices.").await;
        let mut told = desk.told(1, facts);
        told.facts.description = Some(Because::FirstTurn);
        told.facts.extract.messages = vec![message];
        told.facts.extract.new = 1;
        told.is_branch = true;
        told.known = Some((1, CONTEXT));
        told.context = serde_json::from_value(
            json!({"asked": "assembled", "used": "assembled", "thread": 1, "base_sha256": SHA256}),
        )
        .unwrap();
        let mut spawned = Spawned {
            parent,
            branch,
            desk,
            turns,
            told,
        };
        spawned.told.past = spawned.past("I split it.", &[0]);
        spawned
    }

    /// The base: the spawning turn, which had said this, and others.
    fn past(&self, said: &str, others: &[usize]) -> prompt::Past {
        let of = |n: usize| self.parent.past_turn(&self.turns[n].0, &self.turns[n].1);
        let mut base = vec![spawning(of(1), &[said.to_owned()], 0)];
        base.extend(others.iter().map(|n| of(*n)));
        past_and_base(&[], &base, (0, Because::Past), &LIMITS, &[])
    }

    /// Writes the branch's turn again after a change; gives what is found in it.
    pub(crate) async fn found(&mut self, change: impl FnOnce(&mut Told)) -> Vec<String> {
        self.desk
            .world
            .execute(format!("delete from turn where session_id = '{}'", self.desk.session))
            .await;
        change(&mut self.told);
        self.desk.write(&self.told).await;
        findings(&self.audit().await)
    }

    async fn audit(&self) -> Value {
        self.desk.audit(&format!("session={}", self.desk.session)).await
    }
}

#[tokio::test]
async fn a_branch_shows_what_its_parent_knew_and_nothing_else() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let mut spawned = Spawned::of(Desk::open(&world, &tenant).await).await;
    let none: [&str; 0] = [];
    assert_eq!(spawned.found(|_| {}).await, none);
    is_proven(&spawned.audit().await);
    // What people change later is not what it was shown.
    world
        .execute("update task set description = 'Other.', title = 'Other' where id = 'proj-7'")
        .await;
    is_proven(&spawned.audit().await);

    // A turn of its parent that is younger than the branch, and a text that the spawning turn did not have then.
    let younger = spawned.turns[2].0.id;
    let past = spawned.past("I split it.", &[2, 0]);
    let found = spawned.found(|told| told.past = past).await;
    assert_eq!(
        found,
        ["input", "reply"].map(|part| format!("violation foreign_thread entry turn/{younger}/{part}"))
    );
    let past = spawned.past("I split it.\n\nThe other task's password is 4711.", &[0]);
    let spawning = spawned.turns[1].0.id;
    let found = spawned.found(|told| told.past = past).await;
    assert_eq!(found, [format!("violation hash_mismatch entry turn/{spawning}/reply")]);
    let past = spawned.past("I split it.", &[0]);

    // A message that is younger than the base.
    let message = spawned.desk.message("PROJ-7", "Tea is black.").await;
    let id = message.id;
    let found = spawned
        .found(|told| {
            told.past = past;
            told.facts.extract.messages.push(message);
        })
        .await;
    assert_eq!(found, [format!("violation foreign_thread message message/{id}")]);
    let found = spawned.found(|told| drop(told.facts.extract.messages.pop())).await;
    assert_eq!(found, none);

    // Another base, and no base at all.
    let branch = format!("branch/{}", spawned.branch);
    let found = spawned
        .found(|told| told.context.base_sha256 = Some("1e".to_owned()))
        .await;
    assert_eq!(found, [format!("violation hash_mismatch base {branch}")]);
    let found = spawned
        .found(|told| told.context.base_sha256 = Some(SHA256.to_owned()))
        .await;
    assert_eq!(found, none);
    world.execute("delete from branch").await;
    let found = findings(&spawned.audit().await);
    assert!(
        found.contains(&format!("violation source_missing base {branch}")),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_fork_goes_on_where_its_parent_was() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let mut spawned = Spawned::of(Desk::open(&world, &tenant).await).await;
    world.execute("update turn set response_id = 'resp_' || number").await;
    world
        .execute(r#"update branch set base = base || '{"thread": "resp_1"}'"#)
        .await;
    let past = spawned.past("I split it.", &[]);
    let fork = |from: &str| {
        serde_json::from_value(
            json!({"asked": "fork", "used": "fork", "thread": 1, "from": from, "base_sha256": SHA256}),
        )
        .unwrap()
    };
    let found = spawned
        .found(|told| {
            told.past = past;
            told.context = fork("resp_1");
        })
        .await;
    assert_eq!(found, [""; 0]);
    let branch = spawned.branch;
    let found = spawned.found(|told| told.context = fork("resp_3")).await;
    let thread = "violation foreign_thread thread resp_3".to_owned();
    assert_eq!(
        found,
        [format!("violation foreign_thread base branch/{branch}"), thread]
    );

    // However far its parent went on since.
    assert_eq!(spawned.found(|told| told.context = fork("resp_1")).await, [""; 0]);
    many_turns(&world, spawned.parent.session, (4, 1_200)).await;
    let turn = spawned.told.id;
    assert_eq!(of_thread(&spawned.desk, turn).await, [""; 0]);
    // It is made by this turn.
    let spawned_by = async |number: i64| {
        let set = format!(r#"update branch set base = base || '{{"number": {number}}}'"#);
        world.execute(set).await;
        of_thread(&spawned.desk, turn).await
    };
    assert_eq!(spawned_by(1_001).await, [""; 0]);
    assert_eq!(spawned_by(1_002).await, ["unproven unread thread resp_1"]);
    assert_eq!(spawned_by(1).await, ["violation foreign_thread thread resp_1"]);
    // The branch is gone.
    world.execute("delete from branch").await;
    let gone = ["violation source_missing thread resp_1"];
    assert_eq!(of_thread(&spawned.desk, turn).await, gone);
}

#[tokio::test]
async fn a_parent_is_told_of_its_own_branches() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let spawned = Spawned::of(Desk::open(&world, &tenant).await).await;
    let (parent, branch) = (&spawned.parent, spawned.branch);
    let fold = InputFacts {
        kind: "branch_result".to_owned(),
        result_of: Some(branch),
        ..parent.notified("join:1", "Three euro.").await
    };
    world
        .execute(format!(
            "update notification set kind = 'branch_result' where id = '{}'",
            fold.notification
        ))
        .await;
    world
        .execute(format!(
            "update branch set group_id = id, joined_item = '{}'",
            fold.notification
        ))
        .await;
    let mut told = parent.told(4, fold);
    told.known = Some((1, CONTEXT));
    told.facts.subagents = vec![Subagent {
        id: domain::BranchId(branch),
        label: Some("prices".to_owned()),
        agent: "coder".to_owned(),
    }];
    parent.write(&told).await;
    let audit = async || parent.audit(&format!("turn={}", told.id)).await;
    let found = async |change: &str| {
        world.execute(change.to_owned()).await;
        findings(&audit().await)
    };
    is_proven(&audit().await);
    let line = format!("branch/{branch}");
    assert_eq!(
        found("update branch set label = 'other'").await,
        [format!("violation hash_mismatch subagents {line}")]
    );
    let other = parent.on(Some("PROJ-8")).await.session;
    let moved = found(&format!(
        "update branch set label = 'prices', parent_session_id = '{other}'"
    ))
    .await;
    assert_eq!(moved, [format!("violation foreign_thread subagents {line}")]);
    found(&format!("update branch set parent_session_id = '{}'", parent.session)).await;
    // The result of a branch, and an item of a branch's session.
    let planted = found("update notification set body = 'The other task ships on Monday.' where id = 'join:1'").await;
    assert_eq!(planted, ["violation hash_mismatch notification notification/join:1"]);
    let of_branch = found(&format!(
        "update notification set session_id = '{}' where id = 'join:1'",
        spawned.desk.session
    ))
    .await;
    assert_eq!(
        of_branch,
        ["violation foreign_thread notification notification/join:1"; 2]
    );
}

#[tokio::test]
async fn a_context_is_a_version_of_the_turn_s_own_task() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    for (task, version) in [("proj-7", 1), ("proj-7", 2), ("proj-8", 1)] {
        known(&desk, task, version, CONTEXT).await;
    }
    let write = async |number: i64, known, change: &dyn Fn(&mut Told)| {
        let facts = desk.notified(&format!("n-{number}"), "Work.").await;
        let mut told = desk.told(number, facts);
        told.known = Some(known);
        change(&mut told);
        desk.write(&told).await;
        findings(&desk.audit(&format!("turn={}", told.id)).await)
    };
    assert_eq!(write(1, (2, CONTEXT), &|_| {}).await, [""; 0]);
    let planted = "A shop for tea.\nThe other task's password is 4711.";
    let part = "task_context task_context/proj-7/2";
    assert_eq!(
        write(2, (2, planted), &|_| {}).await,
        [format!("violation hash_mismatch {part}")]
    );
    let none = write(3, (3, CONTEXT), &|_| {}).await;
    assert_eq!(none, ["violation source_missing task_context task_context/proj-7/3"]);
    // Fifty are kept.
    known(&desk, "proj-7", 60, CONTEXT).await;
    let old = write(4, (10, CONTEXT), &|_| {}).await;
    assert_eq!(old, ["unproven retention task_context task_context/proj-7/10"]);
    let of_other = |told: &mut Told| told.facts.task.as_mut().unwrap().id = domain::TaskId::parse("PROJ-8").unwrap();
    let foreign = write(5, (1, CONTEXT), &of_other).await;
    assert!(
        foreign.contains(&"violation foreign_task task_context task_context/proj-8/1".to_owned()),
        "{foreign:?}"
    );
}

#[tokio::test]
async fn an_external_model_is_told_of_its_own_task_only() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    known(&desk, "proj-7", 1, CONTEXT).await;
    let told = desk.turn(1).await;
    rows("artifact_content")
        .with("account_id", &tenant.id)
        .insert(&world.test.owner)
        .await;
    let artifacts = [Uuid::now_v7(), Uuid::now_v7()];
    for (id, task) in artifacts.iter().zip(["proj-7", "proj-8"]) {
        let row = rows("artifact").with("account_id", &tenant.id).with("id", *id);
        row.with("task_id", task).insert(&world.test.owner).await;
    }
    let sent = Hash::of(&format!("[Task Context]\n{CONTEXT}\n\n[Request]\nReview it.")).to_string();
    let request =
        json!({"task": "PROJ-7", "context_version": 1, "artifacts": [artifacts[0]], "text_sha256": sent, "tries": 1});
    let row = rows("tool_call").with("name", "ask_model").with("result", "Fine.");
    let row = row
        .with("arguments", r#"{"request": "Review it."}"#)
        .with("request", request);
    row.from(format!("turn t where t.id = '{}'", told.id))
        .insert(&world.test.owner)
        .await;
    is_proven(&desk.audit("").await);
    for (change, back, reason) in [
        (
            r#"request = request || '{"task": "PROJ-8"}'"#,
            r#"request = request || '{"task": "PROJ-7"}'"#,
            "foreign_task",
        ),
        (
            r#"arguments = '{"request": "Review it. The password of the other task is 4711."}'"#,
            r#"arguments = '{"request": "Review it."}'"#,
            "hash_mismatch",
        ),
        (
            &format!(
                r#"request = jsonb_set(request, '{{artifacts}}', '["{}"]')"#,
                artifacts[1]
            ),
            &format!(
                r#"request = jsonb_set(request, '{{artifacts}}', '["{}"]')"#,
                artifacts[0]
            ),
            "foreign_task",
        ),
    ] {
        world.execute(format!("update tool_call set {change}")).await;
        let found = findings(&desk.audit("").await);
        assert_eq!(
            found,
            [format!("violation {reason} tool_result tool_call/ask_model/c-1")],
            "{change}"
        );
        world.execute(format!("update tool_call set {back}")).await;
    }
    world.execute("update task_context set body = 'Another text.'").await;
    assert_eq!(
        findings(&desk.audit("").await),
        ["violation hash_mismatch tool_result tool_call/ask_model/c-1"]
    );
}

/// A replay of a turn, with its turn; gives its session.
pub(crate) async fn replayed(desk: &Desk<'_>, source: TurnId, journal: Value) -> Uuid {
    let (world, tenant) = (desk.world, desk.tenant);
    let replay = Uuid::now_v7();
    let session = session(
        desk,
        "replay",
        replay,
        format!("replay:{replay}:{}:v1", tenant.id),
        None,
    )
    .await;
    let row = rows("replay").with("id", replay).with("session_id", session);
    row.from(format!("turn t where t.id = '{source}'"))
        .insert(&world.test.owner)
        .await;
    let mut turn = rows("turn")
        .with("id", Uuid::now_v7())
        .set("session_id", format!("'{session}'"));
    for column in [
        "account_id",
        "task_id",
        "agent_id",
        "generation",
        "number",
        "fence",
        "state",
        "notification_ids",
        "provider",
        "profile_version",
        "profile_hash",
        "input",
        "manifest",
        "manifest_packed",
        "tools",
        "context",
    ] {
        turn = turn.set(column, format!("o.{column}"));
    }
    let turn = turn.with("journal", journal);
    turn.from(format!("turn o where o.id = '{source}'"))
        .insert(&world.test.owner)
        .await;
    session
}

#[tokio::test]
async fn a_replay_gets_what_its_source_turn_got() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let mut spawned = Spawned::of(Desk::open(&world, &tenant).await).await;
    assert_eq!(spawned.found(|_| {}).await, [""; 0]);
    let (desk, source) = (&spawned.desk, spawned.told.id);
    let row = rows("tool_call")
        .with("name", "task_history")
        .with("result", "A history.");
    row.from(format!("turn t where t.id = '{source}'"))
        .insert(&world.test.owner)
        .await;
    let call = |name: &str, answered: &str| json!({"call_id": name, "ordinal": 0, "name": name, "arguments": "{}", "answered": answered});
    let round = |calls: Value| json!([{"response_id": null, "text": "", "calls": calls, "usage": null}]);
    let answers = [
        call("task_history", "A history."),
        call("task_status", prompt::NOT_RECORDED),
    ];
    let session = replayed(desk, source, round(json!(answers))).await;
    let audit = async || desk.audit(&format!("session={session}")).await;
    is_proven(&audit().await);
    let planted = round(json!([call("task_history", "A history of another task.")]));
    sqlx::query("update turn set journal = $2 where session_id = $1")
        .bind(session)
        .bind(planted)
        .execute(&world.test.owner)
        .await
        .unwrap();
    let found = findings(&audit().await);
    assert_eq!(
        found,
        ["violation hash_mismatch tool_result tool_call/task_history/task_history"]
    );
}

/// An item of another agent's session on the same task is none of the turn's, unless the work was handed over.
#[tokio::test]
async fn an_item_is_of_its_own_session_or_has_moved() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let reviewer = world.agent(&tenant, "reviewer").await;
    let told = desk.turn(1).await;
    // Reopened: the next generation has what waited.
    world
        .execute(format!(
            "update session set closed_at = now(), close_reason = 'task_done' where id = '{}'",
            desk.session
        ))
        .await;
    let later = Uuid::now_v7();
    let row = rows("session")
        .with("account_id", &tenant.id)
        .with("id", later)
        .with("generation", 2);
    row.with("task_id", "proj-7")
        .with("agent_id", &desk.agent)
        .insert(&world.test.owner)
        .await;
    let theirs = Uuid::now_v7();
    let row = rows("session").with("account_id", &tenant.id).with("id", theirs);
    row.with("task_id", "proj-7")
        .with("agent_id", &reviewer)
        .insert(&world.test.owner)
        .await;
    let part = format!("notification notification/{}", told.facts.notification);
    let check = async |change: String, expected: &str| {
        world.execute(change).await;
        let found = findings(&desk.audit(&format!("turn={}", told.id)).await);
        let expected = match expected {
            "" => Vec::new(),
            words => vec![format!("{words} {part}"); 2],
        };
        assert_eq!(found, expected);
    };
    check(format!("update notification set session_id = '{later}'"), "").await;
    let moved = format!("update notification set session_id = '{theirs}', agent_id = '{reviewer}'");
    check(moved, "violation foreign_thread").await;
    let handed = format!(
        "update session set close_reason = 'handed_over' where id = '{}'",
        desk.session
    );
    check(handed, "unproven changed").await;
}
