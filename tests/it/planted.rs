//! The fault campaign finds bugs that are there on purpose: those that show themselves within seconds, a process of its own
//! each. `make chaos PLANTED=all` looks for all of them, and runs the same campaigns without.

use std::process::Command;

fn is_found(bug: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["planted", bug])
        .output()
        .expect("the campaign's program runs");
    let (told, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && told.contains("found after"),
        "{bug}: {told}{errors}"
    );
}

#[test]
fn a_notification_that_is_taken_twice() {
    is_found("dedup_skipped");
}

#[test]
fn a_tool_call_that_is_run_twice() {
    is_found("once_key_dropped");
}

#[test]
fn a_query_that_names_no_account() {
    is_found("walls_dropped");
}

#[test]
fn a_reply_that_is_posted_twice() {
    is_found("reply_twice");
}

#[test]
fn a_reply_that_came_too_late() {
    is_found("late_posted");
}

#[test]
fn a_session_that_done_does_not_close() {
    is_found("done_keeps_session");
}

#[test]
fn a_password_in_a_log() {
    is_found("secret_logged");
}

#[test]
fn a_queue_whose_newest_comes_first() {
    is_found("newest_first");
}
