//! Planted bugs: whether this process has one. Only in the copy of the sources that `apply` creates.

/// `SIGNALBOX_PLANTED` names the bugs of a process, with commas between.
pub fn is_planted(bug: &str) -> bool {
    let chosen = std::env::var("SIGNALBOX_PLANTED").unwrap_or_default();
    chosen.split(',').any(|name| name == bug)
}
