//! The command as a process: exit codes, error lines, generated files. The system tests cover `up` (`tests/it/up.rs`).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod command;
mod provider;
mod schemas;

use std::process::{Command, Output};

/// Runs the program in a folder of its own, without the caller's environment.
fn signalbox(folder: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_signalbox"));
    command.args(arguments).current_dir(folder.path()).env_clear();
    command
}

fn run(folder: &tempfile::TempDir, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = signalbox(folder, arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
