//! Every rule that stops a start, and its line.

use secrecy::ExposeSecret;
use serde::Deserialize;

use super::*;

const NONE: [(&str, &str); 0] = [];

fn load(toml: &str, variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    Settings::load_from(toml, variables.iter().copied())
}

#[derive(Deserialize, Debug)]
#[serde(default, deny_unknown_fields)]
struct Delivery {
    turns_max: Count,
    pause_ms: Millis,
    eager: bool,
    ratio: f64,
    agents: Vec<String>,
    note: Option<String>,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            turns_max: Count::new(8),
            pause_ms: Millis::new(100),
            eager: false,
            ratio: 0.5,
            agents: Vec::new(),
            note: None,
        }
    }
}

#[derive(Deserialize, Debug)]
struct Listening {
    #[expect(dead_code, reason = "only that it is read")]
    #[serde(deserialize_with = "address")]
    listen: std::net::SocketAddr,
}

#[test]
fn everything_has_a_default_but_the_addresses() {
    let settings = load("", &[]).unwrap();
    assert_eq!(settings.nats.root, "signalbox");
    assert_eq!(settings.replica.lease_ms.get(), 3_000);
    assert_eq!(
        settings.database.url().unwrap_err().to_string(),
        "setting database.url is missing: set it in signalbox.toml or as DATABASE_URL in the environment"
    );
    assert!(settings.nats.url().is_err());
    assert_eq!(settings.section::<Delivery>("delivery").unwrap().turns_max.get(), 8);
}

#[test]
fn a_stronger_source_wins() {
    let toml = "[database]\nurl = \"file\"\nconnections_max = 3\n";
    let url = |variables: &[(&str, &str)]| {
        let settings = load(toml, variables).unwrap();
        assert_eq!(
            settings.database.connections_max.get(),
            3,
            "the file's other settings stay"
        );
        settings.database.url().unwrap().expose_secret().to_owned()
    };
    assert_eq!(url(&[]), "file");
    assert_eq!(url(&[("DATABASE_URL", "usual")]), "usual");
    assert_eq!(
        url(&[("SIGNALBOX__DATABASE__URL", "own"), ("DATABASE_URL", "usual")]),
        "own"
    );
    assert_eq!(url(&[("SIGNALBOX__DATABASE__URL", ""), ("DATABASE_URL", "")]), "file");
}

#[test]
fn reads_a_services_section_from_file_and_environment() {
    let settings = load(
        "[delivery]\nturns_max = 12\nagents = [\"a\", \"b\"]\nratio = 1\n",
        &[
            ("SIGNALBOX__DELIVERY__PAUSE_MS", "250"),
            ("SIGNALBOX__DELIVERY__EAGER", "true"),
            ("SIGNALBOX__DELIVERY__NOTE", "17"),
        ],
    )
    .unwrap();
    let delivery: Delivery = settings.section("delivery").unwrap();
    assert_eq!(
        (delivery.turns_max.get(), delivery.pause_ms.get(), delivery.eager),
        (12, 250, true)
    );
    assert_eq!(delivery.agents, ["a", "b"]);
    assert!((delivery.ratio - 1.0).abs() < f64::EPSILON);
    assert_eq!(delivery.note.as_deref(), Some("17"), "a text stays a text");

    let settings = load("", &[("SIGNALBOX__DELIVERY__AGENTS", "a, b,")]).unwrap();
    assert_eq!(settings.section::<Delivery>("delivery").unwrap().agents, ["a", "b"]);
}

