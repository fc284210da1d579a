//! The context of a task: the text in which its agents say what is being built, for whoever joins the work. How much of it is
//! kept, and what is said where it was cut. Pure.

use crate::string_enum::string_enum;

/// Unicode scalar values of a version, blanks around it left out. What is longer is cut when it is written.
pub const CHARACTERS_MAX: usize = 10_000;

string_enum! {
    /// Whether calls that hand a task's work on need its context. They are refused while it is `required` and not there.
    ContextNeed { Required = "required", Optional = "optional" }
}

/// A text as it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptContext<'a> {
    pub body: &'a str,
    pub size: ContextSize,
}

/// In Unicode scalar values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct ContextSize {
    /// Of the text that is kept.
    pub characters: i32,
    /// Of its end, which was cut off.
    pub cut_characters: i32,
}

impl KeptContext<'_> {
    /// None: the text is blank.
    pub fn of(text: &str) -> Option<KeptContext<'_>> {
        let text = text.trim();
        let end = text.char_indices().nth(CHARACTERS_MAX).map_or(text.len(), |(at, _)| at);
        let (body, rest) = text.split_at(end);
        let count = |text: &str| i32::try_from(text.chars().count()).unwrap_or(i32::MAX);
        (!body.is_empty()).then(|| KeptContext {
            body,
            size: ContextSize {
                characters: count(body),
                cut_characters: count(rest),
            },
        })
    }
}

impl ContextSize {
    /// What the call that wrote a cut version and every later use of it say.
    pub fn warning(self) -> Option<String> {
        let before = i64::from(self.characters) + i64::from(self.cut_characters);
        (self.cut_characters > 0).then(|| {
            format!(
                "The task context was cut from {} to {} characters. Consider shortening it.",
                grouped(before),
                grouped(self.characters.into())
            )
        })
    }
}

/// `10000` as `10,000`.
fn grouped(number: i64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four bytes each, and one more letter of two marks, which is two characters.
    #[test]
    fn a_text_is_measured_in_characters_and_cut_at_ten_thousand() {
        let check = |text: &str, characters: usize, cut: usize| {
            let kept = KeptContext::of(text).unwrap();
            let size = ContextSize {
                characters: i32::try_from(characters).unwrap(),
                cut_characters: i32::try_from(cut).unwrap(),
            };
            assert_eq!(kept.size, size);
            assert_eq!(kept.body.chars().count(), characters);
            assert!(text.contains(kept.body));
        };
        check("a", 1, 0);
        check(" \n a b \t", 3, 0);
        check(&"😀".repeat(10_000), 10_000, 0);
        check(&"😀".repeat(10_001), 10_000, 1);
        check(&format!(" {} ", "😀".repeat(10_000)), 10_000, 0);
        check(&format!("{}e\u{301}", "x".repeat(9_999)), 10_000, 1);
        assert_eq!(KeptContext::of(" \u{a0}\n"), None);
        assert_eq!(KeptContext::of(""), None);
    }

    #[test]
    fn what_was_cut_is_said() {
        let warning = |text: &str| KeptContext::of(text).unwrap().size.warning();
        assert_eq!(warning(&"😀".repeat(10_000)), None);
        assert_eq!(
            warning(&"😀".repeat(12_345)).unwrap(),
            "The task context was cut from 12,345 to 10,000 characters. Consider shortening it."
        );
        assert_eq!(
            [7, 999, 1_000, 1_234_567].map(grouped),
            ["7", "999", "1,000", "1,234,567"]
        );
    }
}
