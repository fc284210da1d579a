//! Mutations of an input: bytes, meaningful words, tokens between separators, lines, numbers, and values within JSON,
//! also in one line of many.

use serde_json::{Map, Value, json};

use super::Random;

/// Bytes that parsers branch on.
const TURNS: &[u8] = b"\0\t\n\r \"'*+,-./:;<=>?@[\\]_`{|}~\x7f\x80\xbf\xc0\xe2\xef\xf4\xff";
const SEPARATORS: &[u8] = b".:,;_-/ \n=&";
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "-1",
    "1",
    "007",
    "1.5",
    "1e999",
    "-1e999",
    "1e-999",
    "0x10",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "NaN",
    "Infinity",
    "+1",
    "\u{0665}",
    "2147483648",
    "65536",
];
const TEXTS: &[&str] = &[
    "",
    " ",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "\u{fffd}",
    "é",
    "🚉",
    "\u{2028}",
    "a\r\nb: c",
    "../..",
    "*",
    ">",
    "-",
    "null",
    "\u{d7ff}",
    "İ",
    "ß",
    "\u{1b}[31m",
    "%00",
    "{{}}",
    "' or 1=1 --",
];
/// Limits of time types: of RFC 3339, of the range of years, of Postgres, of Unix.
const DATES: &[&str] = &[
    "9999-12-31T23:59:59-23:59",
    "9999-12-31T23:59:59.999999999Z",
    "9999-12-31T23:59:59+23:59",
    "0000-01-01T00:00:00+23:59",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00+00:01",
    "-4713-11-24T00:00:00Z",
    "+294276-12-31T23:59:59Z",
    "1969-12-31T23:59:59Z",
    "2038-01-19T03:14:08Z",
    "2016-12-31T23:59:60Z",
    "2023-02-29T00:00:00Z",
    "2026-11-20T24:00:00Z",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "253402300800",
    "-377705116801000000",
];
/// Deeper than parsers may accept.
const DEPTH_MAX: usize = 200;

pub(super) fn mutated(corpus: &[Vec<u8>], words: &[&str], bytes_max: usize, random: &mut Random) -> Vec<u8> {
    let mut input = random.of(corpus).cloned().unwrap_or_default();
    let changes = 1 + random.below(4);
    for _ in 0..changes {
        change(&mut input, corpus, words, random);
        input.truncate(bytes_max);
    }
    input
}

