//! Two accounts in one batch that have tasks of the same name. Row-level security shows a batch both of them, so only
//! the batch's own columns and maps keep them apart.

use contracts::{Root, outgoing::Origin};
use domain::{Actor, TaskId, TaskStatus};
use storage::{
    Accounts, Role, Setting,
    lifecycle::{NewTask, tasks_create},
};
use testkit::{Fixture, TestDatabase};
use time::OffsetDateTime;

#[tokio::test]
async fn tasks_of_one_name_are_created_for_each() {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let (acme, umbra) = (fixture.account("acme").await, fixture.account("umbra").await);
    // One account has it in another spelling; the other does not have it.
    fixture.task(&umbra, "known-1", &[]).await;

    let database = test.connect(Role::Resolver).await;
    let tx = database.begin(&Accounts::many([&acme, &umbra])).await.unwrap();
    let (known, new) = (TaskId::parse("KNOWN-1").unwrap(), TaskId::parse("NEW-1").unwrap());
    let (root, by) = (Root::default(), Actor::system());
    let titles = ["title of acme", "title of umbra"];
    let news: Vec<(NewTask<'_>, Setting<'_>)> = [&new, &known]
        .into_iter()
        .flat_map(|task| [(&umbra, task, titles[1]), (&acme, task, titles[0])])
        .map(|(account, task, title)| {
            let new = NewTask {
                account,
                task,
                title,
                description: "",
                status: TaskStatus::Inbox,
                is_planned: false,
                by: &by,
            };
            let setting = Setting {
                root: &root,
                source: "/signalbox/resolver",
                origin: Origin::default(),
                now: OffsetDateTime::now_utc(),
            };
            (new, setting)
        })
        .collect();
    let messages = tasks_create(&tx, &news).await.unwrap();
    tx.commit().await.unwrap();

    let told: Vec<String> = messages
        .iter()
        .map(|(account, outgoing)| {
            let account = account.as_ref().expect("it is an account's");
            let payload = String::from_utf8_lossy(&outgoing.payload);
            let title = titles.iter().find(|title| payload.contains(*title));
            format!("{account} {} {}", outgoing.subject, title.expect("it says a title"))
        })
        .collect();
    assert_eq!(
        told,
        [
            "acme signalbox.event.acme.KNOWN-1.task.created title of acme",
            "acme signalbox.event.acme.NEW-1.task.created title of acme",
            "umbra signalbox.event.umbra.NEW-1.task.created title of umbra",
        ]
    );
    let tasks = "select concat_ws(' ', account_id, display_id, title) from task order by account_id, id";
    assert_eq!(
        test.texts(tasks).await,
        [
            "acme KNOWN-1 title of acme",
            "acme NEW-1 title of acme",
            "umbra known-1 known-1",
            "umbra NEW-1 title of umbra",
        ]
    );
    let activities = "select concat_ws(' ', account_id, task_id, kind, detail ->> 'title') from activity order by 1";
    assert_eq!(
        test.texts(activities).await,
        [
            "acme known-1 task.created title of acme",
            "acme new-1 task.created title of acme",
            "umbra new-1 task.created title of umbra",
        ]
    );
}
