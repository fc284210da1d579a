//! Quotes texts of publishers in a text for a model. Pure.
//!
//! A title, a name or an id becomes a [`line`] in quotation marks that it can neither leave nor end. A longer text
//! keeps its lines and becomes [`inert`]: no character in it is invisible or reverses others. Such characters are
//! written as visible escapes. `shared/prompt` marks quotations of several lines.

use std::{borrow::Cow, fmt::Write as _, ops::RangeInclusive};

use serde_json::Value;
use unicode_general_category::{GeneralCategory, get_general_category};

/// Appended to a truncated line.
const CUT: char = '…';

/// A single line of a publisher in quotation marks, at most `bytes_max` long between them, and the number of bytes that
/// were left out.
pub fn line(text: &str, bytes_max: usize) -> (String, usize) {
    let mut line = String::with_capacity(text.len().min(bytes_max) + 2);
    line.push('"');
    let mut left_out = 0;
    for (at, character) in text.char_indices() {
        let before = line.len();
        push_in_line(&mut line, character);
        if line.len() - 1 > bytes_max {
            line.truncate(before);
            left_out = text.len() - at;
            break;
        }
    }
    line.push('"');
    if left_out > 0 {
        line.push(CUT);
    }
    (line, left_out)
}

/// What follows a quoted [`line`] at the beginning of a text. None: the text does not begin with one.
pub fn line_end(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = inner.find(|character| {
        let ends = character == '"' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        ends || character == '\n'
    })?;
    let rest = inner[end..].strip_prefix('"')?;
    Some(rest.strip_prefix(CUT).unwrap_or(rest))
}

/// A text with its line breaks and tabs, in which every character is visible. Idempotent.
pub fn inert(text: &str) -> Cow<'_, str> {
    let is_plain = |character: char| matches!(character, '\n' | '\t') || !is_hidden(character);
    // A joiner follows the character that it joins, and occurs singly: a run of joiners would be invisible text.
    let may_join = |before: Option<char>| before.is_some_and(|before| !before.is_whitespace() && !is_joiner(before));
    let mut before = None;
    let is_inert = text.chars().all(|character| {
        let before = before.replace(character);
        is_plain(character) || is_joiner(character) && may_join(before)
    });
    if is_inert {
        return Cow::Borrowed(text);
    }
    let mut inert = String::with_capacity(text.len() + 32);
    for character in text.replace("\r\n", "\n").chars() {
        if is_plain(character) {
            inert.push(character);
        } else if !is_joiner(character) {
            escape(&mut inert, character);
        } else if may_join(inert.chars().next_back()) {
            inert.push(character);
        }
    }
    Cow::Owned(inert)
}

/// A text on one line, without quotation marks around it: [`inert`], with its line breaks and tabs as visible escapes. For
/// what people read line by line. Idempotent.
pub fn one_line(text: &str) -> Cow<'_, str> {
    let inert = inert(text);
    match inert.contains(['\n', '\t']) {
        true => Cow::Owned(inert.replace('\n', "\\n").replace('\t', "\\t")),
        false => inert,
    }
}

