//! `signalbox context`: what is said of a task to whoever joins its work; `--set` writes the next version.

use std::{
    fs::{File, Metadata},
    io::{Read, stdin},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, anyhow, bail};
use api::{
    contexts::{BODY_BYTES_MAX, NewTaskContext, TaskContext},
    number::Whole,
};
use serde_json::Value;

use super::moment;
use crate::{
    cli::ContextArgs,
    client::read_as,
    print::show,
    text::{lines, one_line},
};

pub(crate) async fn run(args: &ContextArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let path = ["api", "orgs", &args.of.account, "tasks", &args.task, "context"];
    let context: Value = match &args.set {
        None => client.get(&path, &[]).await?,
        Some(file) => {
            let if_version = args.if_version.map(|version| Whole::try_from(f64::from(version)));
            let new = NewTaskContext {
                body: text(file, BODY_BYTES_MAX)?,
                if_version: if_version.transpose().map_err(anyhow::Error::msg)?,
            };
            client.put(&path, &new).await?
        }
    };
    show(json, &context, |context| Ok(in_full(&args.task, &read_as(context)?)))
}

/// The file's text; `-` reads standard input. A text of more than `bytes_max` is refused here, where the size of a file is known.
pub(super) fn text(file: &Path, bytes_max: usize) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    // One byte more than fits, so that a text that is too long is refused and not cut.
    let limit = u64::try_from(bytes_max).expect("a small constant") + 1;
    let (name, read) = match file.to_str() {
        Some("-") => ("standard input".into(), stdin().take(limit).read_to_end(&mut bytes)),
        _ => {
            let read = File::open(file).and_then(|file| file.take(limit).read_to_end(&mut bytes));
            (file.to_string_lossy(), read)
        }
    };
    read.with_context(|| format!("cannot read the text from {name}"))?;
    if bytes.len() > bytes_max {
        let size = file.metadata().ok().filter(Metadata::is_file);
        let size = size.map_or_else(|| format!("more than {bytes_max}"), |size| size.len().to_string());
        bail!("{name} has {size} bytes; at most {bytes_max} are taken");
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("{name} is not a text in UTF-8"))
}

/// Texts of others keep to their lines.
fn in_full(task: &str, context: &TaskContext) -> String {
    let warning = context
        .warning
        .as_deref()
        .map(|warning| format!("{}\n", one_line(warning, 200)));
    format!(
        "context of {}, version {}: {} characters, by {} at {}\n{}\n{}",
        one_line(task, 64),
        context.version,
        context.characters,
        one_line(&context.author.name, 64),
        moment(Some(context.created_at)),
        warning.unwrap_or_default(),
        lines(&context.body),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_refused_with_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text.md");
        let check = |content: &[u8], expected: Result<&str, &str>| {
            std::fs::write(&file, content).unwrap();
            let found = text(&file, 7).map_err(|error| crate::text::error_line(&error));
            let expected = expected
                .map(str::to_owned)
                .map_err(|error| format!("{} {error}", file.display()));
            assert_eq!(found, expected);
        };
        check(b"", Ok(""));
        check("1234567".as_bytes(), Ok("1234567"));
        check("12345678".as_bytes(), Err("has 8 bytes; at most 7 are taken"));
        // The limit is within a letter.
        check("äää1ä23".as_bytes(), Err("has 11 bytes; at most 7 are taken"));
        check(b"\xff", Err("is not a text in UTF-8"));
        let endless = crate::text::error_line(&text(Path::new("/dev/zero"), 7).unwrap_err());
        assert_eq!(endless, "/dev/zero has more than 7 bytes; at most 7 are taken");
        std::fs::remove_file(&file).unwrap();
        let missing = crate::text::error_line(&text(&file, 7).unwrap_err());
        assert!(missing.starts_with("cannot read the text from "), "{missing}");
    }

    #[test]
    fn shows_a_context_and_what_was_cut() {
        let mut context = json!({"version": 3, "body": "Build the\u{1b}[31m parser.\nIt is red.", "characters": 28,
            "cut_characters": 2, "author": {"kind": "agent", "id": "a", "name": "coder"}, "turn_id": null,
            "created_at": "2026-01-02T03:04:05Z", "warning": "It was cut.", "a_field": "of a newer server"});
        assert_eq!(
            in_full("PROJ-7", &read_as(&context).unwrap()),
            "context of PROJ-7, version 3: 28 characters, by coder at 2026-01-02 03:04:05\nIt was cut.\n\nBuild the[31m parser.\nIt is red."
        );
        context.as_object_mut().unwrap().remove("warning");
        let whole = in_full("PROJ-7", &read_as(&context).unwrap());
        assert!(whole.contains("03:04:05\n\nBuild"), "{whole}");
    }
}