/// Enlarges the input to the given number of bytes: by repeating a piece of it, or, if it contains a JSON object, by a
/// list of values that are short to write and large in memory.
pub(super) fn flood(input: &mut Vec<u8>, bytes: usize, random: &mut Random) {
    const ITEMS: &[&str] = &[
        "{\"\":0},",
        "[],",
        "{},",
        "0,",
        "\"\",",
        "[[[[]]]],",
        "{\"a\":{\"b\":[]}},",
        "\"\\u0000\",",
    ];
    const PIECES: &[&str] = &[
        "[",
        "{\"a\":",
        "\n",
        "data: x\n",
        "data: {}\n\n",
        ".",
        "a=b&",
        "\u{feff}",
    ];
    let rest = bytes.saturating_sub(input.len());
    let object = input.iter().position(|byte| *byte == b'{');
    if let Some(object) = object.filter(|_| random.one_in(2)) {
        let item = random.of(ITEMS).copied().unwrap_or_default();
        let list = ["\"flood\":[", &item.repeat(rest / item.len().max(1)), "0],"].concat();
        input.splice(object + 1..=object, list.into_bytes());
        return;
    }
    let piece = if random.one_in(2) {
        random
            .of(PIECES)
            .map(|piece| piece.as_bytes().to_vec())
            .unwrap_or_default()
    } else {
        let range = range(input, random);
        let end = range.end.min(range.start + 64);
        input[range.start..end].to_vec()
    };
    if !piece.is_empty() {
        let at = random.below(input.len() + 1);
        let repeated: Vec<u8> = piece.iter().copied().cycle().take(rest).collect();
        input.splice(at..at, repeated);
    }
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str], random: &mut Random) {
    match random.below(16) {
        0 => {
            let at = random.below(input.len());
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            let at = random.below(input.len());
            let to = *random.of(TURNS).expect("there are some");
            if let Some(byte) = input.get_mut(at) {
                *byte = to;
            }
        }
        2 => {
            let new: Vec<u8> = (0..=random.below(8)).map(|_| random.byte()).collect();
            insert(input, &new, random);
        }
        3 => {
            let range = range(input, random);
            input.drain(range);
        }
        4 => {
            let range = range(input, random);
            let piece = input[range].to_vec();
            insert(input, &piece, random);
        }
        5 => {
            let range = range(input, random);
            let end = range.end.min(range.start + 16);
            let piece = input[range.start..end].repeat(1 + random.below(64));
            insert(input, &piece, random);
        }
        6 => {
            let word = random.of(words).copied().unwrap_or("0");
            insert(input, word.as_bytes(), random);
        }
        7 => {
            let word = random.of(words).copied().unwrap_or("");
            token_replace(input, word.as_bytes(), random);
        }
        8 => {
            let other = random.of(corpus).cloned().unwrap_or_default();
            let (cut, from) = (random.below(input.len() + 1), random.below(other.len() + 1));
            input.truncate(cut);
            input.extend_from_slice(&other[from..]);
        }
        9 => {
            let cut = random.below(input.len() + 1);
            input.truncate(cut);
        }
        10 => tokens_swap(input, random),
        11 => {
            let text = match random.below(3) {
                0 => random.of(TEXTS),
                1 => random.of(DATES),
                _ => random.of(NUMBERS),
            };
            token_replace(input, text.copied().unwrap_or_default().as_bytes(), random);
        }
        12 => number_replace(input, random),
        _ => json_change(input, words, random),
    }
}

fn range(input: &[u8], random: &mut Random) -> std::ops::Range<usize> {
    let (a, b) = (random.below(input.len() + 1), random.below(input.len() + 1));
    // Short pieces are more effective than half of the input.
    let (start, end) = (a.min(b), a.max(b));
    if random.one_in(3) {
        start..end
    } else {
        start..end.min(start + 1 + random.below(12))
    }
}

fn insert(input: &mut Vec<u8>, piece: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    input.splice(at..at, piece.iter().copied());
}

/// The pieces between occurrences of one separator in the input.
fn tokens(input: &[u8], random: &mut Random) -> Option<(u8, Vec<Vec<u8>>)> {
    let present: Vec<u8> = SEPARATORS
        .iter()
        .copied()
        .filter(|separator| input.contains(separator))
        .collect();
    let separator = *random.of(&present)?;
    Some((
        separator,
        input.split(|byte| *byte == separator).map(<[u8]>::to_vec).collect(),
    ))
}

fn token_replace(input: &mut Vec<u8>, with: &[u8], random: &mut Random) {
    let Some((separator, mut tokens)) = tokens(input, random) else {
        *input = with.to_vec();
        return;
    };
    let at = random.below(tokens.len());
    tokens[at] = with.to_vec();
    *input = tokens.join(&separator);
}

fn tokens_swap(input: &mut Vec<u8>, random: &mut Random) {
    if let Some((separator, mut tokens)) = tokens(input, random) {
        let (a, b) = (random.below(tokens.len()), random.below(tokens.len()));
        match random.below(3) {
            0 => tokens.swap(a, b),
            1 => tokens.insert(a, tokens[b].clone()),
            _ => drop(tokens.remove(a)),
        }
        *input = tokens.join(&separator);
    }
}

fn number_replace(input: &mut Vec<u8>, random: &mut Random) {
    let starts: Vec<usize> = (0..input.len())
        .filter(|&at| input[at].is_ascii_digit() && (at == 0 || !input[at - 1].is_ascii_digit()))
        .collect();
    if let Some(&start) = random.of(&starts) {
        let end = input[start..]
            .iter()
            .position(|byte| !byte.is_ascii_digit())
            .map_or(input.len(), |length| start + length);
        let number = random.of(NUMBERS).expect("there are some");
        input.splice(start..end, number.bytes());
    }
}

