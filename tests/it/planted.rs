//! The fault campaign finds bugs that are there on purpose: most of those that show themselves while it runs, several in one
//! campaign where none hides another, in a build of the copy that has them. `make chaos PLANTED=all` looks for all of them one by one, and runs the same campaigns without.

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

/// What is taken, run, shown or said that must not be.
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

/// What is said twice, stays open, comes in the wrong order, or stands in a log.
#[test]
fn what_must_not_be_seen() {
    are_found(&["reply_twice", "done_keeps_session", "newest_first", "secret_logged"]);
}

/// What is taken over from somebody who lives, taken up again, or tried again though nobody knows what came of it.
#[test]
fn what_must_not_go_on() {
    are_found(&["local_clock", "generation_reused", "unknown_retried"]);
}
