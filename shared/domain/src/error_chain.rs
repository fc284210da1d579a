//! An error with its causes, as one text.

use std::error::Error;

/// On one line, each cause after a colon, for a log line or a dead letter.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
