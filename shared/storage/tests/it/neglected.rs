//! The search for neglected sessions: it returns some of every account, begins with those of dead holders, and reaches
//! all of them.

use std::collections::BTreeSet;

use domain::{AccountId, SessionId};
use storage::{
    Role,
    breaker::{breaker_parked, breaker_ref},
    directory::NeglectedRound,
};
use testkit::{Fixture, TestDatabase, rows};
use uuid::Uuid;

/// Sessions of an account with a queued item.
async fn waiting(test: &TestDatabase, account: &str, count: i32) -> AccountId {
    let account = Fixture(test).account(account).await;
    let sessions = rows("session")
        .with("account_id", &account)
        .set("user_id", "'u-' || n")
        .with("queued", 1);
    sessions
        .from(format!("generate_series(1, {count}) n"))
        .insert(&test.owner)
        .await;
    let queued = rows("notification").set("id", "s.id");
    queued
        .from(format!("session s where s.account_id = '{account}'"))
        .insert(&test.owner)
        .await;
    account
}

/// A turn for each running session.
async fn turns(test: &TestDatabase) {
    let turns = rows("turn").set("id", "s.active_turn_id").with("state", "calling");
    let turns = turns.set("notification_ids", "array[s.id::text]");
    turns
        .from("session s where s.phase = 'running'")
        .insert(&test.owner)
        .await;
}

fn of<'a>(found: &'a [(AccountId, SessionId)], account: &'a AccountId) -> impl Iterator<Item = SessionId> + 'a {
    found
        .iter()
        .filter(move |(owner, _)| owner == account)
        .map(|(_, session)| *session)
}

/// Of what a breaker keeps, each account has a share of a look.
#[tokio::test]
async fn what_one_account_has_parked_hides_no_other_account() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Delivery).await;
    for (account, count) in [("a-flood", 100), ("zeta", 2)] {
        let account = Fixture(&test).account(account).await;
        let sessions = rows("session")
            .with("account_id", &account)
            .set("user_id", "'u-' || n")
            .with("phase", "backoff")
            .with("gate", "provider")
            .with("gate_ref", breaker_ref("quota"));
        sessions
            .set("gated_since", "now()")
            .from(format!("generate_series(1, {count}) n"))
            .insert(&test.owner)
            .await;
    }
    let look = async |key: &str, after: Option<&str>, limit: i32| {
        let after = after.map(|account| account.parse().unwrap());
        let found = breaker_parked(&database, key, after.as_ref(), limit).await.unwrap();
        ["a-flood", "zeta"].map(|account| found.iter().filter(|(owner, _)| owner.as_str() == account).count())
    };
    assert_eq!(
        look("quota", None, 20).await,
        [18, 2],
        "what one does not need is the other's"
    );
    assert_eq!(look("quota", None, 3).await, [2, 1]);
    assert_eq!(look("quota", Some("a-flood"), 20).await, [0, 2]);
    assert_eq!(look("another", None, 20).await, [0, 0]);
}

#[tokio::test]
async fn many_sessions_of_one_account_hide_no_other_account() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Delivery).await;
    let flood = waiting(&test, "a-flood", 100).await;
    let other = waiting(&test, "zeta", 2).await;
    let mut round = NeglectedRound::default();
    let mut all = BTreeSet::new();
    for look in 0..10 {
        let found = round.look(&database, 20).await.unwrap();
        assert_eq!(of(&found, &other).count(), 2, "in every look, also in look {look}");
        assert_eq!(of(&found, &flood).count(), 10, "its share of look {look}");
        all.extend(of(&found, &flood));
    }
    assert_eq!(all.len(), 100, "and it comes round to all");
    let again = round.look(&database, 20).await.unwrap();
    assert_eq!(
        of(&again, &flood).count(),
        0,
        "the last page was full: there might have been more"
    );
    let again = round.look(&database, 20).await.unwrap();
    assert!(
        of(&again, &flood).all(|session| all.contains(&session)),
        "from the beginning"
    );
    assert_eq!(of(&again, &flood).count(), 10);
}

