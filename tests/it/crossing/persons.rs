//! The same within one account: what is a person's own is not there for colleagues, nor for keys of the account that are no admin's.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use sqlx::{AssertSqlSafe, PgPool};
use testkit::{Reply, Tenant};

use super::{
    VICTIM, calm,
    field::Field,
    generator::{Generator, Ids},
    ids,
    judge::Marks,
    number,
};
use crate::crossing::attempt::{Door, Request};

/// On every change, and nightly.
const ATTEMPTS: [u64; 2] = [3_000, 20_000];
const SEED: u64 = 20_261_128;
pub(super) const ROWS: &str = include_str!("persons.sql");
/// Of the texts of what is a person's own.
pub(super) const OWN: &str = "alder-alone";

/// What a request can name, by kind, and all of its rows in one digest.
const NAMED: [(&str, &str); 9] = [
    ("session", "select id::text from session where user_id = 'ann'"),
    ("session_key", "select key from session where user_id = 'ann'"),
    ("turn", "select id::text from turn where user_id = 'ann'"),
    ("notification", "select id from notification where user_id = 'ann'"),
    ("letter", "select id::text from dead_letter where for_user = 'ann'"),
    (
        "question",
        "select id::text from question where orchestrator = 'user:ann'",
    ),
    ("timer", "select id::text from timer where orchestrator = 'user:ann'"),
    ("memory", "select id::text from memory where owner = 'user:ann'"),
    (
        "persona",
        "select id::text from persona where visibility = 'private' and created_by = 'ann'",
    ),
];
pub(super) const DIGEST: &str = "
    select md5(string_agg(t, '|' order by t)) from (
        select s::text from session s where user_id = 'ann'
        union all select t::text from turn t where user_id = 'ann'
        union all select n::text from notification n where user_id = 'ann'
        union all select d::text from dead_letter d where for_user = 'ann'
        union all select q::text from question q where orchestrator = 'user:ann'
        union all select t::text from timer t where orchestrator = 'user:ann'
        union all select m::text from memory m where owner = 'user:ann'
        union all select p::text from persona p where created_by = 'ann') as own (t)";

pub(super) async fn own_of(owner: &PgPool) -> Ids {
    let mut own = Ids::new();
    for (kind, query) in NAMED {
        let found: Vec<String> = sqlx::query_scalar(query).fetch_all(owner).await.unwrap();
        assert!(!found.is_empty(), "{kind}");
        own.insert(kind, found);
    }
    own
}

/// A person looks at all that there is for them; the text of it.
async fn seen(field: &Field, tenant: &Tenant, token: &str) -> String {
    let mut text = String::new();
    for list in [
        "sessions",
        "notifications",
        "dead-letters",
        "questions",
        "timers",
        "personas",
        "audit/isolation",
    ] {
        let path = format!("/api/orgs/{}/{list}", tenant.account);
        text.push_str(&field.get(Door::Api, &path, token).await.to_string());
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_a_person_s_own_is_not_there_for_anybody_else() {
    let house = calm(|_| Reply::text("ok")).await;
    let owner = house.world.database.owner.clone();
    let tenant = Tenant::furnish(&owner, VICTIM).await;
    let sql = ROWS
        .replace("{secret}", &testkit::tenant::secret(OWN))
        .replace("{account}", VICTIM);
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&owner).await.unwrap();
    let field = Field::of(&house);
    let foreign = own_of(&owner).await;
    let hidden: BTreeSet<&String> = foreign.values().flatten().collect();
    let own: BTreeMap<&'static str, BTreeSet<String>> = ids(&house, &field, &tenant)
        .await
        .into_iter()
        .map(|(kind, ids)| (kind, ids.into_iter().filter(|id| !hidden.contains(id)).collect()))
        .collect();
    let marks = Arc::new(Marks::of(OWN, &foreign));

    let wanted = number("CROSSING_ATTEMPTS", ATTEMPTS[usize::from(crate::is_nightly())]);
    let mut generator = Generator::within(number("CROSSING_SEED", SEED), (&tenant, &own), foreign);
    let (mut attempts, mut made) = (Vec::new(), HashSet::new());
    while (attempts.len() as u64) < wanted {
        let attempt = generator.attempt();
        if made.insert(attempt.request.clone()) {
            attempts.push(attempt);
        }
    }
    let rows = async || sqlx::query_scalar::<_, String>(DIGEST).fetch_one(&owner).await.unwrap();
    let before = rows().await;
    let faults = field.attempt_all(attempts, &marks).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(rows().await, before, "a row of what is a person's own has changed");

    for token in ["person", "member", "service"] {
        assert!(
            !marks.secret_in(&seen(&field, &tenant, &tenant.keys[token]).await),
            "{token}"
        );
    }
    // An admin sees it, until the account says otherwise.
    assert!(marks.secret_in(&seen(&field, &tenant, &tenant.keys["admin"]).await));
    for chat in ["", "/chat"] {
        let path = format!("/api/orgs/{VICTIM}/members/ann/orchestrator{chat}");
        for (token, status) in [("person", 404), ("member", 404), ("admin", 200)] {
            let asked = Request {
                door: Door::Api,
                method: "GET",
                path: path.clone(),
                token: tenant.keys[token].clone(),
                headers: Vec::new(),
                body: None,
            };
            let answer = field.send(&asked).await;
            assert_eq!(answer.status, status, "{token} {path}: {}", answer.body);
        }
    }
    let off = "update account set orchestrators_visible_to_admins = false where id = $1";
    sqlx::query(off).bind(VICTIM).execute(&owner).await.unwrap();
    assert!(!marks.secret_in(&seen(&field, &tenant, &tenant.keys["admin"]).await));
    house.close().await;
}
