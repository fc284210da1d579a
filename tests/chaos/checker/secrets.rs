//! I14: secrets stand in no log, request, answer, message or row. Checked always.

use std::{
    fs::File,
    io::{BufRead, BufReader},
};

use super::{Violation, evidence::Evidence};

fn shown(found: String) -> Violation {
    Violation {
        invariant: "I14",
        expected: "a secret stands nowhere in plain",
        found,
    }
}

pub(super) fn nowhere(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for call in &evidence.records.calls {
        for name in &call.secrets {
            found.push(shown(format!("the {name} in provider call {}", call.order)));
        }
    }
    for answer in &evidence.records.answers {
        for name in names_in(evidence, &answer.body) {
            found.push(shown(format!("the {name} in the answer of {}", answer.path)));
        }
    }
    for (name, account, place) in &evidence.rows.secret {
        found.push(shown(format!("the {name} in {place} of {account}")));
    }
    for (name, subject) in &evidence.records.heard.secrets {
        found.push(shown(format!("the {name} in a message on {subject}")));
    }
    if evidence.at_rest && evidence.records.heard.messages == 0 {
        found.push(shown("nothing, since no message was heard".to_owned()));
    }
    for log in &evidence.records.logs {
        // An unreadable log proves nothing, which is a violation too.
        let Ok(file) = File::open(&log.path) else {
            found.push(shown(format!("the log of {} cannot be read", log.process)));
            continue;
        };
        for (number, line) in (1..).zip(BufReader::new(file).split(b'\n').map_while(Result::ok)) {
            for name in names_in(evidence, &String::from_utf8_lossy(&line)) {
                found.push(shown(format!(
                    "the {name} in the log of {}, line {number}",
                    log.process
                )));
            }
        }
    }
    found
}

fn names_in<'a>(evidence: &'a Evidence<'_>, text: &str) -> Vec<&'a str> {
    let secrets = evidence.records.secrets.iter();
    secrets
        .filter(|(_, secret)| text.contains(*secret))
        .map(|(name, _)| name.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{super::fabricated::Story, *};
    use crate::records::ServiceLog;

    #[test]
    fn a_secret_is_found_wherever_it_stands() {
        assert_eq!(Story::delivered().judge(nowhere), []);
        let mut story = Story::delivered();
        story.records.answers[0].body.push_str("s3cret-word");
        assert!(story.finds(nowhere, "provider key in the answer"));
        let mut story = Story::delivered();
        story.records.calls[0].secrets.push("provider key".to_owned());
        assert!(story.finds(nowhere, "provider call 0"));
        let mut story = Story::delivered();
        story
            .rows
            .secret
            .push(("provider key".to_owned(), "acme".to_owned(), "turn turn-1".to_owned()));
        assert!(story.finds(nowhere, "in turn turn-1"));
        let mut story = Story::delivered();
        let heard = ("provider key".to_owned(), "signalbox.tool.requested.acme".to_owned());
        story.records.heard.secrets.push(heard);
        assert!(story.finds(nowhere, "in a message on signalbox.tool"));
        let mut story = Story::delivered();
        story.records.heard.messages = 0;
        assert!(story.finds(nowhere, "no message was heard"));
    }

    #[test]
    fn logs_are_read_line_by_line() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut story = Story::delivered();
        story.records.logs.push(ServiceLog {
            process: "delivery-0".to_owned(),
            path: file.path().to_owned(),
        });
        file.write_all(b"all is well\n\xff\n").unwrap();
        assert_eq!(story.judge(nowhere), []);
        file.write_all(b"connecting with s3cret-word\n").unwrap();
        assert!(story.finds(nowhere, "line 3"));
        story.records.logs[0].path = "/nowhere".into();
        assert!(story.finds(nowhere, "cannot be read"));
    }
}