#[test]
fn providers_are_a_table_of_tables() {
    #[derive(Deserialize)]
    struct Provider {
        url: String,
        model: String,
    }
    let settings = load(
        "[providers.default]\nurl = \"http://a\"\nmodel = \"m\"\n[providers.our-own]\nurl = \"http://b\"\nmodel = \"n\"\n",
        &[("SIGNALBOX__PROVIDERS__DEFAULT__URL", "http://c")],
    )
    .unwrap();
    let providers: std::collections::BTreeMap<String, Provider> = settings.section("providers").unwrap();
    assert_eq!(providers["default"].url, "http://c");
    assert_eq!(providers["default"].model, "m");
    assert_eq!(providers["our-own"].url, "http://b");

    let dotted = "[providers.\"gpt-5.1[0]\"]\nurl = \"http://a\"\nmodel = \"m\"\n";
    let providers = load(dotted, &[])
        .unwrap()
        .section::<std::collections::BTreeMap<String, Provider>>("providers");
    assert_eq!(
        providers.unwrap()["gpt-5.1[0]"].model,
        "m",
        "a key in quotes is no path"
    );
}

#[test]
fn a_program_sets_above_all_and_can_ask_first() {
    let mut settings = load("[providers.default]\nmodel = \"m\"\n", &[("NATS_URL", "nats://a")]).unwrap();
    assert!(settings.is_set("providers.default.model") && !settings.is_set("providers.default.url"));
    settings.set("nats.url", "nats://b", "--nats-url").unwrap();
    assert_eq!(settings.nats.url().unwrap().expose_secret(), "nats://b");
    assert_eq!(
        settings
            .set("replica.lease_ms", "soon", "--lease")
            .unwrap_err()
            .to_string(),
        "setting replica.lease_ms (set by --lease): expected a whole number of milliseconds from 1 to 86400000, found \"soon\""
    );
}

