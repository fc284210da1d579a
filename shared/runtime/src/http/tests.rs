//! Tests of the router and of real connections: limits, problems, health pages and an orderly end.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes, to_bytes},
    http::{Request, Response, StatusCode, header},
    response::IntoResponse,
    routing::{get, post},
};
use opentelemetry_sdk::trace::InMemorySpanExporter;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, mpsc},
    time::timeout,
};
use tower::ServiceExt;

use super::*;
use crate::{
    Shutdown,
    settings::{Count, Millis, TelemetrySettings},
    telemetry,
};

const LIMIT: Duration = Duration::from_secs(10);

struct App {
    router: Router,
    shutdown: Shutdown,
}

impl App {
    fn new(routes: Router, settings: &HttpSettings) -> App {
        App::with_health(routes, settings, |health| health)
    }

    fn with_health(routes: Router, settings: &HttpSettings, checks: impl FnOnce(Health) -> Health) -> App {
        let shutdown = Shutdown::new();
        let health = checks(Health::new(settings, &shutdown));
        App {
            router: router(routes, health, settings, shutdown.clone()),
            shutdown,
        }
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.expect("routers do not fail")
    }

    async fn get(&self, path: &str) -> Response<Body> {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }
}

async fn body(response: Response<Body>) -> Value {
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// No constant of a library is less than the settings.
#[tokio::test]
async fn a_body_has_the_size_of_its_setting() {
    const LONG: usize = 5_000_000;
    let taken = post(async |given: Body| super::body(given).await.map(|body| body.len().to_string()));
    let routes = Router::new()
        .route("/other", taken.clone())
        .route("/upload", taken.clone());
    let settings = HttpSettings {
        body_bytes_max: domain::Bytes::new(LONG as u64),
        ..HttpSettings::default()
    };
    let shutdown = Shutdown::new();
    let health = Health::new(&settings, &shutdown);
    let routes = Routes::from(routes).with_bodies_of("/upload", LONG + 1, "upload_bytes_max");
    let router = router(routes, health, &settings, shutdown);
    let sent = async |path: &str, bytes: usize| {
        let request = Request::post(path).body(Body::from(vec![b'x'; bytes])).unwrap();
        router.clone().oneshot(request).await.expect("routers do not fail")
    };
    for (path, bytes) in [("/other", LONG), ("/upload", LONG + 1)] {
        assert_eq!(sent(path, bytes).await.status(), 200, "{path}");
        assert_eq!(sent(path, bytes + 1).await.status(), 413, "{path}");
    }
    assert_eq!(
        body(sent("/upload", LONG + 2).await).await["detail"],
        "the body is too long; at most 5000001 bytes are taken (upload_bytes_max)"
    );
}

#[tokio::test]
async fn every_error_is_a_problem() {
    async fn name(Json(body): Json<Value>) -> String {
        body["name"].as_str().unwrap_or_default().to_owned()
    }
    async fn panics() {
        panic!("on purpose, with a secret");
    }
    let routes = Router::new()
        .route("/name", post(name))
        .route("/raw", post(async |given: Body| super::body(given).await.map(drop)))
        .route("/panic", get(panics))
        .route(
            "/fails",
            get(|| async { (StatusCode::INTERNAL_SERVER_ERROR, "a secret") }),
        )
        .route(
            "/json",
            get(|| async { (StatusCode::CONFLICT, Json(json!({"mine": true}))) }),
        )
        .route("/who", get(|| async { Problem::unauthorized() }))
        .route(
            "/taken",
            get(|| async { Problem::conflict("id_reused", "another body").with("id", "ci-1") }),
        );
    let settings = HttpSettings {
        body_bytes_max: domain::Bytes::new(64),
        ..HttpSettings::default()
    };
    let app = App::new(routes, &settings);
    let check = async |request: Request<Body>, status: u16, code: &str, detail: Value| {
        let about = format!("{} {}", request.method(), request.uri());
        let response = app.send(request).await;
        assert_eq!(response.status(), status, "{about}");
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "application/problem+json",
            "{about}"
        );
        assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
        let problem = body(response).await;
        assert_eq!(problem["type"], format!("urn:signalbox:problem:{code}"), "{about}");
        assert_eq!(problem["code"], code, "{about}");
        assert_eq!(problem["status"], status, "{about}");
        assert_eq!(problem["instance"], format!("urn:signalbox:request:{id}"), "{about}");
        assert_eq!(problem["detail"], detail, "{about}");
        problem
    };
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let post = |path: &str, text: &str| {
        Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(text.to_owned()))
            .unwrap()
    };

    let nothing = json!("nothing is at /nowhere, or this token may not read it");
    check(get("/nowhere"), 404, "not_found", nothing).await;
    check(get("/name"), 405, "method_not_allowed", Value::Null).await;
    check(
        post("/name", "{"),
        400,
        "invalid",
        json!("Failed to parse the request body as JSON: EOF while parsing an object at line 1 column 1"),
    )
    .await;
    check(
        post("/raw", &"x".repeat(65)),
        413,
        "too_large",
        json!("the body is too long; at most 64 bytes are taken (http.body_bytes_max)"),
    )
    .await;
    let mut said = post("/name", "");
    said.headers_mut().insert(header::CONTENT_LENGTH, 65.into());
    check(
        said,
        413,
        "too_large",
        json!("the body is too long; at most 64 bytes are taken (http.body_bytes_max)"),
    )
    .await;
    check(get("/panic"), 500, "internal", Value::Null).await;
    check(get("/fails"), 500, "internal", Value::Null).await;
    check(
        get("/who"),
        401,
        "unauthorized",
        json!("send Authorization: Bearer with a valid key"),
    )
    .await;
    let taken = check(get("/taken"), 409, "id_reused", json!("another body")).await;
    assert_eq!(taken["id"], "ci-1");

    let own = app.get("/json").await;
    assert_eq!(
        (own.status(), body(own).await),
        (StatusCode::CONFLICT, json!({"mine": true}))
    );
    let not_allowed = app.get("/name").await;
    assert_eq!(
        not_allowed.headers()[header::ALLOW],
        "POST",
        "what axum says in headers stays"
    );
    assert_eq!(app.get("/who").await.headers()[header::WWW_AUTHENTICATE], "Bearer");
}