/// Makes every text of a JSON value, names included, [`inert`]. JSON's own quotation marks delimit it. The reader of
/// the value bounds its nesting, and so this recursion.
pub fn inert_json(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(inert) = inert(text) {
                *text = inert;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(inert_json),
        Value::Object(fields) => {
            if fields.keys().any(|name| matches!(inert(name), Cow::Owned(_))) {
                let named = std::mem::take(fields).into_iter();
                *fields = named.map(|(name, value)| (inert(&name).into_owned(), value)).collect();
            }
            fields.values_mut().for_each(inert_json);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn push_in_line(line: &mut String, character: char) {
    match character {
        '\\' => line.push_str("\\\\"),
        '\n' => line.push_str("\\n"),
        '\r' => line.push_str("\\r"),
        '\t' => line.push_str("\\t"),
        // Our own texts put names of tools and agents into backticks.
        '`' => line.push('\''),
        _ if is_quotation_mark(character) => line.push_str("\\\""),
        // An emoji or a word loses nothing that matters in a single line.
        _ if is_joiner(character) => {}
        _ if is_hidden(character) => escape(line, character),
        _ => line.push(character),
    }
}

fn escape(text: &mut String, character: char) {
    write!(text, "\\u{{{:x}}}", u32::from(character)).expect("writing to a String cannot fail");
}

/// The double quotation mark and its lookalikes. Guillemets and single marks are not.
fn is_quotation_mark(character: char) -> bool {
    const ALIKE: [RangeInclusive<char>; 9] = [
        '"'..='"',
        '\u{2ba}'..='\u{2ba}',
        '\u{2ee}'..='\u{2ee}',
        '\u{201c}'..='\u{201f}',
        '\u{2033}'..='\u{2036}',
        '\u{275d}'..='\u{275e}',
        '\u{301d}'..='\u{301f}',
        '\u{ff02}'..='\u{ff02}',
        '\u{1f676}'..='\u{1f678}',
    ];
    ALIKE.iter().any(|range| range.contains(&character))
}

/// Some scripts and emoji cannot be written without them.
fn is_joiner(character: char) -> bool {
    matches!(character, '\u{200c}' | '\u{200d}' | '\u{fe0e}' | '\u{fe0f}')
}

/// Invisible, ends a line, reverses text, or has an unknown effect.
fn is_hidden(character: char) -> bool {
    use GeneralCategory::{Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, Surrogate, Unassigned};
    /// Invisible characters in categories of visible ones; and the replacement character.
    const DRAWS_NOTHING: [RangeInclusive<char>; 11] = [
        '\u{34f}'..='\u{34f}',
        '\u{115f}'..='\u{1160}',
        '\u{17b4}'..='\u{17b5}',
        '\u{180b}'..='\u{180f}',
        '\u{2800}'..='\u{2800}',
        '\u{3164}'..='\u{3164}',
        '\u{fe00}'..='\u{fe0f}',
        '\u{ffa0}'..='\u{ffa0}',
        '\u{fffc}'..='\u{fffd}',
        '\u{16fe4}'..='\u{16fe4}',
        '\u{1d159}'..='\u{1d159}',
    ];
    /// Tags and variation selectors.
    const SUPPLEMENT: RangeInclusive<char> = '\u{e0000}'..='\u{e0fff}';
    if character.is_ascii() {
        return character.is_ascii_control();
    }
    let category = get_general_category(character);
    matches!(
        category,
        Control | Format | LineSeparator | ParagraphSeparator | PrivateUse | Surrogate | Unassigned
    ) || SUPPLEMENT.contains(&character)
        || DRAWS_NOTHING.iter().any(|range| range.contains(&character))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_one_quotation() {
        let check = |text: &str, expected: &str| assert_eq!(line(text, 200), (expected.to_owned(), 0), "{text:?}");
        check("", r#""""#);
        check("Build 4711 failed", r#""Build 4711 failed""#);
        check("Grüße, 世界 ⚠\u{fe0f} می\u{200c}خواهم", "\"Grüße, 世界 ⚠ میخواهم\"");
        check("a\nb\r\nc\td", r#""a\nb\r\nc\td""#);
        check("a\u{2028}# Policy", r#""a\u{2028}# Policy""#);
        check("a\u{85}b\u{b}c\u{c}d\0", r#""a\u{85}b\u{b}c\u{c}d\u{0}""#);
        check("a\u{202e}b\u{2066}c\u{feff}", r#""a\u{202e}b\u{2066}c\u{feff}""#);
        check("a\u{e0041}\u{e0100}\u{fe01}", r#""a\u{e0041}\u{e0100}\u{fe01}""#);
        check("a\u{fffd}\u{e000}\u{378}", r#""a\u{fffd}\u{e000}\u{378}""#);
        check(r#"" (user "op"#, r#""\" (user \"op""#);
        check("“a” ＂b＂ 「c」 «d»", r#""\"a\" \"b\" 「c」 «d»""#);
        check(r"a\u{202e}\", r#""a\\u{202e}\\""#);
        check("```\n`code`", r#""'''\n'code'""#);
    }

    #[test]
    fn a_line_that_does_not_end_is_none() {
        for text in ["", "a", "\"", "\"a", "\"a\\\"", "\"a\nb\"", " \"a\""] {
            assert_eq!(line_end(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_line_is_cut_between_what_it_shows() {
        assert_eq!(line("ééé", 5), ("\"éé\"…".to_owned(), 2));
        assert_eq!(line("a\u{202e}b", 8), ("\"a\"…".to_owned(), 4));
        assert_eq!(line("a\u{202e}b", 9), ("\"a\\u{202e}\"…".to_owned(), 1));
        assert_eq!(line("aa\"", 3), ("\"aa\"…".to_owned(), 1));
        assert_eq!(line("abc", 3), ("\"abc\"".to_owned(), 0));
    }

    #[test]
    fn a_longer_text_keeps_its_lines_and_shows_the_rest() {
        let check = |text: &str, expected: &str| {
            assert_eq!(inert(text), expected, "{text:?}");
            assert_eq!(inert(expected), expected);
        };
        check("a\n\tb `c` \"d\"", "a\n\tb `c` \"d\"");
        check(
            "a\r\nb\rc\u{2029}d",
            "a\r\nb\rc\u{2029}d"
                .replace("\r\n", "\n")
                .replace('\r', "\\u{d}")
                .replace('\u{2029}', "\\u{2029}")
                .as_str(),
        );
        check("می\u{200c}خواهم ❤\u{fe0f}", "می\u{200c}خواهم ❤\u{fe0f}");
        check("a\u{e0049}\u{e0067}b\u{202e}", "a\\u{e0049}\\u{e0067}b\\u{202e}");
        check("a\u{1d159}b\u{16fe4}", "a\\u{1d159}b\\u{16fe4}");
        check("a\u{200d}\u{200c}\u{fe0f}\u{200c}b", "a\u{200d}b");
        check("\u{200d}a \u{200c}\u{200c}b\n\u{fe0f}c", "a b\nc");
        check("a\u{202e}\u{200d}\u{200d}b", "a\\u{202e}\u{200d}b");
        check("👩\u{200d}🚀", "👩\u{200d}🚀");
    }

    #[test]
    fn a_text_on_one_line_shows_its_breaks() {
        let check = |text: &str, expected: &str| {
            assert_eq!(one_line(text), expected, "{text:?}");
            assert_eq!(one_line(expected), expected);
        };
        check("{\"a\": `b`} c\\d", "{\"a\": `b`} c\\d");
        check("a\nb\r\nc\td", "a\\nb\\nc\\td");
        check("a\rb\u{1b}[2J\u{7}", "a\\u{d}b\\u{1b}[2J\\u{7}");
        check(
            "a\u{85}b\u{9b}c\u{2028}d\u{202e}",
            "a\\u{85}b\\u{9b}c\\u{2028}d\\u{202e}",
        );
        check("a\n\u{200d}b 👩\u{200d}🚀", "a\\nb 👩\u{200d}🚀");
    }

    #[test]
    fn every_text_of_a_value_is_inert() {
        let mut value = json!({"a\u{202e}": ["b\u{2028}", {"c": "d\n"}, 1, null], "e": "f"});
        inert_json(&mut value);
        assert_eq!(
            value,
            json!({"a\\u{202e}": ["b\\u{2028}", {"c": "d\n"}, 1, null], "e": "f"})
        );
    }

    proptest! {
        #[test]
        fn no_text_leaves_one_line(text in any::<String>()) {
            let once = one_line(&text).into_owned();
            prop_assert!(!once.chars().any(|c| is_hidden(c) && !is_joiner(c)), "{once:?}");
            prop_assert_eq!(one_line(&once).into_owned(), once.clone());
        }

        #[test]
        fn no_text_hides_a_run_of_joiners(
            text in "[\\x{200c}\\x{200d}\\x{fe0e}\\x{fe0f}\\x{202e}a \n\r]{0,40}",
        ) {
            let once = inert(&text).into_owned();
            let is_run = |pair: &[char]| is_joiner(pair[1]) && (is_joiner(pair[0]) || pair[0].is_whitespace());
            prop_assert!(!once.chars().collect::<Vec<_>>().windows(2).any(is_run), "{once:?}");
            prop_assert_eq!(inert(&once).into_owned(), once.clone());
        }

        #[test]
        fn no_text_leaves_its_line(text in any::<String>(), bytes_max in 0_usize..80) {
            let (line, left_out) = line(&text, bytes_max);
            let inner = line.trim_end_matches(CUT);
            let inner = inner.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect("in quotation marks");
            prop_assert!(inner.len() <= bytes_max);
            prop_assert!(left_out <= text.len());
            prop_assert!(!inner.chars().any(|c| is_hidden(c) || c == '`'), "{inner:?}");
            let followed = format!("{line} \"b\"");
            prop_assert_eq!(line_end(&followed), Some(" \"b\""));
            prop_assert_eq!(line_end(&line), Some(""));
            // Every quotation mark inside is escaped.
            let unescaped = inner.replace("\\\\", "").replace("\\\"", "");
            prop_assert!(!unescaped.chars().any(is_quotation_mark), "{inner:?}");
        }
    }
}
