//! `signalbox up` as a user runs it: the sample to its end, a second run without effects, and no process left behind.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{process::Child, time::timeout};

/// Longer than any wait of the program itself.
const LIMIT: Duration = Duration::from_secs(150);
const POLL: Duration = Duration::from_millis(20);
/// Notifications of the sample that end as delivered, at least.
const SAMPLE_DELIVERED: usize = 22;

#[tokio::test]
async fn runs_the_sample_to_its_end_and_a_second_time_repeats_nothing() {
    let place = Place::new();

    let first = place.run(&["--exit-when-idle", "--json"]).await;
    assert_eq!(first.code, Some(0), "{}", first.told());
    let (done, again): (Vec<_>, Vec<_>) = first.rows().into_iter().partition(|row| row["is_again"] == false);
    // Sixteen lines: one fans out to two agents, one is the same id again; one agent asks the other for a review; one splits its
    // work in three, and gets the results; and an orchestrator gives work away, and hears of its end.
    assert_eq!((done.len(), again.len()), (23, 1), "{}", first.told());
    assert_eq!(again[0]["notification"], "demo-04");
    let states = |rows: &[Value]| {
        let mut states = BTreeMap::new();
        for row in rows {
            *states.entry(row["state"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        }
        states
    };
    let expected = BTreeMap::from([("delivered".to_owned(), 22), ("refused".to_owned(), 1)]);
    assert_eq!(states(&done), expected, "{}", first.told());
    // The task that was closed in between continues in its next generation.
    let key = |id: &str| {
        let row = done.iter().find(|row| row["notification"] == id).unwrap();
        row["session_key"].as_str().unwrap().to_owned()
    };
    assert!(key("demo-05").ends_with(":demo:v1") && key("demo-08").ends_with(":demo:v2"));
    place.nothing_is_left();

    let second = place.run(&["--exit-when-idle", "--json"]).await;
    assert_eq!(second.code, Some(0), "{}", second.told());
    let rows = second.rows();
    assert!(rows.iter().all(|row| row["is_again"] == true), "{}", second.told());
    // Every outcome is the stored one: the same turn, with the same number.
    let outcomes = |rows: &[Value]| -> BTreeMap<String, (String, Value, Value)> {
        let outcome = |row: &Value| {
            (
                row["state"].to_string(),
                row["session_key"].clone(),
                row["turn"].clone(),
            )
        };
        let samples = rows
            .iter()
            .filter(|row| row["notification"].as_str().unwrap().starts_with("demo-"));
        samples
            .map(|row| (row["notification"].to_string(), outcome(row)))
            .collect()
    };
    assert_eq!(outcomes(&rows), outcomes(&done));
    place.nothing_is_left();
}

/// A collector that accepts connections and never answers delays neither work nor shutdown.
#[tokio::test]
async fn a_dead_collector_changes_nothing() {
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let place = Place::new();
    let ended = place
        .run_in(
            &["--exit-when-idle", "--json"],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)],
        )
        .await;
    assert_eq!(ended.code, Some(0), "{}", ended.told());
    let rows = ended.rows();
    let delivered = rows.iter().filter(|row| row["state"] == "delivered").count();
    assert_eq!((rows.len(), delivered), (24, 23), "{}", ended.told());
    assert!(
        collector.set_nonblocking(true).is_ok() && collector.accept().is_ok(),
        "it was tried"
    );
    let log = fs::read_to_string(place.data_dir().join("signalbox.log")).unwrap();
    let complaints = log.lines().filter(|line| line.contains("opentelemetry")).count();
    assert!(complaints < 30, "{complaints} lines about the collector:\n{log}");
    place.nothing_is_left();
}

#[tokio::test]
async fn is_found_by_the_commands_beside_it_and_ends_at_a_signal() {
    let place = Place::new();
    let mut up = place.start(&[]);
    let endpoints = place.data_dir().join("endpoints.json");
    // A whole system starts while other tests run, so this limit is longer than usual.
    let written = async {
        while !endpoints.exists() {
            assert!(up.try_wait().unwrap().is_none(), "up has ended");
            tokio::time::sleep(POLL).await;
        }
    };
    timeout(LIMIT, written).await.expect("endpoints.json is written");
    let read = fs::read(&endpoints).unwrap();
    let read: Value = serde_json::from_slice(&read).expect("it is written as a whole");
    for name in [
        "http_url",
        "tool_gateway_url",
        "nats_url",
        "database_url",
        "resolver_url",
        "delivery_url",
    ] {
        assert!(read[name].as_str().unwrap().contains("127.0.0.1"), "{read}");
    }
    for secret in [&endpoints, &place.data_dir().join("signalbox.log")] {
        let mode = fs::metadata(secret).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", secret.display());
    }

    let asked = place.command(&[
        "notify",
        "demo",
        "DEMO-77",
        "coder",
        "Tests fail on main",
        "--wait",
        "--json",
    ]);
    assert_eq!(asked.code, Some(0), "{}", asked.told());
    let answer: Value = serde_json::from_str(&asked.stdout).unwrap();
    assert_eq!(answer["notification"]["state"], "delivered");
    let sessions: Value =
        serde_json::from_str(&place.command(&["sessions", "--task", "DEMO-77", "--json"]).stdout).unwrap();
    assert_eq!(
        (sessions.as_array().unwrap().len(), &sessions[0]["agent"]["slug"]),
        (1, &"coder".into())
    );
    let turns = place.command(&["turns", "--task", "DEMO-77"]);
    assert!(turns.stdout.contains("finished"), "{}", turns.told());
    let doctor = place.command(&["doctor"]);
    assert_eq!(doctor.code, Some(0), "{}", doctor.told());
    place.sample_is_proven().await;

    let second = place.run(&[]).await;
    assert_eq!(second.code, Some(1));
    assert!(
        second.stderr.contains("another process uses the data directory"),
        "{}",
        second.told()
    );

    let pid = up.id().expect("it runs");
    let signalled = Command::new("sh").args(["-c", &format!("kill -s TERM {pid}")]).status();
    assert!(signalled.unwrap().success());
    let ended = timeout(LIMIT, up.wait()).await.expect("it ends").unwrap();
    assert_eq!(ended.code(), Some(0));
    place.nothing_is_left();
}

