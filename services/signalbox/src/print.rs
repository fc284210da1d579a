//! Standard output and standard error, and the exit code. If the reader closes the pipe, as `head` does, the command ends quietly
//! and never panics.

use std::{
    io::{ErrorKind, Write},
    process::ExitCode,
};

use serde::Serialize;

/// The reader closed standard output.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct ReaderGone;

/// Writes text to standard output, with a line break at the end.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let end = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.write_all(end.as_bytes()))
        .and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => ReaderGone.into(),
        _ => anyhow::Error::new(error).context("cannot write to standard output"),
    })
}

/// Writes a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).expect("what is printed has string keys");
    print(&text)
}

/// Writes a value as JSON or as text for people, and succeeds.
pub(crate) fn show<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> anyhow::Result<String>,
) -> anyhow::Result<ExitCode> {
    if json {
        print_json(value)?;
    } else {
        print(&text(value)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The exit code of a command that ran, and found or did what it should, or not.
pub(crate) fn code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes one line to standard error. A failure is ignored: no other channel is left.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "signalbox: {line}");
}
