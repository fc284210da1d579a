//! A session's log: its segments, its pages, and its text.

use axum::http::Method;
use domain::TurnId;
use prompt::{Item, Manifest, Past, PastLimits, PastTurn, manifest::Because, past_and_base, spawning};
use runtime::settings::Bytes;
use serde_json::{Value, json};
use testkit::rows;
use uuid::Uuid;

use crate::{
    prompted::{Desk, Told},
    seed,
    world::World,
};

/// Generation, thread, boundary and the numbers of the turns of each segment.
fn segments(log: &Value) -> Vec<String> {
    let line = |segment: &Value| {
        let turns = segment["turns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|turn| turn["number"].to_string());
        let reason = segment["boundary"]["reason"].as_str().unwrap_or("-");
        format!(
            "v{} t{} {reason} {}",
            segment["generation"],
            segment["thread"],
            turns.collect::<Vec<_>>().join(",")
        )
    };
    log["segments"].as_array().unwrap().iter().map(line).collect()
}

impl Desk<'_> {
    async fn log(&self, query: &str) -> Value {
        let path = self.tenant.path(&format!("/sessions/{}/log?{query}", self.session));
        let answer = self.world.get(&self.tenant.member, &path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    /// The generation is closed, and the next one is this desk's.
    async fn next(&mut self, generation: i32, reason: &str) {
        let close = format!(
            "update session set closed_at = now(), close_reason = '{reason}' where id = '{}'",
            self.session
        );
        self.world.execute(close).await;
        self.session = Uuid::now_v7();
        let row = rows("session")
            .with("account_id", &self.tenant.id)
            .with("id", self.session);
        let row = row
            .with("task_id", "proj-7")
            .with("agent_id", &self.agent)
            .with("generation", generation);
        row.insert(&self.world.test.owner).await;
    }
}

#[tokio::test]
async fn segments_begin_where_memory_does() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let mut desk = Desk::open(&world, &tenant).await;
    // Another agent's, and another task's, are no part of it.
    desk.on(Some("PROJ-8")).await.turn(1).await;
    desk.turn(1).await;
    let mut told = desk.told(2, desk.notified("n-2", "Go on.").await);
    told.context =
        serde_json::from_value(json!({"asked": "continue", "used": "continue", "reason": "thread_lost", "thread": 2}))
            .unwrap();
    told.facts.extract.messages = vec![desk.message("PROJ-7", &"é".repeat(200)).await];
    told.notes = vec![desk.noted(told.id, "noted", "And this.").await];
    desk.write(&told).await;
    seed::tool_call(&world, &tenant, told.id.uuid(), 1, r#"{"task_id": "PROJ-7"}"#).await;
    let first = desk.session;
    desk.next(2, "task_done").await;
    desk.next(3, "reset").await;
    world
        .execute(format!(
            "update session set close_detail = 'It went round.' where generation = 2 and id <> '{first}'"
        ))
        .await;
    desk.turn(1).await;

    let log = desk.log("").await;
    let all = [
        "v1 t1 opened 1",
        "v1 t2 thread_lost 2",
        "v2 tnull task_done ",
        "v3 t1 reset 1",
    ];
    assert_eq!(segments(&log), all);
    assert_eq!(log["segments"][3]["boundary"]["detail"], "It went round.");
    assert_eq!(log["segments"][0]["session_id"], json!(first));
    // Whichever generation is named.
    let path = tenant.path(&format!("/sessions/{first}/log"));
    assert_eq!(segments(&world.get(&tenant.member, &path).await.body), all);
    assert_eq!(segments(&desk.log("generation=2").await), all[2..3]);

    let turn = &log["segments"][1]["turns"][0];
    let parts: Vec<String> = turn["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| format!("{}/{}", part["layer"].as_str().unwrap(), part["part"].as_str().unwrap()))
        .collect();
    assert_eq!(
        parts,
        [
            "instructions/policy",
            "instructions/role",
            "input/notification",
            "input/task_state",
            "input/notification",
            "input/thread",
            "input/message",
            "notes/injected",
            "notes/injected",
        ]
    );
    let whole: String = turn["parts"].as_array().unwrap()[2..7]
        .iter()
        .map(|part| part["text"].as_str().unwrap())
        .collect();
    let input: String = sqlx::query_scalar("select input from turn where id = $1")
        .bind(told.id.uuid())
        .fetch_one(&world.test.owner)
        .await
        .unwrap();
    assert_eq!(whole, input, "the parts are the prompt");
    assert_eq!(
        (
            &turn["parts"][0]["same_as_previous"],
            &turn["parts"][2]["same_as_previous"]
        ),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        turn["parts"][6]["tokens_estimate"],
        json!(turn["parts"][6]["bytes"].as_u64().unwrap() / 4)
    );
    assert_eq!(
        (&turn["calls"][0]["name"], &turn["calls"][0]["result"]),
        (&json!("task_history"), &json!("a result"))
    );
    assert_eq!(turn["reply"], "Reply 2.");
}

/// Behind the calls of their turn, in the order of these; another turn's are under it.
#[tokio::test]
async fn branches_stand_under_the_turn_that_spawned_them() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let (first, second) = (desk.turn(1).await, desk.turn(2).await);
    let mut groups = Vec::new();
    for (turn, ordinal) in [(&first, 2), (&first, 1), (&second, 1)] {
        let group = Uuid::now_v7();
        let of_turn = format!("turn t where t.account_id = '{}' and t.id = '{}'", tenant.id, turn.id);
        let row = rows("tool_call").with("id", group).with("ordinal", ordinal);
        let row = row.with("name", "subagent_spawn").from(of_turn);
        row.insert(&world.test.owner).await;
        groups.push((group, turn.id.uuid()));
    }
    let spawned = async |group: usize, ordinal: i32, label: &str, state: &str| {
        let (group, turn) = groups[group];
        let of_session = format!(
            "session s where s.account_id = '{}' and s.id = '{}'",
            tenant.id, desk.session
        );
        let row = rows("branch").with("group_id", group).with("parent_turn_id", turn);
        let row = row.with("ordinal", ordinal).with("label", label).with("state", state);
        let row = match state {
            "live" => row,
            _ => row.with("joined_item", format!("join:{group}")),
        };
        row.from(of_session).insert(&world.test.owner).await;
    };
    spawned(0, 1, "docs", "live").await;
    spawned(1, 2, "tests", "failed").await;
    spawned(1, 1, "code", "finished").await;
    spawned(2, 1, "later", "live").await;

    let log = desk.log("").await;
    let turns = log["segments"][0]["turns"].as_array().unwrap();
    let lines = |turn: &Value| -> Vec<String> {
        let branches = turn["branches"].as_array().unwrap().iter();
        let line = |branch: &Value| {
            let word = |name: &str| branch[name].as_str().unwrap_or("-").to_owned();
            format!(
                "{} {} {} {}",
                word("label"),
                word("agent"),
                word("state"),
                word("joined_item")
            )
        };
        branches.map(line).collect()
    };
    let joined = format!("join:{}", groups[1].0);
    assert_eq!(
        lines(&turns[0]),
        [
            format!("code coder finished {joined}"),
            format!("tests coder failed {joined}"),
            "docs coder live -".to_owned(),
        ]
    );
    assert_eq!(lines(&turns[1]), ["later coder live -"]);

    let path = tenant.path(&format!("/sessions/{}/log", desk.session));
    let call = world.call(Method::GET, &path).token(&tenant.member);
    let text = call.header("accept", "text/plain").send().await.body;
    let indented = "\n   branch code (coder) finished  session ";
    assert!(text.as_str().unwrap().contains(indented), "{text}");
}

const LIMITS: PastLimits = PastLimits {
    entries_max: 50,
    bytes_max: 131_072,
    body_bytes_max: 4_096,
    reply_bytes_max: 8_192,
};

/// The texts of a context.
fn texts(past: &Past) -> Vec<Option<String>> {
    past.items
        .iter()
        .map(|item| Some(Item::text(item).to_owned()))
        .collect()
}

/// The texts of a shown turn's context. None: not kept.
fn shown_texts(turn: &Value) -> Vec<Option<String>> {
    let parts = turn["parts"].as_array().unwrap().iter();
    let context = parts.filter(|part| part["layer"] == "context");
    context.map(|part| part["text"].as_str().map(str::to_owned)).collect()
}

impl<'a> Desk<'a> {
    /// A session of the same agent on the same task, of another kind.
    async fn of_kind(&self, kind: &str, origin: Uuid, key: String) -> Desk<'a> {
        let session = Uuid::now_v7();
        let row = rows("session").with("account_id", &self.tenant.id).with("id", session);
        let row = row.with("kind", kind).with("origin_id", origin).with("key", key);
        let row = row.with("task_id", "proj-7").with("agent_id", &self.agent);
        let row = match kind {
            "branch" => row.with("parent_session_id", self.session),
            _ => row,
        };
        row.insert(&self.world.test.owner).await;
        Desk {
            world: self.world,
            tenant: self.tenant,
            agent: self.agent.clone(),
            task: self.task.clone(),
            session,
        }
    }

    /// A branch that a turn, the second one of its session, made when the turn had said one thing and had got one note.
    async fn branch(&self, turn: TurnId) -> Desk<'a> {
        let said = |text: &str| json!({"response_id": null, "text": text, "calls": [], "usage": null});
        let journal = json!([said("I split it."), said("This is later.")]);
        let planted = format!("update turn set journal = '{journal}' where id = '{turn}'");
        self.world.execute(planted).await;
        let branch = Uuid::now_v7();
        let key = format!("branch:{branch}:agent:{}:{}:v1", self.agent, self.tenant.id);
        let desk = self.of_kind("branch", branch, key).await;
        let base = json!({"title": "t", "description": "d", "status": "inbox", "updated_at": "2026-01-01T00:00:00Z",
                          "number": 2, "rounds": 1, "notes": 1, "hops": 0});
        let row = rows("branch").with("id", branch).with("session_id", desk.session);
        let row = row.with("parent_turn_id", turn).with("base", base);
        let of_parent = format!(
            "session s where s.account_id = '{}' and s.id = '{}'",
            self.tenant.id, self.session
        );
        row.from(of_parent).insert(&self.world.test.owner).await;
        desk
    }

    /// A turn about this, with an assembled context.
    async fn assembled(&self, number: i64, past: Past) -> (Told, Manifest) {
        let id = format!("n-{}-{number}", self.session.simple());
        let mut told = self.told(number, self.notified(&id, "Find the prices.").await);
        told.past = past;
        told.context =
            serde_json::from_value(json!({"asked": "assembled", "used": "assembled", "thread": number})).unwrap();
        let manifest = self.write(&told).await;
        (told, manifest)
    }
}