/// A data directory, and a mark in the environment that every started process inherits.
struct Place {
    folder: tempfile::TempDir,
    mark: String,
}

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn told(&self) -> String {
        format!("code {:?}\n{}\n{}", self.code, self.stdout, self.stderr)
    }

    /// The rows that were shown; the first line has the addresses.
    fn rows(&self) -> Vec<Value> {
        let lines = self.stdout.lines().map(|line| serde_json::from_str(line).expect(line));
        lines
            .filter(|line: &Value| line.get("notification").is_some())
            .collect()
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::TempDir::with_prefix("signalbox-up-").unwrap();
        // Postgres does not run as root and must be able to pass through it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        Place {
            mark: format!("SIGNALBOX_TEST_MARK={}", uuid::Uuid::now_v7()),
            folder,
        }
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn signalbox(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        let (name, value) = self.mark.split_once('=').unwrap();
        // The user's settings must not reach it; the paths of the servers' programs must.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let is_tool = ["SIGNALBOX_NATS_SERVER", "SIGNALBOX_POSTGRES_BIN"].contains(&name.as_str());
            if !is_tool
                && (name.starts_with("SIGNALBOX_")
                    || name.starts_with("OTEL_")
                    || ["DATABASE_URL", "NATS_URL", "RUST_LOG"].contains(&name.as_str()))
            {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env(name, value)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn up(&self, more: &[&str]) -> Command {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/notifications.ndjson");
        let mut command = self.signalbox(&["up", "--data-dir", "data", "--http", "127.0.0.1:0"]);
        command.args(["--sample", sample.to_str().unwrap()]).args(more);
        command
    }

    async fn run(&self, more: &[&str]) -> Ended {
        self.run_in(more, &[]).await
    }

    async fn run_in(&self, more: &[&str], environment: &[(&str, &str)]) -> Ended {
        let mut command = tokio::process::Command::from(self.up(more));
        command.envs(environment.iter().copied());
        // A failed test leaves no process: the servers end with their parent.
        command.kill_on_drop(true);
        let output = timeout(LIMIT, command.output()).await;
        output.expect("it ends").unwrap().into()
    }

    fn start(&self, more: &[&str]) -> Child {
        let mut command = tokio::process::Command::from(self.up(more));
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command.spawn().unwrap()
    }

    /// A command beside a running `up`.
    fn command(&self, arguments: &[&str]) -> Ended {
        let mut command = self.signalbox(arguments);
        command.args(["--data-dir", "data"]).output().unwrap().into()
    }

    /// Of every prompt of the sample, every part is proven, or there by policy.
    async fn sample_is_proven(&self) {
        let shown = |arguments: &[&str]| -> Value {
            let ended = self.command(arguments);
            serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.told()))
        };
        let is_over = async {
            // With the results of subagents, and what its agents ask of each other.
            let known = |state: &str| {
                shown(&["notifications", "--state", state, "--json"])
                    .as_array()
                    .unwrap()
                    .len()
            };
            while known("delivered") < SAMPLE_DELIVERED || known("queued") + known("running") > 0 {
                tokio::time::sleep(POLL).await;
            }
        };
        timeout(LIMIT, is_over).await.expect("the sample ends");
        let audit = shown(&["audit", "isolation", "--json"]);
        assert_eq!(
            (&audit["violations"], &audit["unproven"]),
            (&json!([]), &json!(0)),
            "{audit:#}"
        );
        assert!(audit["turns"].as_u64().unwrap() >= 20, "{audit:#}");
    }

    /// No process has our mark or works in our folder. Postgres overwrites its environment, hence both checks.
    fn nothing_is_left(&self) {
        let folder = self.folder.path().to_str().unwrap();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let has = |bytes: Vec<u8>, text: &str| String::from_utf8_lossy(&bytes).contains(text);
            let name = entry.file_name();
            if name.to_string_lossy().parse() == Ok(std::process::id()) {
                continue;
            }
            let is_left = has(read("environ"), &self.mark) || has(read("cmdline"), folder);
            assert!(
                !is_left,
                "{name:?} still runs: {}",
                String::from_utf8_lossy(&read("cmdline"))
            );
        }
    }
}

/// Cargo builds the command beside the tests, since the command has tests of its own that run it.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent).expect("it lies in target/…/deps");
    let binary = folder.join("signalbox");
    assert!(
        binary.exists(),
        "{} is missing: cargo build --workspace --bins",
        binary.display()
    );
    binary
}
