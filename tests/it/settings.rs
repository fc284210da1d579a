//! Every key of every section, found from the types that read it: invalid numbers, texts and zeros are refused, and the example
//! names every key with its default.

use std::collections::BTreeMap;

use delivery::{providers::ProviderSettings, settings::DeliverySettings};
use orchestrator::{
    OrchestratorSettings,
    settings::{EmailSettings, OutboundSettings, SignInSettings},
};
use resolver::settings::ResolverSettings;
use runtime::{Settings, SettingsError, settings::Models};
use tool_gateway::ToolGatewaySettings;

const EXAMPLE: &str = include_str!("../../examples/signalbox.toml");
/// Required keys of a provider.
const PROVIDER: &str = "kind = \"openresponses\"\nurl = \"http://h/v1/responses\"\nmodel = \"m\"\n";

/// Required keys of a model.
const MODEL: &str = "kind = \"images\"\nurl = \"https://h/v1/images\"\nmodel = \"m\"\n";

/// Required keys of a provider by which people sign in.
const OIDC: &str = "issuer = \"https://h\"\nclient_id = \"c\"\n";

type Providers = BTreeMap<String, ProviderSettings>;

/// Reads the settings as all services do.
fn read(toml: &str, variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let settings = Settings::load_from(toml, variables.iter().copied())?;
    settings.section::<ResolverSettings>("resolver")?;
    settings.section::<DeliverySettings>("delivery")?;
    settings.section::<ToolGatewaySettings>("tool_gateway")?;
    settings.section::<OrchestratorSettings>("orchestrator")?;
    settings.section::<Providers>("providers")?;
    settings.section::<Models>("models")?;
    settings.section::<SignInSettings>("sign_in")?;
    settings.section::<EmailSettings>("email")?;
    settings.section::<OutboundSettings>("outbound")?;
    Ok(settings)
}

/// The keys of a section, none for a value: an unknown key is refused with the list of known ones.
fn keys(section: &str) -> Vec<String> {
    match read(&format!("[{section}]\nno_key = 1\n"), &[]) {
        Err(SettingsError::Unknown { setting, known, .. }) if setting == format!("{section}.no_key") => {
            known.split(", ").map(str::to_owned).collect()
        }
        Ok(_) | Err(_) => Vec::new(),
    }
}

/// Every key, as `section.key`.
fn settings() -> Vec<String> {
    let Err(SettingsError::Unknown { known, .. }) = read("[no_section]\n", &[]) else {
        panic!("any section is taken");
    };
    let mut found = Vec::new();
    let mut sections: Vec<String> = known.split(", ").map(str::to_owned).collect();
    // Their keys are names that operators choose.
    for named in ["providers", "models"] {
        *sections.iter_mut().find(|name| *name == named).unwrap() = format!("{named}.main");
    }
    sections.push("sign_in.oidc.main".to_owned());
    while let Some(section) = sections.pop() {
        for key in keys(&section) {
            let setting = format!("{section}.{key}");
            // Its keys are names, too.
            if setting == "sign_in.oidc" {
                continue;
            }
            if keys(&setting).is_empty() {
                found.push(setting);
            } else {
                sections.push(setting);
            }
        }
    }
    found.sort();
    found
}

/// The values tried for every key, as written in a file and in a variable.
const TRIED: [(&str, Option<&str>); 6] = [
    ("0", Some("0")),
    ("-1", Some("-1")),
    ("3.7", Some("3.7")),
    ("\"yes\"", Some("yes")),
    ("9000000000000000000", Some("9000000000000000000")),
    ("[\"yes\"]", None),
];

/// Keys that allow some of these values.
struct Taken {
    keys: &'static [&'static str],
    in_file: &'static [&'static str],
    in_variable: &'static [&'static str],
    why: &'static str,
}

const TAKEN: [Taken; 6] = [
    Taken {
        keys: &["models.main.accounts"],
        in_file: &["[\"yes\"]"],
        in_variable: &["0", "yes", "9000000000000000000"],
        why: "a variable is a list, and an account may have such a name",
    },
    Taken {
        keys: &[
            "database.url",
            "envelope.sign_with",
            "models.main.api_key",
            "models.main.model",
            "nats.inbox_prefix",
            "nats.url",
            "orchestrator.callout_issuer_seed",
            "orchestrator.callout_xkey_seed",
            "orchestrator.operator_token",
            "providers.main.api_key",
            "providers.main.model",
            "providers.main.quota_account",
            "sign_in.oidc.main.client_id",
            "sign_in.oidc.main.client_secret",
            "sign_in.oidc.main.name",
            "telemetry.log",
            "telemetry.log_file",
            "telemetry.otlp_endpoint",
            "telemetry.otlp_logs_endpoint",
            "telemetry.otlp_metrics_endpoint",
            "telemetry.otlp_traces_endpoint",
            "telemetry.service_namespace",
        ],
        in_file: &["\"yes\""],
        in_variable: &["0", "-1", "3.7", "yes", "9000000000000000000"],
        why: "a text, and a variable is always one",
    },
    Taken {
        keys: &["nats.root"],
        in_file: &["\"yes\""],
        in_variable: &["0", "-1", "yes", "9000000000000000000"],
        why: "a text without a full stop",
    },
    Taken {
        keys: &["telemetry.trace_ratio"],
        in_file: &["0"],
        in_variable: &["0"],
        why: "no trace is sent",
    },
    Taken {
        keys: &["resolver.hops_max"],
        in_file: &["0"],
        in_variable: &["0"],
        why: "no agent wakes another",
    },
    Taken {
        keys: &[
            "resolver.consumed_messages_kept",
            "providers.main.pool_idle_connections_max",
        ],
        in_file: &["0"],
        in_variable: &["0"],
        why: "none is kept",
    },
];