#[tokio::test]
async fn refuses_what_is_too_slow_or_too_many() {
    let never = || async {
        std::future::pending::<()>().await;
        "never"
    };
    let settings = HttpSettings {
        request_timeout_ms: Millis::new(1),
        ..HttpSettings::default()
    };
    let slow = App::new(Router::new().route("/", get(never)), &settings).get("/").await;
    assert_eq!(slow.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(slow.headers()[header::RETRY_AFTER], "1");
    assert_eq!(body(slow).await["code"], "timeout");

    let settings = HttpSettings {
        requests_max: Count::new(1),
        ..HttpSettings::default()
    };
    let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let held = (Arc::clone(&entered), Arc::clone(&leave));
    let wait = move || {
        let (entered, leave) = held.clone();
        async move {
            entered.notify_one();
            leave.notified().await;
        }
    };
    let app = Arc::new(App::new(Router::new().route("/", get(wait)), &settings));
    let first = tokio::spawn({
        let app = Arc::clone(&app);
        async move { app.get("/").await.status() }
    });
    timeout(LIMIT, entered.notified()).await.unwrap();
    let refused = app.get("/").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    assert_eq!(
        app.get("/healthz").await.status(),
        StatusCode::OK,
        "health is outside of the limits"
    );
    leave.notify_one();
    assert_eq!(first.await.unwrap(), StatusCode::OK);
}

#[tokio::test]
async fn readiness_names_what_is_missing() {
    let settings = HttpSettings {
        check_timeout_ms: Millis::new(20),
        ..HttpSettings::default()
    };
    let app = App::with_health(Router::new(), &settings, |health| {
        health
            .check("database", || async { Ok::<(), &str>(()) })
            .check("bus", || async { Err("not connected") })
            .check("partitions", std::future::pending::<Result<(), String>>)
    });
    let response = app.get("/readyz").await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        body(response).await,
        json!({"status": "not ready", "checks":
            {"database": "ok", "bus": "not connected", "partitions": "no answer in time"}})
    );
    assert_eq!(app.get("/healthz").await.status(), StatusCode::OK, "alive all the same");

    let app = App::with_health(Router::new(), &settings, |health| {
        health.check("database", || async { Ok::<(), &str>(()) })
    });
    assert_eq!(app.get("/readyz").await.status(), StatusCode::OK);
    app.shutdown.begin_stop();
    let stopping = app.get("/readyz").await;
    assert_eq!(stopping.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body(stopping).await, json!({"status": "stopping"}));
}

