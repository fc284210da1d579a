//! The fault campaign finds planted bugs: most of those that show while it runs, several in one campaign if none hides another, in
//! a build of the copy that has them. `make chaos PLANTED=all` hunts all of them one by one, and runs the same campaigns without
//! bugs.

use std::process::Command;

fn are_found(bugs: &[&str]) {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/chaos/planted/run"))
        .args(["planted", "--together"])
        .args(bugs)
        .output()
        .expect("the campaign is built and runs");
    let (told, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && told.matches(" found after ").count() == bugs.len(),
        "{bugs:?}: {told}{errors}"
    );
}

/// Bugs that accept, run, show or post too much.
#[test]
fn what_must_not_happen() {
    are_found(&[
        "dedup_skipped",
        "once_key_dropped",
        "walls_dropped",
        "late_posted",
        "key_ignored",
    ]);
}

/// Bugs of brakes and runs.
#[test]
fn what_must_not_be_braked() {
    are_found(&["authors_merged", "successor_stopped", "gate_unread", "written_late"]);
    // Its sessions soon start nothing more, which hides the others.
    are_found(&["queue_steered_away"]);
}

/// Bugs of questions, timers, holds and of what an agent is told.
#[test]
fn what_must_not_be_done_twice_or_start() {
    are_found(&["answered_twice", "timer_twice", "hold_unread", "extract_past_ignored"]);
}

/// Bugs that do not wait for a person's approval.
#[test]
fn what_must_not_be_done_unasked() {
    are_found(&["approval_unread", "plan_unread", "stage_skipped"]);
}

/// Bugs that repeat, leave open, reorder, or log a secret.
#[test]
fn what_must_not_be_seen() {
    are_found(&["reply_twice", "done_keeps_session", "newest_first", "secret_logged"]);
}

/// Bugs that take over a live lease, resume, or retry after an unknown outcome.
#[test]
fn what_must_not_go_on() {
    are_found(&["local_clock", "generation_reused", "unknown_retried"]);
}
