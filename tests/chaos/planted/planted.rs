//! Bugs on purpose: whether this process has one. In the copy of the sources that `apply` makes, and nowhere else.

/// `SIGNALBOX_PLANTED` names the bugs of a process, with commas between.
pub fn is_planted(bug: &str) -> bool {
    let chosen = std::env::var("SIGNALBOX_PLANTED").unwrap_or_default();
    chosen.split(',').any(|name| name == bug)
}
