//! Standard output and standard error. Whoever reads our output may stop reading, as `head` does: that ends a command
//! quietly and is never a panic.

use std::io::{ErrorKind, Write};

use serde::Serialize;

/// Nobody reads standard output any more.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct ReaderGone;

/// Writes text to standard output; a last line break is added where it is missing.
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

/// The same as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).expect("what is printed has string keys");
    print(&text)
}

/// One line on standard error. There is nobody to tell when that fails.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "signalbox: {line}");
}
