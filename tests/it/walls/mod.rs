//! Each wall alone. Every statement that a service executes during an account's life is tried before its execution, with each of
//! its account conditions removed, beside an account with the same ids ([`trials`]). Row-level security must hold without any
//! condition, and the conditions must hold where row-level security admits two accounts, as in batches. A statement in the sources
//! that was not executed fails the test.

#![allow(clippy::print_stdout, reason = "the figures are for whoever asks to see them")]

mod conditions;
mod interposed;
mod listed;
mod not_shown;
mod own;
mod people;
mod scratch;
mod seen;
mod sources;
mod trials;
mod walk;

use std::{collections::BTreeSet, sync::Arc};

use domain::AccountId;
use testkit::{Fixture, MailServer, OpenIdProvider, StubModel, StubProvider, Tenant, World, rows};

use self::{
    interposed::interpose,
    listed::{Listed, MAPPED},
    scratch::Scratch,
    sources::{mapped, plain, written},
    trials::{Book, Condition, Part, Trials, Tried},
    walk::{Walk, model_script, script},
};
use crate::{
    crossing::{ATTACKER, VICTIM, field::Field, ids},
    house::House,
};

/// Statements are slow here.
const SETTINGS: &[(&str, &str)] = &[
    ("database.acquire_timeout_ms", "60000"),
    ("database.statement_timeout_ms", "60000"),
    ("database.lock_timeout_ms", "60000"),
    ("http.request_timeout_ms", "120000"),
    ("orchestrator.list_timeout_ms", "60000"),
    ("delivery.tools_again_ms", "1000"),
    // A retry must wait.
    ("delivery.retry_delay_ms", "60000"),
    ("delivery.retry_delay_ms_max", "60000"),
    ("delivery.sweep_interval_ms", "500"),
    ("delivery.collect_debounce_ms", "1000"),
    ("orchestrator.liveness_interval_ms", "1000"),
    ("outbox.sweep_interval_ms", "500"),
    ("replica.lease_ms", "20000"),
    ("replica.renew_ms", "4000"),
];

/// Rows that are old enough for sweeps: sessions by names that both accounts have. The resting twin has none. Of branches and of
/// replays, two stay, for pages of one.
const OUTLIVED: &str = "
    update session s set closed_at = now() - interval '10 years', close_reason = coalesce(close_reason, 'task_done')
    where account_id = 'alder' and (close_reason is not null or kind = 'system' or task_id = 'chat')
      and (s.origin_id is null or (select count(*) from session o
          where o.account_id = s.account_id and o.kind = s.kind and o.origin_id < s.origin_id) = 2)";

async fn walked(part: Part) -> Book {
    let provider = StubProvider::start(script).await;
    let mut world = World::start().await;
    let owner = world.database.owner.clone();
    let tenant = Tenant::furnish(&owner, VICTIM).await;
    Fixture(&world.database)
        .twin(&AccountId::parse(VICTIM).unwrap(), ATTACKER)
        .await;
    sqlx::raw_sql(OUTLIVED).execute(&owner).await.unwrap();
    // The lists of their turns have second pages.
    let of_one_turn = "session s where s.account_id = 'alder' and s.kind in ('branch', 'replay')";
    rows("turn").with("number", 2).from(of_one_turn).insert(&owner).await;
    let refused = rows("notification")
        .with("account_id", VICTIM)
        .with("id", "long-ago")
        .with("kind", "notification");
    let refused = refused
        .with("reason", "unknown_agent")
        .set("created_at", "now() - interval '10 years'");
    refused.insert(&owner).await;
    let accepted = rows("accepted_notification")
        .with("account_id", VICTIM)
        .with("id", "accepted");
    let accepted = accepted
        .with("kind", "notification")
        .with("task", "LIVE-1")
        .with("agent", "coder");
    accepted.insert(&owner).await;
    let scratch = Scratch::open(&world.database.url, [VICTIM, ATTACKER]).await;
    let trials = Arc::new(Trials::new([VICTIM, ATTACKER], scratch, part));
    world.database.url = interpose(&world.database.url, &trials).await;
    world.provider(&provider);
    for (setting, value) in SETTINGS {
        world.set(setting, value);
    }
    let model = StubModel::start(model_script()).await;
    for (name, kind) in [("asks", "openresponses"), ("paints", "images")] {
        let entry = [
            ("kind", kind),
            ("url", &model.url()),
            ("model", "m"),
            ("private_addresses", "true"),
        ];
        for (key, value) in entry {
            world.set(&format!("models.{name}.{key}"), value);
        }
    }
    let people = OpenIdProvider::start().await;
    for (key, value) in [
        ("issuer", people.issuer.as_str()),
        ("client_id", "signalbox"),
        ("client_secret", "secret"),
        ("private_addresses", "true"),
    ] {
        world.set(&format!("sign_in.oidc.corp.{key}"), value);
    }
    let mail = MailServer::start().await;
    world.set("email.smtp_url", &mail.url);
    world.set("email.from", "signalbox@example.com");
    let mut house = House::open_in(world, provider).await;
    let field = Field::of(&house);
    let ids = ids(&house, &field, &tenant)
        .await
        .into_iter()
        .map(|(kind, ids)| (kind, ids.into_iter().collect()))
        .collect();
    let begun = std::time::Instant::now();
    let mut walk = Walk {
        house: &mut house,
        field: &field,
        tenant: &tenant,
        ids: &ids,
        trials: &trials,
        people: &people,
    };
    walk.all().await;
    house.close().await;
    println!("an account's life in {:.1?}", begun.elapsed());
    assert_eq!(trials.simple_ones(), [""; 0], "conditions without parameters");
    trials.book()
}

