//! An account that sends too fast, or does not read its answers, gets 429 from the public services, and no other account is
//! affected.

use opentelemetry_sdk::trace::InMemorySpanExporter;
use reqwest::{Client, StatusCode, header::RETRY_AFTER};
use serde_json::{Value, json};
use testkit::{OPERATOR_TOKEN, Reply, eventually, rows};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::house::House;

const ONE_A_SECOND: [(&str, &str); 2] = [
    ("http.account_requests_per_second", "1"),
    ("http.account_requests_burst", "5"),
];
/// A machine that stalls between two requests admits more than the burst.
const TRIES_MAX: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_asks_too_fast_is_told_to_wait_and_others_are_not() {
    let house = House::open_with(|_| Reply::text("ok"), &ONE_A_SECOND).await;
    let client = Client::new();
    let ask = async |url: &str, token: &str| client.get(url).bearer_auth(token).send().await.unwrap();
    for account in ["acme", "other"] {
        house.account(account).await;
    }
    let tools = format!("{}/agent/tools", house.agent_api());
    for (role, acmes, others) in [
        (
            "member",
            format!("{}/api/orgs/acme/tasks", house.api()),
            format!("{}/api/orgs/other/tasks", house.api()),
        ),
        ("gateway", tools.clone(), tools),
    ] {
        let (key, second_key) = (house.key("acme", role).await, house.key("acme", role).await);
        let key_of_other = house.key("other", role).await;
        let mut refused = None;
        for _ in 0..TRIES_MAX {
            let answer = ask(&acmes, &key).await;
            if answer.status() == StatusCode::TOO_MANY_REQUESTS {
                refused = Some(answer);
                break;
            }
        }
        let refused = refused.unwrap_or_else(|| panic!("{role}: nothing was refused"));
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        let problem: Value = refused.json().await.unwrap();
        assert_eq!(problem["code"], "too_many_requests", "{problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains("this account"),
            "{problem}"
        );
        let mut is_shared = false;
        for _ in 0..TRIES_MAX {
            is_shared |= ask(&acmes, &second_key).await.status() == StatusCode::TOO_MANY_REQUESTS;
            if is_shared {
                break;
            }
        }
        assert!(is_shared, "{role}: a second key is no second account");
        assert_ne!(
            ask(&others, &key_of_other).await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
    }
    // The operator is not limited.
    for _ in 0..10 {
        let answer = ask(&format!("{}/api/orgs/acme/tasks", house.api()), OPERATOR_TOKEN).await;
        assert_eq!(answer.status(), StatusCode::OK);
    }
    house.close().await;
}

const MIB: f64 = 1024.0 * 1024.0;

/// Bytes of all unread bodies and answers, by the service's own gauge. Reads the service that was asked last, since all run in one
/// process here.
async fn held_bytes(house: &House) -> f64 {
    measured(house, "signalbox_http_held_bytes", "").await
}

/// The first series of that name with that label.
async fn measured(house: &House, name: &str, label: &str) -> f64 {
    let page = reqwest::get(format!("{}/metrics", house.api())).await.unwrap();
    let text = page.text().await.unwrap();
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(label));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Sends a request and reads only the status.
async fn slow_reader(address: &str, path: &str, key: &str) -> (u16, TcpStream) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    let status = std::str::from_utf8(&head[9..]).unwrap().parse().unwrap();
    (status, stream)
}

