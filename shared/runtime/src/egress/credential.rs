//! Removes the credential of a server from the texts of its answers: some servers repeat the one that they refuse, and tenants and
//! agents read these texts.
//!
//! The rule: first remove, then cut. A cut text holds half a credential, which cannot be found. This is no barrier against a server
//! that rewrites the credential in a way of its own (reversed, with blanks): that server has the credential and can tell it to anybody.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

const REMOVED: &str = "(api_key)";
/// Replaces a text that holds the credential in an encoded form.
const REPEATS: &str = "(the text repeats the credential)";
/// A shorter key is a dummy such as `none`. It is removed from errors only, and only as it is.
const KEY_BYTES_MIN: usize = 8;
/// A shorter key without both a letter and a digit is a dummy such as `lm-studio` or `no-key-required`, which good texts contain: it is
/// removed from errors only.
const WORD_BYTES_MIN: usize = 16;
/// Servers quote the errors of servers behind them, which adds a layer of escapes each time.
const DECODINGS_MAX: usize = 4;

/// The credential for one server. Cheap to clone; without a key it changes no text.
#[derive(Clone, Debug, Default)]
pub struct Credential(Option<Arc<Forms>>);

#[derive(Debug)]
struct Forms {
    key: SecretString,
    /// The key as it is, decoded, and in base64; in lower case. Empty for a key below [`KEY_BYTES_MIN`].
    encoded: Vec<SecretString>,
}

impl Credential {
    pub fn new(key: Option<&SecretString>) -> Self {
        let key = key.filter(|key| !key.expose_secret().is_empty());
        Self(key.map(|key| Arc::new(Forms::of(key))))
    }

    /// Removes the credential from an error's text, which must not be cut yet.
    pub fn remove(&self, text: String) -> String {
        match &self.0 {
            None => text,
            Some(forms) if forms.encoded.is_empty() => text.replace(forms.key.expose_secret(), REMOVED),
            Some(forms) => forms.remove(text),
        }
    }

    /// As [`Self::remove`], for the text of a good answer, in which a dummy is a word like any other.
    pub fn remove_from_answer(&self, text: String) -> String {
        match self.secret() {
            Some(forms) => forms.remove(text),
            None => text,
        }
    }

    /// The key, if it is no dummy.
    fn secret(&self) -> Option<&Forms> {
        let forms = self.0.as_deref()?;
        let key = forms.key.expose_secret().as_bytes();
        let mixes = key.iter().any(u8::is_ascii_digit) && key.iter().any(u8::is_ascii_alphabetic);
        let is_secret = key.len() >= KEY_BYTES_MIN && mixes || key.len() >= WORD_BYTES_MIN;
        is_secret.then_some(forms)
    }

