//! Finds or opens the one session a notification belongs to.