/// By text and position. A condition that one service showed to matter counts for all services with the same statement.
type Missed<'b> = BTreeSet<(&'b str, usize)>;

fn missed(book: &Book) -> Missed<'_> {
    let all = book.iter().flat_map(|((_, sql), tried)| {
        let conditions = tried.conditions.iter().enumerate();
        conditions
            .filter(|(_, condition)| condition.is_missed)
            .map(move |(place, _)| (sql.as_str(), place))
    });
    all.collect()
}

/// The statement's failures.
fn faults((role, text): (&str, &str), tried: &Tried, missed: &Missed<'_>, listed: &mut Listed) -> Vec<String> {
    let mut faults = Vec::new();
    let sql = &plain(text);
    let of_no_account = listed.of_no_account(role, sql);
    if let Some(crossed) = &tried.crossed {
        faults.push(format!("its conditions do not hold alone: {role}: {sql}\n  {crossed}"));
    }
    for (place, condition) in tried.conditions.iter().enumerate() {
        let Condition {
            text: words,
            is_tried,
            crossed,
            ..
        } = condition;
        if !is_tried {
            faults.push(format!("never executed without {words}: {role}: {sql}"));
        }
        if of_no_account {
            continue;
        }
        if let Some(crossed) = crossed {
            faults.push(format!(
                "row-level security does not hold alone, without {words}: {role}: {sql}\n  {crossed}"
            ));
        }
        let is_listed = listed.held_by_others(sql, words);
        if !is_listed && !missed.contains(&(text, place)) {
            faults.push(format!("{words} is not missed: {role}: {sql}"));
        }
    }
    faults
}

/// Statements of the sources that were not executed.
fn passed_by(book: &Book) -> Vec<String> {
    let executed: BTreeSet<String> = book.keys().map(|(_, sql)| plain(sql)).collect();
    let texts = written().into_iter().map(|written| (written.file, plain(&written.sql)));
    texts
        .filter(|(_, sql)| !executed.iter().any(|executed| executed.contains(sql)))
        .map(|(file, sql)| format!("the walk does not come by {file}: {sql}"))
        .collect()
}

/// Several tests run the same walk, and each tries a part of the statements.
const PARTS: u64 = 2;

async fn part_holds(nth: u64) {
    let part = Part { nth, of: PARTS };
    let book = walked(part).await;
    let (own, others): (Book, Book) = book.clone().into_iter().partition(|((_, sql), _)| part.has(sql));
    println!(
        "{} of {} statements with {} conditions, each taken out in turn",
        own.len(),
        book.len(),
        own.values().map(|tried| tried.conditions.len()).sum::<usize>(),
    );
    let mut listed = Listed::default();
    let missed = missed(&own);
    let mut found: Vec<String> = own
        .iter()
        .flat_map(|((role, sql), tried)| faults((role, sql), tried, &missed, &mut listed))
        .collect();
    // Exceptions of another part's statements are used there.
    for ((role, sql), tried) in &others {
        listed.of_no_account(role, &plain(sql));
        for condition in &tried.conditions {
            listed.held_by_others(&plain(sql), &condition.text);
        }
    }
    found.extend(passed_by(&book));
    found.extend(listed.rest());
    assert!(found.is_empty(), "{} faults\n{}", found.len(), found.join("\n"));
    assert_eq!(
        mapped()
            .iter()
            .map(|(file, count)| (file.as_str(), *count))
            .collect::<Vec<_>>(),
        MAPPED,
        "the walk has to come by all that is asked of the mapper"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wall_holds_alone_1() {
    part_holds(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wall_holds_alone_2() {
    part_holds(1).await;
}