/// One line a mistake: which setting, from where, what is wrong, what is allowed.
#[test]
fn refuses_with_one_clear_line() {
    fn check(toml: &str, variables: &[(&str, &str)], says: &str) {
        let error = load(toml, variables)
            .and_then(|settings| settings.section::<Delivery>("delivery"))
            .expect_err(says);
        assert_eq!(error.to_string(), says);
        assert!(!error.to_string().contains('\n'));
    }
    let sections = SECTIONS.join(", ");
    let known = "turns_max, pause_ms, eager, ratio, agents, note";

    check(
        "\n[delivry]\n",
        &[],
        &format!("setting delivry (signalbox.toml, line 2) is unknown; known are: {sections}"),
    );
    check(
        "\"delivery.eager\" = true\n",
        &[],
        &format!("setting delivery.eager (signalbox.toml, line 1) is unknown; known are: {sections}"),
    );
    check(
        "",
        &[("SIGNALBOX__DELIVRY__X", "1")],
        &format!(
            "setting delivry.x (environment SIGNALBOX__DELIVRY__X) is unknown; known are: SIGNALBOX__SECTION__KEY with section {sections}"
        ),
    );
    check(
        "",
        &[
            ("SIGNALBOX_DELIVERY__PAUSE_MS", "1"),
            ("SIGNALBOX_POSTGRES_BIN", "/usr"),
        ],
        &format!(
            "setting SIGNALBOX_DELIVERY__PAUSE_MS (environment) is unknown; known are: SIGNALBOX__SECTION__KEY with section {sections}"
        ),
    );
    check(
        "[delivery]\neager = true\nturnz = 4\n",
        &[],
        &format!("setting delivery.turnz (signalbox.toml, line 3) is unknown; known are: {known}"),
    );
    check(
        "",
        &[("SIGNALBOX__DELIVERY__TURNZ", "4")],
        &format!("setting delivery.turnz (environment SIGNALBOX__DELIVERY__TURNZ) is unknown; known are: {known}"),
    );
    check(
        "[delivery]\nturns_max = \"4\"\n",
        &[],
        "setting delivery.turns_max (signalbox.toml, line 2): expected a whole number from 1 to 2147483647, found \"4\"",
    );
    check(
        "[delivery]\nturns_max = 0\n",
        &[],
        "setting delivery.turns_max (signalbox.toml, line 2): expected a whole number from 1 to 2147483647, found 0",
    );
    check(
        "[delivery]\nturns_max = 3.7\n",
        &[],
        "setting delivery.turns_max (signalbox.toml, line 2): expected a whole number from 1 to 2147483647, found 3.7",
    );
    check(
        "",
        &[("SIGNALBOX__DELIVERY__PAUSE_MS", "0")],
        "setting delivery.pause_ms (environment SIGNALBOX__DELIVERY__PAUSE_MS): expected a whole number of milliseconds from 1 to 86400000, found 0",
    );
    check(
        "",
        &[("SIGNALBOX__DELIVERY__EAGER", "yes")],
        "setting delivery.eager (environment SIGNALBOX__DELIVERY__EAGER): expected true or false, found \"yes\"",
    );
    check(
        "[delivery]\nagents = [\"a\", 7]\n",
        &[],
        "setting delivery.agents (signalbox.toml, line 2): expected a text in quotes, found a number",
    );
    check(
        "delivery = 7\n",
        &[],
        "setting delivery (signalbox.toml, line 1): expected a section, found a number",
    );
    check(
        "[telemetry]\nlog_format = \"xml\"\n",
        &[],
        "setting telemetry.log_format (signalbox.toml, line 2): expected one of text, json, found \"xml\"",
    );
    check(
        "[nats]\nroot = \"a.b\"\n",
        &[],
        &format!(
            "setting nats.root (signalbox.toml, line 2) is unsafe: {}",
            contracts::Root::parse("a.b").expect_err("two tokens")
        ),
    );
    check(
        "[orchestrator]\nlisten = \"0.0.0.0:80\"\n",
        &[("SIGNALBOX_OPERATOR_TOKEN", "guess-me")],
        "setting orchestrator.operator_token (environment SIGNALBOX_OPERATOR_TOKEN) is unsafe: orchestrator.listen is not a loopback address, so it needs at least 16 characters",
    );
    check(
        "[delivery]\nnote = [\"a\"]\n",
        &[],
        "setting delivery.note (signalbox.toml, line 2): expected a text in quotes, found a list",
    );
    check(
        "[delivery]\nagents = \"a, b\"\n",
        &[],
        "setting delivery.agents (signalbox.toml, line 2): expected a list, found a text",
    );
    check(
        "[delivery]\nturns_max = 99999999999999999999\n",
        &[],
        "setting delivery.turns_max (signalbox.toml, line 2): expected a whole number from 1 to 2147483647, found 99999999999999999999",
    );
    for name in [
        "SIGNALBOX__PROVIDERS__A.B__URL",
        "SIGNALBOX__DELIVERY__AGENTS[0]",
        "SIGNALBOX__PROVIDERS__Ü__URL",
    ] {
        check(
            "",
            &[(name, "a")],
            &format!(
                "setting {name} (environment): a variable's name has letters, digits, _ and - only; signalbox.toml takes any key in quotes"
            ),
        );
    }
    check(
        "",
        &[
            ("SIGNALBOX__DELIVERY__EAGER", "true"),
            ("SIGNALBOX__delivery__eager", "false"),
        ],
        "setting SIGNALBOX__delivery__eager (environment): is set twice, in capitals and in small letters",
    );
    // A section in place of a value: from the environment, from the file, and without any.
    check(
        "",
        &[
            ("SIGNALBOX__ENVELOPE__KEYS", "a"),
            ("SIGNALBOX__ENVELOPE__KEYS__K1", "b"),
        ],
        "setting envelope.keys (environment SIGNALBOX__ENVELOPE__KEYS): is a value, but environment SIGNALBOX__ENVELOPE__KEYS__K1 needs a section of that name",
    );
    check(
        "delivery = 7\n",
        &[("SIGNALBOX__DELIVERY__EAGER", "true")],
        "setting delivery (signalbox.toml, line 1): is a value, but environment SIGNALBOX__DELIVERY__EAGER needs a section of that name",
    );
    check(
        "",
        &[("SIGNALBOX__DELIVERY__TURNS_MAX__X", "1")],
        "setting delivery.turns_max (environment SIGNALBOX__DELIVERY__TURNS_MAX__X): expected a whole number from 1 to 2147483647, found a section",
    );
    check(
        "[envelope.keys]\nk1 = \"a\"\n",
        &[("SIGNALBOX__ENVELOPE__KEYS", "a")],
        "setting envelope.keys (environment SIGNALBOX__ENVELOPE__KEYS): expected a section, found a text",
    );
    check(
        "[replica]\nrenew_ms = 2000\n",
        &[],
        "setting replica.lease_ms (not set) is unsafe: it must be at least 3 times replica.renew_ms (2000)",
    );
    check(
        "[delivery\n",
        &[],
        "settings file signalbox.toml, line 1: unclosed table, expected `]`",
    );
}

