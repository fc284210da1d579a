//! Spellings of a foreign name, and the unknown name of the same form.

use crate::simulation::random::Random;

/// Replacements of digits and letters in unknown ids. They are the same for all ids, so that one answer serves many comparisons.
const NOBODYS_DIGITS: &str = "07550937";
const NOBODYS_LETTERS: &str = "bdeefacd";

/// The unknown name of the same form: another account name, other digits in ids. A digit replaces a digit and a letter a letter of
/// its case, since the form may decide whether a text is an id.
pub(crate) fn missing(name: &str, account: &str) -> String {
    // Of equal length, so that limits treat both alike.
    let nobody = "x".repeat(account.len());
    let mut missing = String::new();
    for part in name.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let (word, end) = match part.char_indices().last() {
            Some((at, last)) if !last.is_ascii_alphanumeric() => part.split_at(at),
            _ => (part, ""),
        };
        if word.eq_ignore_ascii_case(account) {
            missing.push_str(&if word == account {
                nobody.clone()
            } else {
                nobody.to_uppercase()
            });
        } else if word.len() >= 4 && word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let nobodys = NOBODYS_DIGITS.chars().zip(NOBODYS_LETTERS.chars()).cycle();
            missing.extend(word.chars().zip(nobodys).map(|(ours, (digit, letter))| match ours {
                '0'..='9' => digit,
                'A'..='F' => letter.to_ascii_uppercase(),
                _ => letter,
            }));
        } else {
            missing.push_str(word);
        }
        missing.push_str(end);
    }
    missing
}

/// Spellings that may evade a comparison.
pub(crate) fn spelled(name: &str, random: &mut Random) -> String {
    match random.below(8) {
        0 => name.to_uppercase(),
        1 => name.to_lowercase(),
        2 => format!("{name} "),
        _ => name.to_owned(),
    }
}

/// A name as a part of a path or query; sometimes with unneeded escapes.
pub(crate) fn escaped(name: &str, random: &mut Random) -> String {
    let all = random.below(8) == 0;
    name.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() && !all || b"-_.~".contains(&byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// Replaces each first name in the text with its second.
pub(crate) fn replaced(text: &str, names: &[(String, String)]) -> String {
    names
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from.as_str(), to))
}

#[test]
fn what_nobody_has_looks_the_same() {
    for (name, expected) in [
        ("alder", "xxxxx"),
        ("ALDER-1", "XXXXX-1"),
        ("task:alder-1:agent:00ff:alder:v2", "task:xxxxx-1:agent:07ee:xxxxx:v2"),
        ("A1B2-3456", "B7E5-0755"),
        ("alder-reviewer", "xxxxx-reviewer"),
    ] {
        assert_eq!(missing(name, "alder"), expected);
    }
}