/// The spawning turn went on since: the branch shows the notes and the answers that the turn had by then. A replay of the branch's turn
/// shows the same.
#[tokio::test]
async fn a_branch_shows_the_turns_of_its_parent_as_it_knew_them() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let parent = Desk::open(&world, &tenant).await;
    let mut turns: Vec<PastTurn> = Vec::new();
    for number in 1..=2 {
        let facts = parent
            .notified(&format!("n-{number}"), &format!("Part {number}."))
            .await;
        let mut told = parent.told(number, facts);
        for note in ["first", "second"] {
            let note = parent.noted(told.id, &format!("{note}-{number}"), note).await;
            told.notes.push(note);
        }
        let manifest = parent.write(&told).await;
        let notes = told.notes.iter().map(|note| note["text"].as_str().unwrap().to_owned());
        turns.push(PastTurn {
            notes: notes.collect(),
            ..parent.past_turn(&told, &manifest)
        });
    }
    let [before, split] = [&turns[0], &turns[1]];
    let branch = parent.branch(split.id).await;
    let base = [spawning(split.clone(), &["I split it.".to_owned()], 1), before.clone()];
    let past = |own: &[PastTurn]| past_and_base(own, &base, (own.len(), Because::Past), &LIMITS, &[]);
    let (first, manifest) = branch.assembled(1, past(&[])).await;
    let (second, _) = branch.assembled(2, past(&[branch.past_turn(&first, &manifest)])).await;
    let replay = Uuid::now_v7();
    let key = format!("replay:{replay}:{}:v1", tenant.id);
    let again = branch.of_kind("replay", replay, key).await;
    let row = rows("replay").with("id", replay).with("session_id", again.session);
    row.from(format!("turn t where t.id = '{}'", second.id))
        .insert(&world.test.owner)
        .await;
    again.assembled(1, second.past.clone()).await;

    let shown = async |desk: &Desk<'_>| {
        let log = desk.log("").await;
        let segments = log["segments"].as_array().unwrap().iter();
        let turns = segments.flat_map(|segment| segment["turns"].as_array().unwrap());
        turns.map(shown_texts).collect::<Vec<_>>()
    };
    let (of_first, of_second) = (texts(&first.past), texts(&second.past));
    assert_eq!((of_first.len(), of_second.len()), (4, 6));
    assert_eq!(shown(&branch).await, [of_first.clone(), of_second.clone()]);
    assert_eq!(shown(&again).await, std::slice::from_ref(&of_second));
    let path = tenant.path(&format!("/sessions/{}/log", branch.session));
    let call = world.call(Method::GET, &path).token(&tenant.member);
    let text = call.header("accept", "text/plain").send().await.body;
    let text = text.as_str().unwrap();
    assert!(text.contains("I split it.") && !text.contains("[not kept]"), "{text}");

    let path = tenant.path(&format!("/turns/{}/diff?with={}&text=true", first.id, second.id));
    let diff = world.get(&tenant.member, &path).await.body;
    let layers = diff["layers"].as_array().unwrap();
    let context = layers.iter().find(|layer| layer["layer"] == "context").unwrap();
    assert!(
        context["diff"].as_str().unwrap().contains(" I split it.\n"),
        "{context}"
    );
    assert!(!context.to_string().contains("not kept"), "{context}");

    // Without the branch's row, nothing says what of the turn the branch knew.
    world.execute("delete from branch").await;
    let gone = |mut texts: Vec<Option<String>>| {
        texts[2..4].fill(None);
        texts
    };
    assert_eq!(shown(&branch).await, [gone(of_first), gone(of_second)]);
}

