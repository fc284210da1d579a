//! Makes texts safe for a terminal: replies, reasons and names are untrusted and may hold control characters.

/// One line without control characters, at most `chars_max` long.
pub(crate) fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || is_unsafe(c)) {
        if word.is_empty() {
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    match line.char_indices().nth(chars_max) {
        Some(_) => {
            let kept: String = line.chars().take(chars_max.saturating_sub(1)).collect();
            format!("{}…", kept.trim_end())
        }
        None => line,
    }
}

/// Several lines, each without control characters.
pub(crate) fn lines(text: &str) -> String {
    text.chars()
        .filter(|&c| c == '\n' || c == '\t' || !is_unsafe(c))
        .collect()
}

/// Escape sequences, and characters that change the writing direction.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// An error and its causes on one line. A cause that the text already contains is left out: some libraries include their source in
/// their own text.
pub(crate) fn error_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line += &format!(": {cause}");
        }
    }
    one_line(&line, 1_000)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_stranger_s_text_becomes_one_harmless_line() {
        assert_eq!(one_line("a\r\n  b\tc", 80), "a b c");
        assert_eq!(one_line("red \u{1b}[31mred\u{7}", 80), "red [31mred");
        assert_eq!(one_line("\u{202e}evil", 80), "evil");
        assert_eq!(lines("one\n\u{1b}[2Jtwo"), "one\n[2Jtwo");
    }

    #[test]
    fn a_long_text_is_cut_by_characters() {
        assert_eq!(one_line("äöü", 3), "äöü");
        assert_eq!(one_line("äöüß", 3), "äö…");
        assert_eq!(one_line("ab cdef", 4), "ab…");
        assert_eq!(one_line("", 3), "");
    }

    #[test]
    fn an_error_is_one_line_with_its_causes() {
        let error = anyhow!("connection refused")
            .context("cannot connect")
            .context("no NATS");
        assert_eq!(error_line(&error), "no NATS: cannot connect: connection refused");
        let repeated = anyhow!("refused").context("cannot connect: refused");
        assert_eq!(error_line(&repeated), "cannot connect: refused");
    }
}