/// Two hundred messages of 256 KiB each, and forty clients that request all of them and do not read: with each reading role, at the
/// limits of sizes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_have_a_limit_and_an_end_and_others_are_served() {
    let settings = runtime::Settings::load_from("", Vec::<(String, String)>::new()).unwrap();
    let spans = InMemorySpanExporter::default();
    let _guard = runtime::telemetry::init_with_exporter("system-test", &settings.telemetry, spans).unwrap();
    let house = House::open_with(
        |_| Reply::text("ok"),
        &[
            ("http.body_timeout_ms", "5000"),
            ("http.account_answer_bytes_max", "4194304"),
            ("orchestrator.list_bytes_max", "1048576"),
            ("http.account_wait_ms", "60000"),
            ("orchestrator.list_timeout_ms", "60000"),
            ("database.acquire_timeout_ms", "60000"),
        ],
    )
    .await;
    for account in ["acme", "other"] {
        house.account(account).await;
        house.task(account, "T", &[]).await;
    }
    for (account, count) in [("acme", 200), ("other", 4)] {
        let messages = rows("message").with("account_id", account).with("task_id", "t");
        let messages = messages
            .with("body", "x".repeat(262_144))
            .from(format!("generate_series(1, {count})"));
        messages.insert(&house.world.database.owner).await;
    }
    let address = house.api().trim_start_matches("http://").to_owned();
    let path = "/api/orgs/acme/tasks/T/messages?limit=200";
    let mut keys = Vec::new();
    for role in ["admin", "member", "service"] {
        keys.push(house.key("acme", role).await);
    }
    let asked = (0..40).map(|n| slow_reader(&address, path, &keys[n % keys.len()]));
    let readers = futures::future::join_all(asked).await;
    let held = held_bytes(&house).await;
    let statuses: Vec<u16> = readers.iter().map(|(status, _)| *status).collect();
    assert!(
        statuses.iter().all(|status| [200, 429].contains(status)),
        "{statuses:?}"
    );
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    // Its share, and an answer for each of four concurrent requests.
    assert!(held > MIB && held <= (4.0 + 4.0 * 1.5) * MIB, "{held} bytes");

    let key_of_other = house.key("other", "member").await;
    let others = format!("{}/api/orgs/other/tasks/T/messages?limit=200", house.api());
    let client = Client::new();
    let served = client.get(&others).bearer_auth(&key_of_other).send().await.unwrap();
    assert_eq!(served.status(), StatusCode::OK);
    let page: Value = served.json().await.unwrap();
    assert!(!page["items"].as_array().unwrap().is_empty());

    // No client reads or disconnects.
    eventually("the answers are given up", || async {
        (held_bytes(&house).await == 0.0).then_some(())
    })
    .await;
    let again = client.get(format!("{}{path}", house.api())).bearer_auth(&keys[0]);
    assert_eq!(again.send().await.unwrap().status(), StatusCode::OK);
    drop(readers);
    house.close().await;
}

const MIB_BYTES: usize = 1024 * 1024;

/// Sends the head of a POST with a body of one mebibyte, and the first bytes of the body.
async fn slow_sender(url: &str, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}");
    let request = format!("{head}content-length: {MIB_BYTES}\r\n\r\n{}", " ".repeat(1_000));
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// 0: closed without an answer.
async fn status_of(stream: &mut TcpStream) -> u16 {
    let mut head = [0; 12];
    match stream.read_exact(&mut head).await {
        Ok(_) => std::str::from_utf8(&head[9..]).unwrap().parse().unwrap(),
        Err(_) => 0,
    }
}

/// An account with a live session: its key.
async fn with_session(house: &House, account: &str) -> String {
    house.account(account).await;
    house.agent(account, "coder").await;
    house.task(account, "T", &[]).await;
    house.notify(account, "T", "coder", account, "x").await;
    let delivered = house.until(account, account, "delivered").await;
    delivered["session_key"].as_str().unwrap().to_owned()
}

/// The bodies never arrive, and no other limit ends the wait.
const PATIENT: [(&str, &str); 2] = [
    ("http.body_timeout_ms", "600000"),
    ("http.request_timeout_ms", "600000"),
];