/// Calls that no tool ran for are in the turn's journal only: those of a replay, and those that delivery refused.
#[tokio::test]
async fn calls_that_delivery_answered_are_shown_in_their_places() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let (other, turn) = (desk.turn(1).await, desk.turn(2).await);
    for ordinal in [2, 0, 1] {
        seed::tool_call(&world, &tenant, turn.id.uuid(), ordinal, "{}").await;
    }
    let passed = |ordinal: i32| json!({"call_id": format!("call-{ordinal}"), "ordinal": ordinal, "name": "task_history", "arguments": "{}"});
    let answered = |id: &str, answer: &str| json!({"call_id": id, "ordinal": 0, "name": "message", "arguments": "{\"n\": 1}", "answered": answer});
    let round = |calls: Value| json!({"response_id": null, "text": "", "calls": calls, "usage": null});
    let refusal = r#"{"error":{"code":"not_recorded"}}"#;
    let journal = json!([
        round(json!([answered("a", "first"), passed(1), answered("b", refusal)])),
        round(json!([answered("c", r#"{"ok":true}"#), passed(2)])),
    ]);
    world
        .execute(format!(
            "update turn set journal = '{journal}' where id = '{}'",
            turn.id
        ))
        .await;

    let expected = [
        "call-0 finished a result",
        "a finished first",
        "call-1 finished a result",
        "b refused {\"error\":{\"code\":\"not_recorded\"}}",
        "c finished {\"ok\":true}",
        "call-2 finished a result",
    ];
    let lines = |calls: &Value| -> Vec<String> {
        let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let line = |call: &Value| {
            format!(
                "{} {} {}",
                plain(&call["call_id"]),
                plain(&call["state"]),
                plain(&call["result"])
            )
        };
        calls.as_array().unwrap().iter().map(line).collect()
    };
    let get = async |path: &str| world.get(&tenant.member, &tenant.path(path)).await.body;
    let shown = get(&format!("/turns/{}", turn.id)).await;
    assert_eq!(lines(&shown["tool_calls"]), expected);
    assert_eq!(shown["tool_calls"][1]["arguments"], json!({"n": 1}));
    assert_eq!(lines(&desk.log("").await["segments"][0]["turns"][1]["calls"]), expected);
    let (mut listed, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(&format!("/turns/{}/tool-calls?limit=2{cursor}", turn.id)).await;
        listed.extend(lines(&page["items"]));
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(listed, expected);
    let diff = get(&format!("/turns/{}/diff?with={}&text=true", other.id, turn.id)).await;
    let layers = diff["layers"].as_array().unwrap();
    let results = layers.iter().find(|layer| layer["layer"] == "results").unwrap();
    let lines = results["diff"].as_str().unwrap().lines();
    let names: Vec<&str> = lines
        .filter(|line| line.contains(" {"))
        .map(|line| &line[1..])
        .collect();
    let (passed, answered) = ("task_history {}", "message {\"n\":1}");
    assert_eq!(names, [passed, answered, passed, answered, answered, passed]);
}

/// What follows from rows is in the shown manifest, and is no part of what was stored.
#[tokio::test]
async fn a_turn_shows_the_parts_of_notes_and_results() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let first = desk.turn(1).await;
    let mut told = desk.told(2, desk.notified("n-2", "Go on.").await);
    told.notes = vec![desk.noted(told.id, "noted", "And this.").await];
    let stored = desk.write(&told).await;
    seed::tool_call(&world, &tenant, told.id.uuid(), 1, "{}").await;
    let get = async |path: String| world.get(&tenant.member, &tenant.path(&path)).await.body;
    let turn = get(format!("/turns/{}", told.id)).await;
    let parts = turn["manifest"]["parts"].as_array().unwrap();
    let (own, later) = parts.split_at(stored.parts.len());
    let later: Vec<String> = later
        .iter()
        .map(|part| format!("{} {} {}", part["part"], part["source"], part["because"]).replace('"', ""))
        .collect();
    assert_eq!(
        later,
        [
            "injected queue notification",
            "injected notification/noted notification",
            "tool_result tool_call/task_history/call-1 called",
        ]
    );
    let result = parts.last().unwrap();
    assert_eq!(
        (&result["bytes"], &result["sha256"]),
        (&json!(8), &json!(prompt::manifest::Hash::of("a result").to_string()))
    );
    for part in parts {
        let bytes = part["bytes"].as_u64().unwrap();
        assert_eq!(part["tokens_estimate"], json!(bytes / 4), "{part}");
    }
    let same = |parts: &[Value]| -> Vec<String> {
        let same = parts.iter().filter(|part| part["same_as_previous"] == true);
        same.map(|part| part["part"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(same(own)[..2], ["policy", "role"]);
    assert!(!same(parts).contains(&"injected".to_owned()), "{parts:?}");
    assert!(same(own).iter().all(|part| part != "notification"), "{own:?}");
    let turn = get(format!("/turns/{}", first.id)).await;
    assert_eq!(same(turn["manifest"]["parts"].as_array().unwrap()), [""; 0]);
    // A page that begins with it knows the turn before.
    let page = desk.log("limit=2").await;
    let page = desk
        .log(&format!("cursor={}", page["next_cursor"].as_str().unwrap()))
        .await;
    assert_eq!(page["segments"][0]["turns"][0]["parts"][0]["same_as_previous"], true);
}

#[tokio::test]
async fn every_page_goes_on_where_the_last_one_ended() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let mut desk = Desk::open(&world, &tenant).await;
    for generation in 2..=5 {
        for number in 1..=3 {
            desk.turn(number).await;
        }
        desk.next(generation, "task_done").await;
    }
    let whole = segments(&desk.log("").await);
    assert_eq!(whole.len(), 5);
    for limit in [1, 2, 3, 4, 7, 17] {
        let (mut cursor, mut turns, mut begun) = (String::new(), Vec::new(), 0);
        loop {
            let page = desk.log(&format!("limit={limit}&cursor={cursor}")).await;
            for segment in page["segments"].as_array().unwrap() {
                begun += usize::from(!segment["boundary"].is_null());
                let numbers = segment["turns"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|turn| turn["number"].as_i64().unwrap());
                turns.extend(numbers.map(|number| (segment["generation"].as_i64().unwrap(), number)));
            }
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => break,
            }
        }
        let expected: Vec<(i64, i64)> = (1..=4)
            .flat_map(|generation| (1..=3).map(move |number| (generation, number)))
            .collect();
        assert_eq!((turns, begun), (expected, 5), "{limit}");
    }
}

/// What a turn is shown with counts: instructions and assembled contexts, which are not in its row.
#[tokio::test]
async fn a_page_has_so_many_bytes_with_all_of_its_texts() {
    const BYTES_MAX: usize = 100_000;
    /// Of a page's segment, boundary and cursor.
    const AROUND_MAX: usize = 1_024;
    let world = World::with(|settings| settings.list_bytes_max = Bytes::new(BYTES_MAX as u64)).await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let mut before: Vec<(Told, Manifest)> = Vec::new();
    for number in 1..=12 {
        let facts = desk.notified(&format!("n-{number}"), &"x".repeat(3_000)).await;
        let mut told = desk.told(number, facts);
        let turns: Vec<_> = before
            .iter()
            .rev()
            .map(|(told, manifest)| (told, manifest.clone()))
            .collect();
        told.past = desk.past_of(&turns, &LIMITS);
        let manifest = desk.write(&told).await;
        before.push((told, manifest));
    }

    let (mut cursor, mut numbers, mut pages) = (String::new(), Vec::new(), Vec::new());
    loop {
        let page = desk.log(&format!("cursor={cursor}")).await;
        let bytes = page.to_string().len();
        let turns = page["segments"][0]["turns"].as_array().unwrap();
        assert!(
            turns.len() == 1 || bytes <= BYTES_MAX + AROUND_MAX,
            "{bytes} bytes in {} turns",
            turns.len()
        );
        for turn in turns {
            let parts = turn["parts"].as_array().unwrap();
            assert!(parts.iter().all(|part| part["text"].is_string()), "{turn}");
            numbers.push(turn["number"].as_i64().unwrap());
        }
        pages.push(turns.len());
        match page["next_cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => break,
        }
    }
    assert_eq!(numbers, (1..=12).collect::<Vec<i64>>());
    assert!((3..12).contains(&pages.len()), "{pages:?}");
}

#[tokio::test]
async fn text_is_for_people() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    desk.turn(1).await;
    desk.turn(2).await;
    let path = tenant.path(&format!("/sessions/{}/log", desk.session));
    let get = async |accept: &str| {
        let call = world
            .call(Method::GET, &path)
            .token(&tenant.member)
            .header("accept", accept);
        let answer = call.send().await;
        let kind = answer.headers["content-type"].to_str().unwrap().to_owned();
        (kind, answer.body)
    };
    for accept in [
        "text/plain",
        "text/plain; charset=utf-8, */*",
        "text/html, text/plain;q=0.9, application/json;q=0.1",
    ] {
        let (kind, text) = get(accept).await;
        assert_eq!(kind, "text/plain; charset=utf-8", "{accept}");
        let text = text.as_str().unwrap().to_owned();
        assert!(text.starts_with("== generation 1, thread 1"), "{text}");
        assert!(
            text.contains("   opened at ") && text.contains("[as in the turn before]"),
            "{text}"
        );
        assert!(
            text.contains(" more bytes]") && text.contains("     Body 2.\n"),
            "{text}"
        );
    }
    for accept in ["*/*", "application/json", "", "application/json, text/plain"] {
        assert_eq!(get(accept).await.0, "application/json", "{accept}");
    }
}

#[tokio::test]
async fn a_session_of_another_account_has_no_log() {
    let world = World::new().await;
    let (tenant, other) = (world.tenant("acme").await, world.tenant("globex").await);
    let desk = Desk::open(&world, &tenant).await;
    desk.turn(1).await;
    let path = |of: &crate::world::Tenant, query: &str| of.path(&format!("/sessions/{}/log{query}", desk.session));
    world
        .get(&other.member, &path(&other, ""))
        .await
        .is_problem(404, "not_found", "");
    world
        .get(&tenant.member, &path(&tenant, "?generation=2"))
        .await
        .is_problem(404, "not_found", "");
    world
        .get(&tenant.member, &path(&tenant, "?generation=0"))
        .await
        .is_problem(400, "invalid_field", "");
    let whole = world.get(&tenant.member, &path(&tenant, "?limit=1")).await;
    let cursor = whole.body["next_cursor"].as_str().unwrap();
    let foreign = path(&tenant, &format!("?generation=1&cursor={cursor}"));
    world
        .get(&tenant.member, &foreign)
        .await
        .is_problem(400, "invalid_field", "cursor");
}