#[test]
fn names_what_is_missing() {
    let settings = load("", &[]).unwrap();
    assert_eq!(
        settings.section::<Listening>("resolver").unwrap_err().to_string(),
        "setting resolver.listen is missing: set it in signalbox.toml or as SIGNALBOX__RESOLVER__LISTEN in the environment"
    );
    let settings = load("[resolver]\nlisten = \"nowhere\"\n", &[]).unwrap();
    let error = settings.section::<Listening>("resolver").unwrap_err().to_string();
    assert_eq!(
        error,
        "setting resolver.listen (signalbox.toml, line 2): expected an IP address with a port, such as 127.0.0.1:8080"
    );
}

#[test]
fn never_shows_a_secret() {
    let settings = load(
        "[database]\nurl = \"postgres://u:hunter2@h/d\"\n[orchestrator]\noperator_token = \"hunter2-hunter2-hunter2\"\n",
        &[
            ("NATS_URL", "nats://u:hunter2@h"),
            ("SIGNALBOX__ENVELOPE__KEYS__K1", KEY),
        ],
    )
    .unwrap();
    assert!(!format!("{settings:?}").contains("hunter2"));
    assert!(!format!("{settings:?}").contains(&KEY[..16]));
    let mistyped = load("", &[("SIGNALBOX__ENVELOPE__KEYS__K1", &KEY[1..])]).unwrap_err();
    assert!(!mistyped.to_string().contains(&KEY[8..24]), "{mistyped}");
    let misplaced = load("[database]\nconnections_max = \"postgres://u:hunter2@h/d\"\n", &[]).unwrap_err();
    assert!(!misplaced.to_string().contains("hunter2"), "{misplaced}");
    for name in ["DATABASE__CONNECTIONS_MAX", "NATS__PROVISION", "TELEMETRY__TRACE_RATIO"] {
        let misplaced = load("", &[(&format!("SIGNALBOX__{name}"), "hunter2SECRET")]).unwrap_err();
        assert!(
            misplaced.to_string().contains("found a text of 13 bytes"),
            "{misplaced}"
        );
    }
    // Secrets without their quotes, and without their name.
    for toml in [
        "[database]\nurl = 77342\n",
        "[orchestrator]\noperator_token = 77342\n[resolver]\nlisten = 77342\n",
        "[envelope]\nkeys = \"77342\"\n",
        "[envelope.keys]\nk1 = 77342\n",
        "database = \"77342\"\n",
    ] {
        let shown = match load(toml, &[]) {
            Ok(settings) => settings.section::<Listening>("resolver").unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(!shown.contains("77342"), "{shown}");
    }
}

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

#[test]
fn keys_are_checked_when_they_are_read_and_missed_when_they_are_needed() {
    let refused = |toml: &str| load(toml, &[]).unwrap_err().to_string();
    let keyring = |toml: &str| load(toml, &[]).unwrap().envelope.keyring();
    let one = format!("[envelope.keys]\nk1 = \"{KEY}\"\n");
    assert!(keyring(&one).is_ok(), "one key needs no choice");
    let two = format!("{one}k2 = \"{}\"\n", KEY.replace('0', "f"));
    assert!(keyring(&format!("[envelope]\nsign_with = \"k2\"\n{two}")).is_ok());
    assert_eq!(
        keyring(&two).unwrap_err().to_string(),
        "setting envelope.sign_with is missing: set it in signalbox.toml or as SIGNALBOX__ENVELOPE__SIGN_WITH in the environment"
    );
    assert!(
        keyring("")
            .unwrap_err()
            .to_string()
            .starts_with("setting envelope.keys is missing")
    );
    assert_eq!(
        refused(&format!("[envelope]\nsign_with = \"k3\"\n{two}")),
        "setting envelope.sign_with (signalbox.toml, line 2) is unsafe: the key that signs is not among the keys"
    );
    assert_eq!(
        refused("[envelope.keys]\nk1 = \"secret\"\n"),
        "setting envelope.keys.k1 (signalbox.toml, line 2) is unsafe: a key is 64 hexadecimal characters; `openssl rand -hex 32` makes one"
    );
    let weak = refused(&format!("[envelope.keys]\nk1 = \"{}\"\n", "0".repeat(64)));
    assert!(weak.contains("this key is not random"), "{weak}");
    let id = refused(&format!("[envelope.keys]\n\"K.1\" = \"{KEY}\"\n"));
    assert!(id.contains("the id of a key is 1-32 characters"), "{id}");
    let many: String = (0..5).map(|n| format!("k{n} = \"{KEY}\"\n")).collect();
    assert!(refused(&format!("[envelope.keys]\n{many}")).contains("at most 4 keys"));
}

#[test]
fn a_variable_may_name_a_file() {
    let path = std::env::temp_dir().join(format!("signalbox-settings-{}", std::process::id()));
    std::fs::write(&path, "postgres://from-a-file\n").unwrap();
    let file = path.to_str().unwrap();
    let url = |variables: &[(&str, &str)]| {
        let settings = load("", variables)?;
        settings.database.url().map(|url| url.expose_secret().to_owned())
    };
    let refused = |variables: &[(&str, &str)]| url(variables).unwrap_err().to_string();
    for name in ["DATABASE_URL_FILE", "SIGNALBOX__DATABASE__URL__FILE"] {
        assert_eq!(url(&[(name, file)]).unwrap(), "postgres://from-a-file", "{name}");
        assert!(refused(&[(name, "")]).contains("database.url is missing"), "{name}");
        assert!(
            refused(&[(name, "/nowhere/secret")]).contains("/nowhere/secret cannot be read"),
            "{name}"
        );
    }
    let both = [("DATABASE_URL", "postgres://a"), ("DATABASE_URL_FILE", file)];
    assert!(refused(&both).contains("DATABASE_URL (environment): is set as a value and as a file"));
    assert!(url(&[("DATABASE_URL", ""), ("DATABASE_URL_FILE", file)]).is_ok());
    // A setting whose name ends in `_file` is a setting.
    let log = load("", &[("SIGNALBOX__TELEMETRY__LOG_FILE", file)]).unwrap();
    assert_eq!(log.telemetry.log_file.as_deref(), Some(path.as_path()));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_account_has_no_more_than_a_quarter_of_the_pool() {
    let check = |pool: u32, expected: u32| {
        let settings = load(&format!("[database]\nconnections_max = {pool}\n"), &[]).unwrap();
        let http = HttpSettings::default().with_pool(&settings.database);
        assert_eq!(http.account_connections_max.get(), expected, "{pool}");
    };
    check(100, 4);
    check(16, 4);
    check(8, 2);
    check(7, 1);
    check(1, 1);
}

#[test]
fn ignores_foreign_variables() {
    assert!(load("", &[("SIGNALBOX_PORT", "tcp://10.0.0.1:80"), ("PATH", "/bin")]).is_ok());
    assert!(Settings::load_from("", NONE).is_ok());
}
