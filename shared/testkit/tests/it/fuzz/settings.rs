//! Settings, from a file and from the environment.

use runtime::settings::{Settings, SettingsError};
use secrecy::ExposeSecret;

use super::{fuzz, text};

/// The file, an empty comment, then variables, one a line.
#[test]
fn settings() {
    let example = include_str!("../../../../../examples/signalbox.toml");
    let seeds = [
        format!("{example}\n#---\nDATABASE_URL=postgres://u:hunter2@h/d\nSIGNALBOX__NATS__ROOT=sb\nRUST_LOG=info"),
        "[database]\nurl = \"postgres://u:hunter2@h/d\"\nconnections_max = 0x10\n#---\nSIGNALBOX__HTTP__BODY_BYTES_MAX=9".to_owned(),
        "[providers.main]\nkind = \"openclaw\"\napi_key = \"hunter2\"\nlimits = { a = [1, 2.5, true] }".to_owned(),
    ];
    fuzz("settings")
        .seeds(seeds)
        .words(&[
            "[nats]",
            "[http]",
            "[a.b]",
            "= ",
            "\"\"\"",
            "'''",
            "[[x]]",
            "1979-05-27",
            "0o7",
            "1_000",
            "inf",
            "nan",
        ])
        .words(&[
            "SIGNALBOX__",
            "SIGNALBOX_HTTP__X=1",
            "__",
            "=",
            "\n#---\n",
            "trace_ratio = 2",
            "{ a = 1 }",
        ])
        .must_meet(&["read", "syntax", "unknown", "invalid"])
        .run(|input| {
            let Some(text) = text(input) else { return "not text" };
            let (file, variables) = text.split_once("\n#---\n").unwrap_or((text, ""));
            let variables = variables.lines().filter_map(|line| line.split_once('='));
            match Settings::load_from(file, variables) {
                Ok(settings) => {
                    // A password in its proper place only is not printed.
                    let url = settings
                        .database
                        .url()
                        .map(|url| url.expose_secret().contains("hunter2"));
                    let only_there = url.is_ok_and(|is_there| is_there) && text.matches("hunter2").count() == 1;
                    assert!(
                        !(only_there && format!("{settings:?}").contains("hunter2")),
                        "a secret is shown"
                    );
                    "read"
                }
                Err(error) => {
                    let line = error.to_string();
                    assert!(!line.contains('\n'), "more than one line: {line}");
                    match error {
                        SettingsError::Syntax { .. } => "syntax",
                        SettingsError::Unknown { .. } => "unknown",
                        SettingsError::Missing { .. } => "missing",
                        SettingsError::Invalid { .. } => "invalid",
                        SettingsError::Unsafe { .. } => "unsafe",
                        SettingsError::File { .. } => unreachable!("no file is read"),
                    }
                }
            }
        });
}
