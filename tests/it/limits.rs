//! An account that asks too fast, or does not read what it asked for, is told to wait, by the services that strangers talk
//! to, and nobody else is.

use opentelemetry_sdk::trace::InMemorySpanExporter;
use reqwest::{Client, StatusCode, header::RETRY_AFTER};
use serde_json::Value;
use testkit::{OPERATOR_TOKEN, Reply, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::house::House;

const ONE_A_SECOND: [(&str, &str); 2] = [
    ("http.account_requests_per_second", "1"),
    ("http.account_requests_burst", "5"),
];
/// A machine that stands still between two requests lets in more than the burst.
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
    // The operator, who would mend it.
    for _ in 0..10 {
        let answer = ask(&format!("{}/api/orgs/acme/tasks", house.api()), OPERATOR_TOKEN).await;
        assert_eq!(answer.status(), StatusCode::OK);
    }
    house.close().await;
}

const MIB: f64 = 1024.0 * 1024.0;

/// What all answers hold that were not taken, as the service itself counts.
async fn held_bytes(house: &House) -> f64 {
    let page = reqwest::get(format!("{}/metrics", house.api())).await.unwrap();
    let text = page.text().await.unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("signalbox_http_answers_bytes"));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Asks, reads the status, and no more than that.
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

/// Two hundred messages of 256 KiB each, and forty who ask for all of them and do not read: each role that may read, at the
/// limit of sizes.
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
    let plant = "insert into message (account_id, id, task_id, author_kind, author_id, author_name, body)
                 select 'acme', gen_random_uuid(), 't', 'user', 'u', 'u', repeat('x', 262144) from generate_series(1, 200);
                 insert into message (account_id, id, task_id, author_kind, author_id, author_name, body)
                 select 'other', gen_random_uuid(), 't', 'user', 'u', 'u', repeat('x', 262144) from generate_series(1, 4)";
    sqlx::raw_sql(plant).execute(&house.world.database.owner).await.unwrap();
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
    // Its share, and an answer for each of the four that may be made at one time.
    assert!(held > MIB && held <= (4.0 + 4.0 * 1.5) * MIB, "{held} bytes");

    let key_of_other = house.key("other", "member").await;
    let others = format!("{}/api/orgs/other/tasks/T/messages?limit=200", house.api());
    let client = Client::new();
    let served = client.get(&others).bearer_auth(&key_of_other).send().await.unwrap();
    assert_eq!(served.status(), StatusCode::OK);
    let page: Value = served.json().await.unwrap();
    assert!(!page["items"].as_array().unwrap().is_empty());

    // Nobody reads, and nobody leaves.
    eventually("the answers are given up", || async {
        (held_bytes(&house).await == 0.0).then_some(())
    })
    .await;
    let again = client.get(format!("{}{path}", house.api())).bearer_auth(&keys[0]);
    assert_eq!(again.send().await.unwrap().status(), StatusCode::OK);
    drop(readers);
    house.close().await;
}