#[tokio::test]
async fn continues_the_callers_trace_and_counts_the_request() {
    let exporter = InMemorySpanExporter::default();
    telemetry::init_with_exporter("test", &TelemetrySettings::default(), exporter.clone()).unwrap();
    let app = App::new(
        Router::new().route("/tasks/{task}", get(|| async { "ok" })),
        &HttpSettings::default(),
    );
    let request = Request::get("/tasks/secret-7?q=1")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .header("x-request-id", "from-the-caller")
        .body(Body::empty())
        .unwrap();
    let response = app.send(request).await;
    assert_eq!(response.headers()["x-request-id"], "from-the-caller");

    let spans = exporter.get_finished_spans().unwrap();
    let span = spans
        .iter()
        .find(|span| span.name == "GET /tasks/{task}")
        .expect("named by its pattern");
    assert_eq!(
        span.span_context.trace_id().to_string(),
        "0af7651916cd43dd8448eb211c80319c"
    );
    assert_eq!(span.parent_span_id.to_string(), "b7ad6b7169203331");
    let text = to_bytes(app.get("/metrics").await.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.contains("http_server_request_duration_seconds_count"), "{text}");
    assert!(text.contains("/tasks/{task}") && !text.contains("secret-7"), "{text}");
}

#[tokio::test]
async fn a_strange_request_id_is_replaced() {
    let app = App::new(Router::new().route("/", get(|| async {})), &HttpSettings::default());
    for strange in ["a b", "{\"x\":1}", &"x".repeat(65)] {
        let request = Request::get("/")
            .header("x-request-id", strange)
            .body(Body::empty())
            .unwrap();
        let id = app.send(request).await.headers()["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(uuid::Uuid::try_parse(&id).is_ok(), "{id}");
    }
}

/// A request in progress when the process stops is answered; then no listener accepts any more.
#[tokio::test]
async fn ends_gracefully() {
    let (entered_tx, mut entered_rx) = mpsc::channel::<()>(1);
    let leave = Arc::new(Notify::new());
    let held = Arc::clone(&leave);
    let wait = move || {
        let (entered, leave) = (entered_tx.clone(), Arc::clone(&held));
        async move {
            entered.send(()).await.unwrap();
            leave.notified().await;
            "done".into_response()
        }
    };
    let settings = HttpSettings::default();
    let app = App::new(Router::new().route("/", get(wait)), &settings);
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    app.shutdown.spawn(
        "http",
        serve(listener, app.router.clone(), settings, app.shutdown.clone()),
    );

    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    timeout(LIMIT, entered_rx.recv()).await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    let stopping = tokio::spawn({
        let shutdown = app.shutdown.clone();
        async move { shutdown.stop(LIMIT).await }
    });
    app.shutdown.cancelled().await;
    leave.notify_one();

    let mut answer = String::new();
    timeout(LIMIT, client.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("done"),
        "{answer}"
    );
    assert_eq!(timeout(LIMIT, idle.read(&mut [0])).await.unwrap().unwrap(), 0);
    assert!(stopping.await.unwrap().is_empty());
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn refuses_headers_that_are_too_large() {
    let settings = HttpSettings::default();
    let app = App::new(Router::new().route("/", get(|| async {})), &settings);
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    app.shutdown.spawn(
        "http",
        serve(listener, app.router.clone(), settings, app.shutdown.clone()),
    );
    let request = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n",
        "x".repeat(20 * 1024)
    );
    // The server may close before it has read all.
    let _ = client.write_all(request.as_bytes()).await;
    let mut answer = [0; 12];
    timeout(LIMIT, client.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
    app.shutdown.stop(LIMIT).await;
}

/// An address over its rate gets a problem with the time of the next attempt. Other addresses, and the health pages,
/// are served.
#[tokio::test]
async fn an_address_over_its_rate_gets_429() {
    let settings = HttpSettings {
        address_requests_per_second: Count::new(1),
        address_requests_burst: Count::new(1),
        ..HttpSettings::default()
    };
    let app = App::new(Router::new().route("/", get(|| async {})), &settings);
    let from = |address: &str, path: &str| {
        let peer = super::address::Peer(address.parse().unwrap());
        Request::get(path).extension(peer).body(Body::empty()).unwrap()
    };
    let mut answer = app.send(from("203.0.113.9:1", "/")).await;
    assert_eq!(answer.status(), StatusCode::OK);
    // One token a second is refilled: a machine that stalls in between admits more.
    for _ in 0..100 {
        answer = app.send(from("203.0.113.9:2", "/")).await;
        if answer.status() != StatusCode::OK {
            break;
        }
    }
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
    assert_eq!(body(answer).await["code"], "too_many_requests");
    assert_eq!(app.send(from("203.0.113.10:1", "/")).await.status(), StatusCode::OK);
    for _ in 0..10 {
        assert_eq!(
            app.send(from("203.0.113.9:3", "/healthz")).await.status(),
            StatusCode::OK
        );
        assert_eq!(
            app.send(from("127.0.0.1:3", "/")).await.status(),
            StatusCode::OK,
            "loopback"
        );
    }
}

async fn served(settings: HttpSettings, routes: Router) -> (App, std::net::SocketAddr) {
    let app = App::new(routes, &settings);
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    app.shutdown.spawn(
        "http",
        serve(listener, app.router.clone(), settings, app.shutdown.clone()),
    );
    (app, address)
}

/// All bytes until the server closes.
async fn until_closed(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset counts as a close.
    let _ = timeout(LIMIT, client.read_to_end(&mut answer))
        .await
        .expect("the server should close");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn headers_that_never_end_and_bodies_that_stand_still_are_given_up() {
    let settings = HttpSettings {
        header_timeout_ms: Millis::new(50),
        body_timeout_ms: Millis::new(50),
        ..HttpSettings::default()
    };
    let (app, address) = served(settings, Router::new().route("/", post(|_body: Bytes| async {}))).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\nx-slow: ")
        .await
        .unwrap();
    let answer = until_closed(&mut client).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");

    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
        .await
        .unwrap();
    let answer = until_closed(&mut client).await;
    assert!(
        answer.starts_with("HTTP/1.1 4") && answer.contains("application/problem+json"),
        "{answer}"
    );
    app.shutdown.stop(LIMIT).await;
}

#[tokio::test]
async fn a_slow_body_has_a_limit_as_a_whole() {
    let settings = HttpSettings {
        request_timeout_ms: Millis::new(50),
        ..HttpSettings::default()
    };
    let (app, address) = served(settings, Router::new().route("/", post(|_body: Bytes| async {}))).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        .await
        .unwrap();
    let (mut reader, mut writer) = client.split();
    let mut answer = [0; 12];
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let answered = async {
        // Writes are dropped with the test; reads are kept.
        tokio::select! {
            read = reader.read_exact(&mut answer) => read.map(drop),
            () = async { loop { ticks.tick().await; let _ = writer.write_all(b"x").await; } } => Ok(()),
        }
    };
    timeout(LIMIT, answered).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");
    app.shutdown.stop(LIMIT).await;
}

/// A client that sends a request and does not read holds its connection until the server closes it; here it is the only
/// connection.
#[tokio::test]
async fn a_response_that_is_not_taken_closes_its_connection() {
    let settings = HttpSettings {
        body_timeout_ms: Millis::new(50),
        connections_max: Count::new(1),
        ..HttpSettings::default()
    };
    // More than the system's buffers hold.
    let routes = Router::new().route("/", get(|| async { Bytes::from(vec![b'x'; 64 * 1024 * 1024]) }));
    let (app, address) = served(settings, routes).await;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(request).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(request).await.unwrap();
    let mut answer = [0; 12];
    timeout(LIMIT, second.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop((first, second));
    app.shutdown.stop(LIMIT).await;
}

/// Beyond the limit a connection waits unaccepted; it is served when another one ends.
#[tokio::test]
async fn connections_have_a_limit() {
    let settings = HttpSettings {
        connections_max: Count::new(1),
        ..HttpSettings::default()
    };
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let routes = Router::new().route(
        "/{who}",
        get(move |axum::extract::Path(who): axum::extract::Path<String>| async move { log.lock().unwrap().push(who) }),
    );
    let (app, address) = served(settings, routes).await;
    let request = |who: &str| format!("GET /{who} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes();
    let answered = async |client: &mut TcpStream| {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            timeout(LIMIT, client.read_exact(&mut byte)).await.unwrap().unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200 OK"));
    };
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(&request("first")).await.unwrap();
    answered(&mut first).await;
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(&request("second")).await.unwrap();
    for _ in 0..20 {
        first.write_all(&request("first")).await.unwrap();
        answered(&mut first).await;
    }
    assert!(
        !seen.lock().unwrap().iter().any(|who| who == "second"),
        "it should have waited"
    );
    drop(first);
    answered(&mut second).await;
    app.shutdown.stop(LIMIT).await;
}

#[test]
fn a_url_can_be_reached_from_here() {
    let check = |listens: &str, expected: &str| assert_eq!(local_url(listens.parse().unwrap()), expected);
    check("127.0.0.1:8080", "http://127.0.0.1:8080");
    check("0.0.0.0:8080", "http://127.0.0.1:8080");
    check("[::]:8080", "http://[::1]:8080");
    check("192.0.2.7:80", "http://192.0.2.7:80");
}