    /// As [`Self::remove_from_answer`], for every text of a parsed body except the names of fields.
    pub fn remove_from_json(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.remove_from_answer(std::mem::take(text)),
            Value::Array(values) => values.iter_mut().for_each(|value| self.remove_from_json(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.remove_from_json(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Bytes at the end of a streamed text which the next piece may complete to the key.
    pub fn bytes_begun(&self, text: &str) -> usize {
        let Some(forms) = self.secret() else { return 0 };
        let (key, text) = (forms.key.expose_secret().as_bytes(), text.as_bytes());
        let longest = text.len().min(key.len() - 1);
        let begins = |bytes: &usize| text[text.len() - bytes..].eq_ignore_ascii_case(&key[..*bytes]);
        (1..=longest).rev().find(begins).unwrap_or_default()
    }
}

impl Forms {
    fn of(key: &SecretString) -> Self {
        let plain = key.expose_secret();
        let mut encoded = vec![plain.to_ascii_lowercase()];
        // The key may itself look like an escape.
        encoded.push((0..DECODINGS_MAX).fold(encoded[0].clone(), |text, _| decoded(&text)));
        for before in 0..3 {
            // The characters that depend on the key alone, wherever it stands in the encoded text.
            let bytes = [&b"..."[..before], plain.as_bytes()].concat();
            let (from, to) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
            for base64 in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                encoded.push(base64.encode(&bytes)[from..to].to_ascii_lowercase());
            }
        }
        encoded.retain(|form| plain.len() >= KEY_BYTES_MIN && form.len() >= KEY_BYTES_MIN);
        encoded.sort_unstable();
        encoded.dedup();
        Self {
            key: key.clone(),
            encoded: encoded.into_iter().map(SecretString::from).collect(),
        }
    }

    fn remove(&self, text: String) -> String {
        if text.len() < KEY_BYTES_MIN {
            return text;
        }
        let text = self.remove_plain(text);
        match self.is_within(&text) {
            true => REPEATS.to_owned(),
            false => text,
        }
    }

    /// Removes the key as it is, in letters of either case.
    fn remove_plain(&self, text: String) -> String {
        let key = self.key.expose_secret().to_ascii_lowercase();
        // Lower case of ASCII leaves every byte in its place.
        let lower = text.to_ascii_lowercase();
        if !lower.contains(&key) {
            return text;
        }
        let mut kept = String::with_capacity(text.len());
        let mut from = 0;
        for (at, _) in lower.match_indices(&key) {
            kept.push_str(&text[from..at]);
            kept.push_str(REMOVED);
            from = at + key.len();
        }
        kept.push_str(&text[from..]);
        kept
    }

    /// Whether the text holds the key in any form, below any layer of escapes.
    fn is_within(&self, text: &str) -> bool {
        let mut text = text.to_ascii_lowercase();
        for _ in 0..DECODINGS_MAX {
            if self.has_form(&text) {
                return true;
            }
            if !text.contains(['\\', '%']) {
                return false;
            }
            text = decoded(&text);
        }
        self.has_form(&text)
    }

    fn has_form(&self, text: &str) -> bool {
        self.encoded.iter().any(|form| text.contains(form.expose_secret()))
    }
}

/// Decodes one layer of the escapes of JSON and of addresses, as far as they stand for ASCII: a key has no other characters. In
/// lower case.
fn decoded(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '%']) {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let (character, bytes) = escape(rest).unwrap_or((char::from(rest.as_bytes()[0]), 1));
        plain.push(character.to_ascii_lowercase());
        rest = &rest[bytes..];
    }
    plain.push_str(rest);
    plain
}

/// The character of the escape at the beginning of a text, and the bytes of the escape.
fn escape(text: &str) -> Option<(char, usize)> {
    let code = |from: usize, to: usize| {
        let digits = text
            .get(from..to)
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let code = u8::from_str_radix(digits, 16).ok().filter(u8::is_ascii)?;
        Some((char::from(code), to))
    };
    match text.as_bytes() {
        [b'%', ..] => code(1, 3),
        [b'\\', b'u' | b'U', ..] => code(2, 6),
        [b'\\', character @ (b'/' | b'"' | b'\\'), ..] => Some((char::from(*character), 2)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk/SECRET+key-0123";

    fn credential(key: &str) -> Credential {
        Credential::new(Some(&SecretString::from(key)))
    }

    /// Every character as JSON's escape.
    fn escaped(text: &str) -> String {
        text.bytes().map(|byte| format!("\\u{byte:04x}")).collect()
    }

    fn percent(text: &str) -> String {
        text.bytes().map(|byte| format!("%{byte:02X}")).collect()
    }

    #[test]
    fn removes_the_key_as_it_is() {
        let check =
            |text: &str, expected: &str| assert_eq!(credential(KEY).remove(text.to_owned()), expected, "{text}");
        check("", "");
        check("no such model", "no such model");
        check(KEY, "(api_key)");
        check(&format!("ü {KEY}, {KEY}{KEY} ü"), "ü (api_key), (api_key)(api_key) ü");
        check(&format!("no {}!", KEY.to_uppercase()), "no (api_key)!");
        check(&format!("no {}!", KEY.to_lowercase()), "no (api_key)!");
        check(r#"100% of C:\dir \u00e4 %e4%"#, r#"100% of C:\dir \u00e4 %e4%"#);
        let long = format!("{}{KEY}", "x".repeat(70_000));
        assert!(credential(KEY).remove(long).ends_with("xx(api_key)"));
        assert_eq!(Credential::default().remove(KEY.to_owned()), KEY);
    }

    #[test]
    fn replaces_a_text_that_holds_the_key_encoded() {
        let check = |key: &str, repeated: &str| {
            let text = format!("data: {repeated} was refused");
            assert_eq!(credential(key).remove(text.clone()), REPEATS, "{key}: {text}");
            assert_eq!(credential(key).remove_from_answer(text), REPEATS, "{key}: {repeated}");
        };
        for key in [
            KEY,
            r#"a"quoted\key\\1"#,
            "ab%41cd-%25-key",
            r"u\u0041-back-key",
            "%25%32%35-20%25-a",
        ] {
            let json = |text: &str| Value::from(text).to_string();
            check(key, &escaped(key));
            check(key, &escaped(key).to_uppercase());
            check(key, &json(&escaped(key)));
            check(key, &json(&json(&escaped(key))));
            check(key, &percent(key));
            check(key, &percent(key).to_lowercase());
            check(key, &percent(&percent(key)));
            check(key, &percent(&escaped(key)));
            check(key, &escaped(&percent(key)));
            for text in [
                key.to_owned(),
                format!("Bearer {key}"),
                format!("x:{key}\n"),
                format!("{{\"key\":\"{key}\"}}"),
            ] {
                check(key, &STANDARD_NO_PAD.encode(&text));
                check(key, &URL_SAFE_NO_PAD.encode(&text));
                check(key, &escaped(&STANDARD_NO_PAD.encode(&text)));
            }
            // Some is as it is, some is not.
            check(key, &format!("{key} {}", escaped(key)));
        }
        check(KEY, &KEY.replace('/', "\\/"));
        check(KEY, &KEY.replace('k', "\\u006B"));
        check(r#"a"quoted\key\\1"#, &Value::from(r#"a"quoted\key\\1"#).to_string());
    }

    #[test]
    fn a_dummy_is_no_secret() {
        let none = credential("none");
        assert_eq!(none.remove("no key none".to_owned()), "no key (api_key)");
        assert_eq!(none.remove(escaped("none")), escaped("none"));
        assert_eq!(none.remove_from_answer("None, none".to_owned()), "None, none");
        assert_eq!(none.bytes_begun("non"), 0);
        assert_eq!(credential("").remove("a text".to_owned()), "a text");
        for word in ["lm-studio", "not-needed", "no-key-required", "12345678"] {
            let path = format!("docs/{}.md", word.to_uppercase());
            assert_eq!(credential(word).remove_from_answer(path.clone()), path);
            assert_eq!(credential(word).remove(path), "docs/(api_key).md");
        }
        for secret in ["sk-12345", "correct-horse-battery"] {
            assert_eq!(credential(secret).remove_from_answer(secret.to_owned()), REMOVED);
        }
    }

    #[test]
    fn removes_the_key_from_every_text_of_a_body() {
        let mut body = serde_json::json!({"error": {"message": KEY, "codes": [1, null, true, escaped(KEY), "other"]}});
        credential(KEY).remove_from_json(&mut body);
        let expected =
            serde_json::json!({"error": {"message": "(api_key)", "codes": [1, null, true, REPEATS, "other"]}});
        assert_eq!(body, expected);
    }

    #[test]
    fn finds_the_beginning_of_a_key() {
        let check = |text: &str, bytes: usize| assert_eq!(credential(KEY).bytes_begun(text), bytes, "{text}");
        check("", 0);
        check("the key is ü", 0);
        check("the key is s", 1);
        check("ü ssk/secre", 8);
        check("sk/SECRET+key-012", KEY.len() - 1);
        check("sk/SECRET+key-0123", 0);
    }

    #[test]
    fn shows_no_key() {
        assert!(!format!("{:?}", credential(KEY)).to_lowercase().contains("secret+key"));
    }
}