/// Requests with an unknown key, or with a role without the right, announce bodies of the largest size: each is refused before its
/// body is read. A role that may not read a list may not filter it either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_not_waited_for_before_its_sender_is_known() {
    let house = House::open_with(|_| Reply::text("ok"), &PATIENT).await;
    let session = with_session(&house, "acme").await;
    house.account("other").await;
    let (publisher, gateway) = (house.key("acme", "publisher").await, house.key("acme", "gateway").await);
    let (member, others) = (house.key("acme", "member").await, house.key("other", "gateway").await);
    let made_up = format!("{}{}", &gateway[..gateway.len() - 4], "0000");
    let (api, agents) = (house.api(), house.agent_api());
    let (notifications, tasks) = ("/api/orgs/acme/notifications", "/api/orgs/acme/tasks");
    for (url, path, key, expected) in [
        (&api, notifications, "", 401),
        (&api, notifications, made_up.as_str(), 401),
        (&api, notifications, &gateway, 403),
        (&api, notifications, &others, 404),
        (&api, tasks, &publisher, 403),
        (&api, "/api/accounts", &member, 403),
        (&api, "/api/orgs/acme/agents", &member, 403),
        (&api, "/api/orgs/acme/keys", &member, 403),
        (&api, "/api/orgs/acme/tasks/T/messages", &publisher, 403),
        (&agents, "/agent/task-message", "", 401),
        (&agents, "/agent/task-message", &made_up, 401),
        (&agents, "/agent/task-message", &publisher, 403),
        (&agents, "/agent/task-message", &member, 403),
        (&agents, "/agent/task-message", &others, 404),
        (&agents, "/agent/tools/task_message", "", 401),
    ] {
        let headers = format!("authorization: Bearer {key}\r\nx-openclaw-session-key: {session}\r\n");
        let mut sender = slow_sender(url, path, if key.is_empty() { "" } else { &headers }).await;
        assert_eq!(status_of(&mut sender).await, expected, "{path} {key}");
    }
    let client = Client::new();
    for key in [&publisher, &gateway] {
        for list in [
            "notifications?state=failed",
            "notifications?agent=coder",
            "tasks",
            "sessions?state=closed",
        ] {
            let answer = client
                .get(format!("{api}/api/orgs/acme/{list}"))
                .bearer_auth(key)
                .send()
                .await
                .unwrap();
            assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{list}");
        }
    }
    // With its right size, and larger.
    let post = async |bytes: usize| {
        let body = json!({"id": format!("n-{bytes}"), "agent": "coder", "body": "x".repeat(bytes)});
        let request = client
            .post(format!("{api}{notifications}"))
            .bearer_auth(&publisher)
            .json(&body);
        request.send().await.map(|answer| answer.status().as_u16())
    };
    assert_eq!(post(1_000).await.unwrap(), 202);
    house.until("acme", "n-1000", "delivered").await;
    assert_eq!(post(MIB_BYTES - 1_000).await.unwrap(), 413);
    // An unread refused body may be cut off while it is sent.
    assert!(matches!(post(MIB_BYTES + 1_000).await, Ok(413) | Err(_)));
    house.close().await;
}