#[test]
fn no_key_takes_what_it_has_no_meaning_for() {
    let settings = settings();
    assert!(settings.len() > 120, "only {} keys were found", settings.len());
    for listed in &TAKEN {
        for key in listed.keys {
            assert!(
                settings.iter().any(|setting| setting == key),
                "{key} is listed, and is no setting"
            );
        }
    }
    for setting in &settings {
        let (section, key) = setting.rsplit_once('.').unwrap();
        let needed = match section.split_once('.') {
            Some(("providers", _)) => PROVIDER,
            Some(("models", _)) => MODEL,
            Some(("sign_in", _)) => OIDC,
            _ => "",
        };
        let needed = needed.split_inclusive('\n');
        let needed: String = needed.filter(|line| !line.starts_with(&format!("{key} "))).collect();
        let variable = format!("SIGNALBOX__{}", setting.replace('.', "__").to_ascii_uppercase());
        let listed = TAKEN.iter().find(|listed| listed.keys.contains(&setting.as_str()));
        let (in_file, in_variable, why) = listed.map_or((&[][..], &[][..], "not listed"), |listed| {
            (listed.in_file, listed.in_variable, listed.why)
        });
        for (toml, text) in TRIED {
            let file = format!("[{section}]\n{needed}{key} = {toml}\n");
            check(setting, &file, &[], toml, in_file.contains(&toml), why);
            let Some(text) = text else { continue };
            let file = format!("[{section}]\n{needed}");
            check(
                setting,
                &file,
                &[(&variable, text)],
                text,
                in_variable.contains(&text),
                why,
            );
        }
    }
}

fn check(setting: &str, toml: &str, variables: &[(&str, &str)], value: &str, expected: bool, why: &str) {
    let (section, key) = setting.rsplit_once('.').unwrap();
    match read(toml, variables) {
        Ok(_) => assert!(expected, "{setting} takes {value} ({variables:?}; {why})"),
        Err(error) => {
            assert!(!expected, "{setting} refuses {value}, which is listed ({why}): {error}");
            let line = error.to_string();
            assert!(
                line.starts_with(&format!("setting {section}")) && line.contains(key),
                "{line}"
            );
            assert!(
                line.contains("signalbox.toml, line ") || line.contains("environment SIGNALBOX__"),
                "{line}"
            );
        }
    }
}

/// The example with its commented keys enabled.
fn spelt_out() -> String {
    let lines = EXAMPLE.lines().map(|line| line.strip_prefix("# ").unwrap_or(line));
    let is_toml =
        |line: &&str| line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    lines.filter(is_toml).collect::<Vec<_>>().join("\n")
}

/// The example lists every common setting and every provider setting with its default.
#[test]
fn the_example_is_the_defaults() {
    let defaults = format!("{:?}", read("", &[]).unwrap());
    assert_eq!(format!("{:?}", read(EXAMPLE, &[]).unwrap()), defaults);

    let (mut section, mut named) = ("", Vec::new());
    let spelt_out = spelt_out();
    for line in spelt_out.lines() {
        match line.split_once(" = ") {
            Some((key, _)) => named.push(format!("{section}.{key}")),
            None => section = line.trim_matches(['[', ']']),
        }
    }
    let services = ["resolver.", "delivery.", "tool_gateway.", "orchestrator."];
    for setting in settings() {
        if services.iter().any(|service| setting.starts_with(service)) {
            continue;
        }
        let entries = ["main", "default", "openai", "openclaw", "ask", "paint", "corp"]
            .map(|entry| setting.replace(".main.", &format!(".{entry}.")));
        assert!(
            named.iter().any(|name| entries.contains(name)),
            "examples/signalbox.toml lacks {setting}"
        );
    }
}

#[test]
fn every_provider_of_the_example_works() {
    let spelt_out = spelt_out();
    let toml = &spelt_out[spelt_out.find("[providers.").unwrap()..];
    let providers: Providers = read(toml, &[]).unwrap().section("providers").unwrap();
    assert_eq!(
        Vec::from_iter(providers.keys()),
        ["default", "forgetful", "openai", "openclaw"]
    );

    // An omitted key has the example's value.
    let needed = |line: &&str| {
        ["[", "kind ", "url ", "model ", "api_key ", "issuer ", "client_id "]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let short = toml.lines().filter(needed).collect::<Vec<_>>().join("\n");
    let short: Providers = read(&short, &[]).unwrap().section("providers").unwrap();
    for entry in ["default", "openclaw"] {
        assert_eq!(
            format!("{:?}", providers[entry]),
            format!("{:?}", short[entry]),
            "{entry}"
        );
    }
}
