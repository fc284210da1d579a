//! `signalbox dead`: messages that could not be processed, each with its reason; a message can be redriven after its cause was
//! removed.

use std::process::ExitCode;

use api::dead_letters::{DeadLetter, Redrive};
use serde_json::Value;

use super::moment;
use crate::{
    cli::{DeadOneArgs, ListArgs},
    client::read_as,
    print::show,
    table::Table,
    text::{lines, one_line},
};

const VALUE_CHARS_MAX: usize = 500;
/// Stands for no account. The operator owns dead letters without an account.
const OPERATOR: &str = "-";

pub(crate) async fn list(args: &ListArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let letters = client
        .list(&path(&args.of.account, &[]), &[], args.limit.into())
        .await?;
    show(json, &letters, |letters| table(letters))
}

pub(crate) async fn show_one(args: &DeadOneArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let letter: Value = client.get(&path(&args.of.account, &[&args.id]), &[]).await?;
    show(json, &letter, |letter| Ok(full(&read_as(letter)?)))
}

pub(crate) async fn redrive(args: &DeadOneArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let answer: Value = client
        .post(&path(&args.of.account, &[&args.id, "redrive"]), &Redrive {})
        .await?;
    show(json, &answer, |_| {
        Ok(format!("{} was sent again", one_line(&args.id, 64)))
    })
}

fn path<'a>(account: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let mut path = match account {
        OPERATOR => vec!["api", "dead-letters"],
        account => vec!["api", "orgs", account, "dead-letters"],
    };
    path.extend(rest);
    path
}

fn table(letters: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&["DEAD LETTER", "CREATED", "REASON", "DETAIL", "SUBJECT", "REDRIVEN"]);
    for letter in letters {
        let letter: DeadLetter = read_as(letter)?;
        table.row([
            &letter.id.to_string(),
            &moment(Some(letter.created_at)),
            &letter.reason,
            &letter.detail,
            &letter.subject,
            &moment(letter.redriven_at),
        ]);
    }
    Ok(table.render("no dead letters"))
}

fn full(letter: &DeadLetter) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        if !value.is_empty() {
            text += &format!("{name:<13}{}\n", one_line(value, VALUE_CHARS_MAX));
        }
    };
    field("dead letter", &letter.id.to_string());
    field("subject", &letter.subject);
    field("reason", &letter.reason);
    field("detail", &letter.detail);
    field("attempts", &letter.attempts.to_string());
    field("created", &moment(Some(letter.created_at)));
    field("redriven", &moment(letter.redriven_at));
    text + &format!("\n── payload\n{}\n", lines(&letter.payload).trim_end())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_belongs_to_no_account_is_the_operator_s() {
        assert_eq!(path("demo", &["d"]), ["api", "orgs", "demo", "dead-letters", "d"]);
        assert_eq!(path("-", &["d", "redrive"]), ["api", "dead-letters", "d", "redrive"]);
    }

    #[test]
    fn shows_what_was_wrong_and_what_came() {
        let letter = json!({"id": "0190b5a8-0000-7000-8000-000000000001", "service": "resolver", "redrives": 0, "subject": "signalbox.notification.demo.T", "reason": "malformed",
            "detail": "the payload is not JSON", "payload": "{\u{1b}[31m", "attempts": 1,
            "created_at": "2026-01-02T03:04:05Z", "redriven_at": null});
        assert_eq!(
            full(&read_as(&letter).unwrap()),
            "dead letter  0190b5a8-0000-7000-8000-000000000001\nsubject      signalbox.notification.demo.T\nreason       malformed\n\
             detail       the payload is not JSON\nattempts     1\ncreated      2026-01-02 03:04:05\n\n── payload\n{[31m\n"
        );
        let listed = table(&[letter]).unwrap();
        assert!(
            listed
                .lines()
                .last()
                .unwrap()
                .starts_with("0190b5a8-0000-7000-8000-000000000001  2026-01-02 03:04:05  malformed  the payload")
        );
    }
}