/// Forty senders of one account announce a mebibyte each and send a thousandth of it, with the roles of the fewest rights: only the
/// account's share is reserved, the other account is served, and each sender's connection is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_do_not_come_have_a_limit_and_an_end_and_others_are_served() {
    let settings = runtime::Settings::load_from("", Vec::<(String, String)>::new()).unwrap();
    let spans = InMemorySpanExporter::default();
    let _guard = runtime::telemetry::init_with_exporter("system-test", &settings.telemetry, spans).unwrap();
    let house = House::open_with(
        |_| Reply::text("ok"),
        &[
            ("http.body_timeout_ms", "5000"),
            ("http.request_timeout_ms", "600000"),
            ("http.account_answer_bytes_max", "4194304"),
        ],
    )
    .await;
    let (session, session_of_other) = (with_session(&house, "acme").await, with_session(&house, "other").await);
    let client = Client::new();
    let body = "x".repeat(8 * 1024);
    for (role, url, path, large) in [
        (
            "publisher",
            house.api(),
            "/api/orgs/{account}/notifications",
            json!({"id": "large", "agent": "coder", "body": body}),
        ),
        (
            "gateway",
            house.agent_api(),
            "/agent/task-message",
            json!({"task_id": "T", "body": body}),
        ),
    ] {
        let path = |account: &str| path.replace("{account}", account);
        let key = house.key("acme", role).await;
        let headers = format!("authorization: Bearer {key}\r\nx-openclaw-session-key: {session}\r\n");
        let mut senders = Vec::new();
        for _ in 0..40 {
            senders.push(slow_sender(&url, &path("acme"), &headers).await);
        }
        eventually("the account's share is taken", || async {
            let held = held_bytes(&house).await;
            // Refusals are answers, and count beside the bodies.
            assert!(held < 4.1 * MIB, "{held} bytes");
            (held > 3.0 * MIB).then_some(())
        })
        .await;

        let others = house.key("other", role).await;
        let request = client
            .post(format!("{url}{}", path("other")))
            .bearer_auth(&others)
            .json(&large);
        let served = request
            .header("x-openclaw-session-key", &session_of_other)
            .send()
            .await
            .unwrap();
        assert!(served.status().is_success(), "{role}: {served:?}");

        let statuses = futures::future::join_all(senders.iter_mut().map(status_of)).await;
        let given_up = statuses.iter().filter(|status| **status == 408).count();
        assert!(
            statuses.iter().all(|status| [408, 429].contains(status)),
            "{role}: {statuses:?}"
        );
        // Without slow clients, four at a time.
        assert!(given_up >= 4 && statuses.contains(&429), "{role}: {statuses:?}");
        eventually("nothing is kept", || async {
            (held_bytes(&house).await == 0.0).then_some(())
        })
        .await;
    }
    house.until("other", "large", "delivered").await;
    house.close().await;
}

/// An agent's gateway that requests the longest answers one after the other on each connection, and reads none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_reads_nothing_is_given_up_and_others_are_served() {
    let settings = runtime::Settings::load_from("", Vec::<(String, String)>::new()).unwrap();
    let spans = InMemorySpanExporter::default();
    let _guard = runtime::telemetry::init_with_exporter("system-test", &settings.telemetry, spans).unwrap();
    let house = House::open_with(
        |_| Reply::text("ok"),
        &[
            ("http.body_timeout_ms", "5000"),
            ("http.account_answer_bytes_max", "4194304"),
            ("http.account_wait_ms", "60000"),
            ("database.acquire_timeout_ms", "60000"),
        ],
    )
    .await;
    let (session, session_of_other) = (with_session(&house, "acme").await, with_session(&house, "other").await);
    let messages = rows("message")
        .set("account_id", "a.id")
        .with("task_id", "t")
        .with("body", "x".repeat(4096));
    let messages = messages.from("generate_series(1, 50), account a where a.id in ('acme', 'other')");
    messages.insert(&house.world.database.owner).await;
    let (key, others) = (house.key("acme", "gateway").await, house.key("other", "gateway").await);
    let url = house.agent_api();
    let body = json!({"task_id": "T", "message_limit": 50}).to_string();
    let request = format!(
        "POST /agent/task-history HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
         x-openclaw-session-key: {session}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut readers = Vec::new();
    for _ in 0..20 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let address = url.trim_start_matches("http://").parse().unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        stream.write_all(request.repeat(20).as_bytes()).await.unwrap();
        readers.push(stream);
    }
    let client = Client::new();
    let ask = client
        .post(format!("{url}/agent/task-history"))
        .bearer_auth(&others)
        .body(body);
    let served = ask
        .header("x-openclaw-session-key", &session_of_other)
        .send()
        .await
        .unwrap();
    assert_eq!(served.status(), StatusCode::OK);
    assert!(served.bytes().await.unwrap().len() > 32 * 1024, "a long answer");
    // An answer of this size fits into hyper's buffer: each connection holds one, and loses it when it is closed.
    eventually("each is given up", || async {
        let held = held_bytes(&house).await;
        assert!(held <= 4.0 * MIB, "{held} bytes");
        (measured(&house, "signalbox_http_refused_total", "why=\"slow\"").await >= 20.0).then_some(())
    })
    .await;
    assert_eq!(held_bytes(&house).await, 0.0);
    drop(readers);
    house.close().await;
}
