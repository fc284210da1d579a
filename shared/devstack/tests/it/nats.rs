//! nats-server alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use devstack::{Durability, NatsOptions, NatsServer, NatsUsers};

use crate::processes::is_running;

/// The client takes a name and password from its options only, not from the URL.
pub(crate) async fn jetstream(url: &str) -> async_nats::jetstream::Context {
    let server: async_nats::ServerAddr = url.parse().unwrap();
    let (user, password) = (
        server.username().unwrap().to_owned(),
        server.password().unwrap().to_owned(),
    );
    let options = async_nats::ConnectOptions::with_user_and_password(user, password);
    let options = options.request_timeout(Some(std::time::Duration::from_millis(500)));
    async_nats::jetstream::new(options.connect(server).await.unwrap())
}

async fn jetstream_refused(url: &str) -> bool {
    let server: async_nats::ServerAddr = url.parse().unwrap();
    let (user, password) = (
        server.username().unwrap().to_owned(),
        server.password().unwrap().to_owned(),
    );
    let options = async_nats::ConnectOptions::with_user_and_password(user, password);
    options.connect(server).await.is_err()
}

async fn publish(server: &NatsServer, stream: &str) -> u64 {
    let jetstream = jetstream(server.url()).await;
    let config = async_nats::jetstream::stream::Config {
        name: stream.to_owned(),
        subjects: vec![format!("{stream}.>")],
        ..Default::default()
    };
    jetstream.get_or_create_stream(config).await.unwrap();
    jetstream
        .publish(format!("{stream}.a"), "x".into())
        .await
        .unwrap()
        .await
        .unwrap()
        .sequence
}

#[tokio::test]
async fn keeps_port_and_messages_through_stop_and_kill() {
    let mut server = NatsServer::start_temporary().await.unwrap();
    let (port, first) = (server.port(), server.pid().unwrap());
    assert_eq!(publish(&server, "orders").await, 1);

    server.restart().await.unwrap();
    assert_eq!((server.port(), is_running(first)), (port, false));
    assert_eq!(publish(&server, "orders").await, 2);

    server.kill().await.unwrap();
    assert_eq!(server.pid(), None);
    server.restart().await.unwrap();
    assert_eq!(publish(&server, "orders").await, 3);

    server.wipe_store().await.unwrap();
    server.restart().await.unwrap();
    assert_eq!((server.port(), publish(&server, "orders").await), (port, 1));
}

#[tokio::test]
async fn is_gone_with_its_directory_when_dropped() {
    let server = NatsServer::start_temporary().await.unwrap();
    let pid = server.pid().unwrap();
    assert!(is_running(pid));
    drop(server);
    assert!(!is_running(pid));
}

#[tokio::test]
async fn refuses_a_client_without_the_password() {
    let server = NatsServer::start_temporary().await.unwrap();
    let refused = async_nats::connect(format!("nats://127.0.0.1:{}", server.port())).await;
    assert!(refused.unwrap_err().to_string().contains("authorization"));
}

#[tokio::test]
async fn users_have_passwords_and_rights_of_their_own() {
    let users = NatsUsers {
        config: "authorization { users: [
            { user: reader, password: $READER, permissions: { publish: [\"letters\"], subscribe: [\"news\", \"_INBOX.>\"] } }
            { user: owner, password: $OWNER } ] }"
            .to_owned(),
        account: None,
        names: [("reader", "READER"), ("owner", "OWNER")]
            .map(|(user, variable)| (user.to_owned(), variable.to_owned()))
            .into(),
    };
    let server = NatsServer::start_temporary_with(users).await.unwrap();
    assert!(server.url().starts_with("nats://owner:"));
    let (reader, owner) = (server.url_of("reader"), server.url_of("owner"));
    assert_eq!(owner, server.url());
    assert!(jetstream(&owner).await.query_account().await.is_ok());
    assert_eq!(server.violations().unwrap(), Vec::<String>::new());
    assert!(
        jetstream(&reader).await.query_account().await.is_err(),
        "it may only publish letters"
    );
    let violations = server.violations().unwrap();
    assert!(
        violations.len() == 1 && violations[0].contains("$JS.API.INFO"),
        "{violations:?}"
    );
    let stolen = reader.replace("reader", "owner");
    assert!(jetstream_refused(&stolen).await, "passwords differ");
}

/// The store of a server without accounts moves to the account that holds JetStream.
#[tokio::test]
async fn a_server_with_accounts_takes_over_the_store_of_one_without() {
    let folder = tempfile::tempdir().unwrap();
    let start = async |users| {
        let options = NatsOptions {
            directory: folder.path().to_path_buf(),
            durability: Durability::Fast,
            users,
        };
        NatsServer::start(options).await.unwrap()
    };
    let accounts = || NatsUsers {
        config: "accounts { HOLDER { jetstream: enabled, users: [ { user: owner, password: $OWNER } ] } }".to_owned(),
        account: Some("HOLDER".to_owned()),
        names: vec![("owner".to_owned(), "OWNER".to_owned())],
    };
    let mut before = start(None).await;
    for sequence in 1..=3 {
        assert_eq!(publish(&before, "orders").await, sequence);
    }
    before.kill().await.unwrap();
    let created = async |server: &NatsServer| {
        let stream = jetstream(server.url()).await.get_stream("orders").await.unwrap();
        stream.cached_info().created
    };
    let mut now = start(Some(accounts())).await;
    let first = created(&now).await;
    assert_eq!(publish(&now, "orders").await, 4);
    // Data that a server without accounts stored meanwhile must neither be lost nor be merged.
    now.stop().await.unwrap();
    let mut before = start(None).await;
    assert_eq!(publish(&before, "orders").await, 1);
    before.stop().await.unwrap();
    let now = start(Some(accounts())).await;
    assert_eq!(publish(&now, "orders").await, 5);
    assert_eq!(created(&now).await, first);
}

/// The program is named by the environment, so the child of this test has an environment of its own.
#[tokio::test]
async fn refuses_a_server_that_ignores_newer_stream_settings() {
    let folder = crate::processes::open_folder();
    let old = folder.path().join("nats-server");
    fs::write(&old, "#!/bin/sh\necho 'nats-server: v2.9.10'\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();

    let said = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "nats::starts_what_the_environment_names",
            "--ignored",
            "--nocapture",
        ])
        .env("SIGNALBOX_NATS_SERVER", &old)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("which is nats-server 2.9, older than 2.12"), "{said}");
}

/// Not a test by itself: [`refuses_a_server_that_ignores_newer_stream_settings`] runs it.
#[tokio::test]
#[ignore = "run by another test"]
async fn starts_what_the_environment_names() {
    match NatsServer::start_temporary().await {
        Ok(server) => println!("started {}", server.port()),
        Err(error) => println!("{error:#}"),
    }
}