#[tokio::test]
async fn more_accounts_than_a_page_holds_are_all_reached() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Delivery).await;
    let mut accounts = BTreeSet::new();
    for n in 0..7 {
        accounts.insert(waiting(&test, &format!("a-{n}"), 3).await);
    }
    let mut round = NeglectedRound::default();
    let mut all = BTreeSet::new();
    // Three calls cover the accounts once, one session of each.
    for _ in 0..9 {
        let found = round.look(&database, 3).await.unwrap();
        assert!(found.len() <= 3, "{found:?}");
        all.extend(found);
    }
    assert_eq!(all.len(), 21);
}

#[tokio::test]
async fn sessions_of_a_dead_holder_come_first() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Delivery).await;
    let account = waiting(&test, "acme", 100).await;
    let held = "update session set phase = 'running', queued = 0, lease_owner = $1, active_turn_id = gen_random_uuid()
                where id = (select max(id::text)::uuid from session where phase = 'idle') returning id";
    let (dead, alive) = (Uuid::now_v7(), Uuid::now_v7());
    sqlx::query("insert into replica (id, service, lease_until) values ($1, 'delivery', now() + interval '1 hour')")
        .bind(alive)
        .execute(&test.owner)
        .await
        .unwrap();
    let mut left = Vec::new();
    for holder in [dead, alive] {
        let id: Uuid = sqlx::query_scalar(held)
            .bind(holder)
            .fetch_one(&test.owner)
            .await
            .unwrap();
        left.push(SessionId(id));
    }
    turns(&test).await;
    let mut round = NeglectedRound::default();
    for _ in 0..3 {
        let found = round.look(&database, 5).await.unwrap();
        assert_eq!(found.first(), Some(&(account.clone(), left[0])), "{found:?}");
        assert_eq!(found.len(), 6);
        assert!(!found.contains(&(account.clone(), left[1])), "its holder lives");
    }
}

/// Sessions with a turn that waits for another attempt: one call reads a bounded number of them, and the round reads
/// all.
#[tokio::test]
async fn a_page_reads_a_bounded_number_and_the_round_reads_all() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Delivery).await;
    let account = waiting(&test, "acme", 120).await;
    let attempts = "update session set phase = 'running', queued = 0, lease_owner = gen_random_uuid(),
                    active_turn_id = gen_random_uuid()";
    sqlx::query(attempts).execute(&test.owner).await.unwrap();
    turns(&test).await;
    for queued in ["queued", "delivered"] {
        for sql in [
            "update session set phase = 'backoff', lease_owner = null, wake_at = now() + interval '1 hour'",
            "update session set wake_at = now() where id = (select max(id::text)::uuid from session)",
        ] {
            sqlx::query(sql).execute(&test.owner).await.unwrap();
        }
        let state = "update notification set state = $1";
        sqlx::query(state).bind(queued).execute(&test.owner).await.unwrap();
        let mut round = NeglectedRound::default();
        let mut found = Vec::new();
        for _ in 0..3 {
            found.push(of(&round.look(&database, 5).await.unwrap(), &account).count());
        }
        assert_eq!(found, [0, 0, 1], "fifty a look, and the last is due: {queued}");
    }
    // A session of a dead holder is found as well, and at once if it is among the first.
    let dead = "update session set phase = 'running', lease_owner = gen_random_uuid(), wake_at = null
                where id in (select max(id::text)::uuid from session union select min(id::text)::uuid from session)";
    sqlx::query(dead).execute(&test.owner).await.unwrap();
    let mut round = NeglectedRound::default();
    let mut found = Vec::new();
    for _ in 0..3 {
        let look = round.look(&database, 5).await.unwrap();
        found.push(of(&look, &account).collect::<BTreeSet<_>>().len());
    }
    assert_eq!(found, [1, 1, 2]);
}

#[tokio::test]
async fn an_account_without_unread_notifications_is_forgotten() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Delivery).await;
    waiting(&test, "acme", 10).await;
    let mut round = NeglectedRound::default();
    assert_eq!(round.look(&database, 5).await.unwrap().len(), 5);
    sqlx::query("update session set queued = 0")
        .execute(&test.owner)
        .await
        .unwrap();
    assert!(round.look(&database, 5).await.unwrap().is_empty());
    assert_eq!(format!("{round:?}").matches("acme").count(), 0, "{round:?}");
}