/// Mutates the input if it is JSON, or else one of its lines that is, such as an event's data.
fn json_change(input: &mut Vec<u8>, words: &[&str], random: &mut Random) {
    if let Some(changed) = json_changed(input, words, random) {
        *input = changed;
        return;
    }
    let mut lines: Vec<Vec<u8>> = input.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let with_json: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].contains(&b'{')).collect();
    if let Some(&at) = random.of(&with_json) {
        let begin = lines[at].iter().position(|byte| *byte == b'{').expect("it was found");
        if let Some(changed) = json_changed(&lines[at][begin..], words, random) {
            lines[at].truncate(begin);
            lines[at].extend_from_slice(&changed);
            *input = lines.join(&b'\n');
        }
    }
}

fn json_changed(text: &[u8], words: &[&str], random: &mut Random) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    let mut place = random.below(count(&value));
    let mut key = None;
    visit(&mut value, &mut place, &mut |found| {
        key = node_change(found, words, random);
    });
    let mut text = serde_json::to_vec(&value).ok()?;
    // A parsed object has no equal keys; a text may.
    if let Some(key) = key
        && let Some(at) = text.iter().position(|byte| *byte == b'{')
    {
        text.splice(
            at + 1..=at,
            format!(
                "{}:null{}",
                Value::String(key),
                if text.get(at + 1) == Some(&b'}') { "" } else { "," }
            )
            .into_bytes(),
        );
    }
    Some(text)
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

fn visit(value: &mut Value, place: &mut usize, change: &mut impl FnMut(&mut Value)) {
    if *place == 0 {
        *place = usize::MAX;
        change(value);
        return;
    }
    *place -= 1;
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, place, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| visit(field, place, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Mutates one value; returns a key that should be duplicated.
fn node_change(value: &mut Value, words: &[&str], random: &mut Random) -> Option<String> {
    let word = |random: &mut Random| random.of(words).copied().unwrap_or("x").to_owned();
    match random.below(10) {
        0 => *value = Value::Null,
        1 => {
            let number = random.of(NUMBERS).expect("there are some");
            *value = serde_json::from_str(number).unwrap_or_else(|_| json!(number));
        }
        2 => *value = json!(*random.of(TEXTS).expect("there are some")),
        3 => *value = json!(word(random)),
        4 => *value = json!("x".repeat(random.below(4_096))),
        5 => {
            for _ in 0..1 + random.below(DEPTH_MAX) {
                let inner = value.take();
                *value = if random.one_in(2) {
                    json!([inner])
                } else {
                    json!({ "a": inner })
                };
            }
        }
        6 => {
            *value = random
                .of(&[json!([]), json!({}), json!(true), json!(""), json!([null]), json!(1.5)])
                .expect("some")
                .clone();
        }
        _ => match value {
            Value::Object(fields) => return fields_change(fields, &word(random), random),
            Value::Array(items) => {
                let at = random.below(items.len());
                if let Some(item) = items.get(at).cloned() {
                    (0..1 + random.below(80)).for_each(|_| items.push(item.clone()));
                }
            }
            Value::String(text) => text.push_str(random.of(TEXTS).expect("there are some")),
            Value::Null | Value::Bool(_) | Value::Number(_) => *value = json!([0]),
        },
    }
    None
}

fn fields_change(fields: &mut Map<String, Value>, word: &str, random: &mut Random) -> Option<String> {
    let names: Vec<String> = fields.keys().cloned().collect();
    let name = random.of(&names).cloned();
    match (random.below(4), name) {
        (0, Some(name)) => drop(fields.remove(&name)),
        (1, Some(name)) => {
            let value = fields.remove(&name).unwrap_or_default();
            fields.insert(word.to_owned(), value);
        }
        (2, Some(name)) => return Some(name),
        _ => drop(fields.insert(word.to_owned(), json!(word))),
    }
    None
}
