//! A service may put into its outbox exactly the subjects that its broker user may publish. The one list is in a migration, the
//! other in shared/messaging/src/users.rs. A new subject needs a migration that recreates its service's policy on `outbox`.

use contracts::Root;
use messaging::{User, users};
use sea_orm::ConnectionTrait;
use storage::{Accounts, Role, outbox::BATCH};
use testkit::{Fixture, TestDatabase};

/// One subject of each kind that a user may publish, except live text, which is not in the outbox; and some that no user may
/// publish.
fn subjects(root: &Root) -> Vec<String> {
    let filled = |pattern: &str| {
        let fill = |(n, token)| match (n, token) {
            (_, "*") if n % 2 == 0 => "acme",
            (_, "*") => "T-1",
            (_, token) => token,
        };
        pattern.split('.').enumerate().map(fill).collect::<Vec<_>>().join(".")
    };
    let of_services = User::ALL.into_iter().filter(|user| *user != User::Operator);
    let mut subjects: Vec<String> = of_services
        .flat_map(|user| users::permissions(user, root).publish)
        .filter(|pattern| pattern.starts_with(&format!("{root}.")) && !pattern.contains(".live."))
        .map(|pattern| filled(&pattern))
        .collect();
    subjects.sort();
    subjects.dedup();
    assert!(subjects.len() > 15, "{subjects:?}");
    for extra in [
        "live.acme.T-1",
        "event.acme.T-1.turn.lost",
        "notification.acme.T-1.more",
        "tool.requested.acme",
        "any",
    ] {
        subjects.push(format!("{root}.{extra}"));
    }
    subjects.push(format!("more.{root}.dead.acme.T-1"));
    subjects
}

fn matches(pattern: &str, subject: &str) -> bool {
    let (pattern, subject): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), subject.split('.').collect());
    pattern.len() == subject.len() && pattern.iter().zip(&subject).all(|(p, s)| *p == "*" || p == s)
}

#[tokio::test]
async fn a_service_s_outbox_takes_what_its_user_may_publish() {
    let test = TestDatabase::fresh().await;
    let account = Fixture(&test).account("acme").await;
    let root = Root::parse("box").unwrap();
    for role in [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator] {
        let database = test.connect(role).await;
        let allowed = users::permissions(runtime::context::user(role), &root).publish;
        for subject in subjects(&root) {
            let published = !subject.contains(".live.") && allowed.iter().any(|pattern| matches(pattern, &subject));
            // Alone, and in a row of several.
            for (service, subjects) in [
                (role.service().to_owned(), subject.clone()),
                (
                    format!("{}{BATCH}", role.service()),
                    format!("{root}.dead.acme.- {subject}"),
                ),
            ] {
                let tx = database.begin(&Accounts::one(&account)).await.unwrap();
                let values = [service.into(), subjects.clone().into()];
                let written = tx.execute_raw(storage::statement(INSERT, values)).await.is_ok();
                tx.rollback().await.unwrap();
                assert_eq!(written, published, "{role:?} {subjects}");
            }
        }
    }
}

/// The same for dead letters and for the consumed subjects, on which the orchestrator signs redrives.
#[tokio::test]
async fn a_service_s_dead_letters_are_of_what_it_reads_or_publishes() {
    let test = TestDatabase::fresh().await;
    let account = Fixture(&test).account("acme").await;
    let root = Root::parse("box").unwrap();
    let mut subjects = subjects(&root);
    let extra = [
        "partition.3.acme.T-1",
        "partition.3.acme",
        "partition.acme",
        "session.resolved.acme.T-1.more",
        "session.resolved",
    ];
    subjects.extend(extra.map(|extra| format!("{root}.{extra}")));
    for role in [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator] {
        let database = test.connect(role).await;
        let user = runtime::context::user(role);
        for subject in subjects.iter().filter(|subject| !subject.contains(".live.")) {
            let tx = database.begin(&Accounts::one(&account)).await.unwrap();
            let values = [role.service().into(), subject.clone().into()];
            let written = tx.execute_raw(storage::statement(BURY, values)).await.is_ok();
            tx.rollback().await.unwrap();
            // Only the resolver sees a notification's stream subject.
            let published = match role {
                Role::Resolver => root.notification_published(subject),
                _ => subject.clone(),
            };
            assert_eq!(written, users::buries(user, &root, &published), "{role:?} {subject}");
        }
    }
}

const BURY: &str = "
    insert into dead_letter (account_id, id, service, subject, reason, detail, payload)
    values ('acme', gen_random_uuid(), $1, $2, 'r', 'd', 'p')";
const INSERT: &str = "
    insert into outbox (account_id, id, service, subject, headers, payload)
    values ('acme', gen_random_uuid(), $1, $2, '{}', '')";
