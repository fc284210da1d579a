//! Connecting: which servers are accepted, and how the others are refused.

use std::error::Error;

use contracts::Root;
use devstack::{NatsServer, NatsUsers};
use messaging::{Bus, BusError, BusOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{self, bare_broker, until};

fn impatient(url: &str) -> BusOptions {
    BusOptions {
        connect_timeout_ms: 500,
        ..BusOptions::new(url, Root::default(), "test")
    }
}

fn refusal(result: Result<Bus, BusError>) -> BusError {
    match result {
        Ok(_) => panic!("connected"),
        Err(error) => error,
    }
}

/// Greets like a NATS server and answers pings, with greetings that no server here sends.
async fn greeting_server(info: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            connection
                .write_all(format!("INFO {info}\r\n").as_bytes())
                .await
                .unwrap();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(1..) = connection.read(&mut buffer).await {
                    if connection.write_all(b"PONG\r\n").await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused_in_one_line() {
    let url = greeting_server(r#"{"server_id":"old","version":"2.9.10","max_payload":1048576,"jetstream":true}"#).await;
    let error = refusal(Bus::connect(impatient(&url)).await);
    assert!(
        matches!(&error, BusError::ServerTooOld { found } if found == "2.9.10"),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "NATS server 2.9.10 is too old: Signalbox needs 2.12 or newer"
    );
}

#[tokio::test]
async fn a_server_without_jetstream_is_refused() {
    let url = greeting_server(r#"{"server_id":"bare","version":"2.15.1","max_payload":1048576}"#).await;
    let error = refusal(Bus::connect(impatient(&url)).await);
    assert!(matches!(error, BusError::NoJetStream { .. }), "{error:?}");
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_after_a_bounded_wait_without_the_password() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = refusal(Bus::connect(impatient(&format!("nats://ann:secret@{address}"))).await);
    assert!(matches!(error, BusError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(error.source().is_some());
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
}

#[tokio::test]
async fn a_wrong_password_is_refused_without_trying_again() {
    let server = NatsServer::start_temporary().await.unwrap();
    let url = format!("nats://signalbox:wrong@127.0.0.1:{}", server.port());
    // The default timeout is longer than this test may take.
    let error = refusal(Bus::connect(BusOptions::new(url, Root::default(), "test")).await);
    assert!(matches!(error, BusError::Refused { .. }), "{error:?}");
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
}

/// A server's greeting does not show it, so it is tried.
#[tokio::test]
async fn a_server_that_accepts_clients_without_credentials_is_detected() {
    let check = async |authorization: &str, user: &str, takes_anyone: bool| {
        let names = [("ann".to_owned(), "ANN".to_owned())];
        let users = NatsUsers {
            config: authorization.to_owned(),
            account: None,
            names: names.into_iter().filter(|(name, _)| name == user).collect(),
        };
        let server = NatsServer::start_temporary_with(users).await.unwrap();
        let bus = Bus::connect(support::options(&server)).await.unwrap();
        assert_eq!(bus.lets_anyone_in().await, takes_anyone, "{authorization}");
        assert_eq!(bus.user(), Some(user));
    };
    let users = "authorization { users: [ { user: ann, password: $ANN } ] }";
    check(users, "ann", false).await;
    check(&format!("no_auth_user: ann\n{users}"), "ann", true).await;
    check("", "signalbox", true).await;
}

#[tokio::test]
async fn a_server_that_comes_up_later_is_waited_for() {
    let mut server = NatsServer::start_temporary().await.unwrap();
    server.stop().await.unwrap();
    let connecting = tokio::spawn(Bus::connect(support::options(&server)));
    server.restart().await.unwrap();
    let bus = support::within("connect", connecting).await.unwrap().unwrap();
    assert!(bus.is_connected());
}

#[tokio::test]
async fn readiness_follows_the_connection() {
    let mut broker = bare_broker().await;
    assert!(broker.bus.is_connected());
    broker.server.kill().await.unwrap();
    until("the loss shows", async || (!broker.bus.is_connected()).then_some(())).await;
    broker.server.restart().await.unwrap();
    until("connected again", async || broker.bus.is_connected().then_some(())).await;
}
