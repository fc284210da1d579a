//! Both servers below one data directory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use devstack::{Devstack, DevstackOptions, Durability};
use sqlx::{Connection, PgConnection};

use crate::nats::jetstream;
use crate::processes::{is_running, open_folder, until};

async fn start(data_dir: &Path) -> anyhow::Result<Devstack> {
    let options = DevstackOptions {
        data_dir: data_dir.to_path_buf(),
        durability: Durability::Fast,
        nats_users: None,
        start_nats: true,
        start_postgres: true,
    };
    Devstack::start(options).await
}

fn pids(stack: &mut Devstack) -> [u32; 2] {
    [
        stack.nats().unwrap().pid().unwrap(),
        stack.postgres().unwrap().pid().unwrap(),
    ]
}

async fn notes(stack: &Devstack) -> Vec<String> {
    let mut connection = PgConnection::connect(stack.database_url().unwrap()).await.unwrap();
    sqlx::query("create table if not exists note (body text)")
        .execute(&mut connection)
        .await
        .unwrap();
    sqlx::query_scalar("select body from note order by body")
        .fetch_all(&mut connection)
        .await
        .unwrap()
}

async fn note(stack: &Devstack, body: &str) {
    notes(stack).await;
    let mut connection = PgConnection::connect(stack.database_url().unwrap()).await.unwrap();
    sqlx::query("insert into note values ($1)")
        .bind(body)
        .execute(&mut connection)
        .await
        .unwrap();
}

#[tokio::test]
async fn keeps_data_in_its_directory_and_leaves_no_process() {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let mut stack = start(&data_dir).await.unwrap();
    let first = pids(&mut stack);
    note(&stack, "kept").await;
    let kept = async_nats::jetstream::stream::Config {
        name: "kept".to_owned(),
        ..Default::default()
    };
    jetstream(stack.nats_url().unwrap())
        .await
        .create_stream(kept)
        .await
        .unwrap();
    stack.stop().await.unwrap();
    assert_eq!(first.map(is_running), [false, false]);

    let stack = start(&data_dir).await.unwrap();
    assert_eq!(notes(&stack).await, ["kept"]);
    jetstream(stack.nats_url().unwrap())
        .await
        .get_stream("kept")
        .await
        .unwrap();
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn ends_with_the_value_that_holds_it() {
    let folder = open_folder();
    let mut stack = start(&folder.path().join("data")).await.unwrap();
    let pids = pids(&mut stack);
    drop(stack);
    assert_eq!(pids.map(is_running), [false, false]);
}

#[tokio::test]
async fn postgres_recovers_on_its_port_after_a_crash() {
    let folder = open_folder();
    let mut stack = start(&folder.path().join("data")).await.unwrap();
    let url = stack.database_url().unwrap().to_owned();
    note(&stack, "committed").await;
    stack.postgres().unwrap().crash().await.unwrap();
    stack.postgres().unwrap().restart().await.unwrap();
    assert_eq!(stack.database_url().unwrap(), url);
    assert_eq!(notes(&stack).await, ["committed"]);
}

#[tokio::test]
async fn lets_one_process_at_a_time_use_a_data_directory() {
    let folder = open_folder();
    let first = start(folder.path()).await.unwrap();
    let second = start(folder.path()).await.map(|_| ()).unwrap_err();
    assert!(
        second
            .to_string()
            .starts_with("another process uses the data directory"),
        "{second}"
    );
    first.stop().await.unwrap();
    start(folder.path()).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn keeps_its_passwords_to_itself() {
    let folder = open_folder();
    let stack = start(folder.path()).await.unwrap();
    for secret in ["credentials.json", "nats/nats.conf"] {
        let mode = fs::metadata(folder.path().join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let without = stack.database_url().unwrap().replace("signalbox:", "signalbox:x");
    let refused = PgConnection::connect(&without).await.map(|_| ()).unwrap_err();
    assert!(
        refused.to_string().contains("password authentication failed"),
        "{refused}"
    );
}

/// `/root` is closed to the user that Postgres runs as.
#[tokio::test]
async fn keeps_postgres_elsewhere_when_its_user_cannot_reach_the_data_directory() {
    let folder = open_folder();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let data_dir = closed.join("data");

    let stack = start(&data_dir).await.unwrap();
    note(&stack, "kept").await;
    stack.stop().await.unwrap();
    let stack = start(&data_dir).await.unwrap();
    assert_eq!(notes(&stack).await, ["kept"]);
    stack.stop().await.unwrap();

    // Without root all servers run as one user, and no data is stored elsewhere.
    if let Ok(elsewhere) = fs::read_to_string(data_dir.join("postgres/elsewhere")) {
        fs::remove_dir_all(&data_dir).unwrap();
        let stack = start(&data_dir).await.unwrap();
        assert_eq!(notes(&stack).await, [""; 0], "a new data directory is new");
        stack.stop().await.unwrap();
        fs::remove_dir_all(elsewhere).unwrap();
    }
}

#[tokio::test]
async fn ends_when_its_process_is_killed() {
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "stack::holds_a_stack_until_killed",
            "--ignored",
            "--nocapture",
        ])
        .env("HELD_DATA_DIR", &data_dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let pids = lines
        .find_map(|line| Some(line.split_once("holding ")?.1.to_owned()))
        .unwrap();
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().copied().all(is_running));

    holder.kill().unwrap();
    holder.wait().unwrap();
    // The next start does not have to wait for the old servers to end.
    start(&data_dir).await.unwrap().stop().await.unwrap();
    until("the servers of a killed process end", || {
        !pids.iter().copied().any(is_running)
    })
    .await;
}

/// Not a test by itself: [`ends_when_its_process_is_killed`] kills it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by another test"]
async fn holds_a_stack_until_killed() {
    let Some(data_dir) = std::env::var_os("HELD_DATA_DIR") else {
        return;
    };
    // Started from a thread that ends at once, which must not end the servers.
    let started = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let stack = runtime.block_on(start(Path::new(&data_dir))).unwrap();
        (runtime, stack)
    });
    let (_runtime, mut stack) = started.join().unwrap();
    let [nats, postgres] = pids(&mut stack);
    println!("holding {nats} {postgres}");
    std::future::pending::<()>().await;
}
