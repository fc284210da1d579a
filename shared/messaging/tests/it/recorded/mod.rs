//! Messages as earlier versions wrote them, in `tests/recorded/`: a file for each version, a line for each message.
//! During an upgrade two versions run, and a message outlives the process that wrote it. So every recorded message is
//! parsed completely, signature included, and today's messages have every field that a reader of that version requires.
//!
//! A recording is never changed. When a message gets a field or a word, add one, named after the newest migration:
//! `SIGNALBOX_RECORD=0013 cargo nextest run --workspace -E 'test(recorded)'`.

mod samples;

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use contracts::{Headers, Outgoing, header, message::MESSAGES};
use messaging::Keyring;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use samples::Sample;

/// The key of all recordings, and of nothing else.
const KEY: (&str, [u8; 32]) = ("recorded", [7; 32]);

/// The message on the wire. The payload is text, so that differences are readable.
#[derive(Serialize, Deserialize)]
struct Recorded {
    name: String,
    subject: String,
    headers: Headers,
    payload: String,
}

fn keyring() -> Keyring {
    Keyring::new([KEY], KEY.0).unwrap()
}

/// As `Bus::publish_all` sends it.
fn record((name, message, _): Sample) -> Recorded {
    let Outgoing {
        subject,
        mut headers,
        payload,
    } = message;
    let signature = keyring().sign(&subject, &headers, &payload).unwrap();
    headers.set(header::SIGNATURE, signature);
    Recorded {
        name,
        subject,
        headers,
        payload: String::from_utf8(payload).unwrap(),
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

fn recordings() -> BTreeMap<String, Vec<Recorded>> {
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    files
        .map(|file| {
            let text = fs::read_to_string(&file).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            (file.file_stem().unwrap().to_str().unwrap().to_owned(), lines.collect())
        })
        .collect()
}

/// Parsed as its consumers do, and serialized again.
fn read(recorded: &Recorded) -> Result<Value, String> {
    let sample = samples::all().into_iter().find(|(name, ..)| *name == recorded.name);
    let (_, _, reader) = sample.ok_or("no sample has this name any more")?;
    reader(&recorded.headers, &recorded.subject, recorded.payload.as_bytes())
}

/// Whether no information is lost: fields may be added, none may be removed or change its meaning.
fn says(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, value)| whole.get(name).is_some_and(|found| says(found, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| says(whole, part))
        }
        (whole, part) => whole == part,
    }
}

fn payload(recorded: &Recorded) -> Value {
    serde_json::from_str(&recorded.payload).unwrap()
}

#[test]
fn what_an_earlier_version_wrote_is_read_whole() {
    for (version, messages) in recordings() {
        for recorded in &messages {
            let at = format!("{} of {version}", recorded.name);
            let genuine = keyring().verify(&recorded.subject, &recorded.headers, recorded.payload.as_bytes());
            assert_eq!(genuine, Ok(()), "{at}");
            let understood = read(recorded).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert!(says(&understood, &payload(recorded)), "{at}: {understood}");
        }
    }
}

#[test]
fn what_is_written_today_has_all_that_an_earlier_version_reads() {
    let today: BTreeMap<String, Recorded> = samples::all()
        .into_iter()
        .map(|sample| (sample.0.clone(), record(sample)))
        .collect();
    for (version, messages) in recordings() {
        for then in &messages {
            let at = format!("{} of {version}", then.name);
            let now = today
                .get(&then.name)
                .unwrap_or_else(|| panic!("{at} is written no more"));
            assert_eq!(now.subject, then.subject, "{at}");
            for (name, value) in &then.headers.0 {
                // The signature covers added headers and fields too.
                if name != header::SIGNATURE {
                    assert_eq!(now.headers.get(name), Some(value.as_str()), "{at}: {name}");
                }
            }
            assert!(says(&payload(now), &payload(then)), "{at}: {}", now.payload);
        }
    }
}

#[test]
fn every_message_and_every_word_is_recorded() {
    let samples: Vec<Recorded> = samples::all().into_iter().map(record).collect();
    if let Ok(version) = env::var("SIGNALBOX_RECORD") {
        let lines: String = samples
            .iter()
            .map(|sample| serde_json::to_string(sample).unwrap() + "\n")
            .collect();
        let file = folder().join(format!("{version}.ndjson"));
        assert!(!file.exists(), "a recording is never changed: {}", file.display());
        fs::write(file, lines).unwrap();
    }
    // Each message that has a schema.
    for message in MESSAGES {
        let kind = format!("signalbox.{}.", message.hop.kind);
        assert!(
            samples.iter().any(|sample| sample.subject.starts_with(&kind)),
            "no sample is a {kind}"
        );
    }
    let recordings = recordings();
    let (version, newest) = recordings.last_key_value().expect("something is recorded");
    for sample in &samples {
        let found = newest.iter().find(|recorded| recorded.name == sample.name);
        let found = found.unwrap_or_else(|| panic!("{} is not in {version}: record a newer one", sample.name));
        assert_eq!(
            payload(found),
            payload(sample),
            "{} differs from {version}: record a newer one",
            sample.name
        );
    }
}
