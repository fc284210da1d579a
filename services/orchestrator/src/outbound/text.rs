//! What an e-mail says. Pure. Texts of others are shown with every character visible, and no line of theirs is a header.

use contracts::quote::{inert, one_line};
use domain::{AccountId, MailId, MessageType, TaskId};
use time::OffsetDateTime;

/// Bytes of an e-mail's text. The longest mail has fewer; a digest is cut.
const TEXT_BYTES_MAX: usize = 100_000;
/// Of the first line of mail, in a subject and in a digest.
const LINE_CHARACTERS_MAX: usize = 120;

/// Mail that a person is told of.
#[derive(Debug)]
pub struct Told<'a> {
    pub mail: MailId,
    pub kind: MessageType,
    pub from: &'a str,
    pub task: Option<&'a TaskId>,
    pub content: &'a str,
}

/// Subject and text.
#[derive(PartialEq, Eq, Debug)]
pub struct Text {
    pub subject: String,
    pub text: String,
}

/// The page of mail in its person's inbox.
fn link(base: &str, account: &AccountId, mail: MailId) -> String {
    format!("{base}/c/{account}/inbox/{mail}")
}

/// The first line that is not blank.
fn first_line(content: &str) -> String {
    let line = content.lines().map(str::trim).find(|line| !line.is_empty());
    let line: Vec<char> = one_line(line.unwrap_or_default()).chars().collect();
    match line.get(..LINE_CHARACTERS_MAX) {
        Some(begins) if line.len() > LINE_CHARACTERS_MAX => begins.iter().chain(&['…']).collect(),
        Some(_) | None => line.iter().collect(),
    }
}

fn limited(mut text: String, rest: &str) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX - rest.len()));
        text.push_str(rest);
    }
    text
}

const CUT: &str = "\n\n[The rest is in your inbox.]\n";

/// Of one piece of mail.
pub fn one(base: &str, account: &AccountId, mail: &Told<'_>) -> Text {
    let task = mail.task.map_or_else(String::new, |task| format!("Task: {task}\n"));
    let foot = format!(
        "\n\n-- \nFrom: {}\n{task}Account: {account}\nRead and answer it: {}\nThis e-mail cannot be answered. Your notification preferences say which mail comes by e-mail.\n",
        one_line(mail.from),
        link(base, account, mail.mail),
    );
    let text = limited(format!("{}{foot}", inert(mail.content)), CUT);
    let subject = format!("[Signalbox] {}: {}", mail.kind, first_line(mail.content));
    Text { subject, text }
}

/// Of what came since the last digest, in this order.
pub fn digest(base: &str, account: &AccountId, mail: &[Told<'_>]) -> Text {
    let mut text = format!("Mail in your inbox of the account {account}:\n");
    let mut task = None;
    for one in mail {
        if task != Some(one.task) {
            task = Some(one.task);
            let about = one
                .task
                .map_or_else(|| "Of no task".to_owned(), |task| format!("Task {task}"));
            text.push_str(&format!("\n{about}\n"));
        }
        let (from, line) = (one_line(one.from), first_line(one.content));
        text.push_str(&format!(
            "- {from}, {}: {line}\n  {}\n",
            one.kind,
            link(base, account, one.mail)
        ));
    }
    text.push_str("\n-- \nThis e-mail cannot be answered. Your notification preferences say how often it comes.\n");
    Text {
        subject: format!("[Signalbox] digest: {} in your inbox", mail.len()),
        text: limited(text, CUT),
    }
}

/// Links by which a person signs in, by account.
pub fn sign_in(links: &[(AccountId, String)], until: OffsetDateTime) -> Text {
    let mut text =
        "Somebody, perhaps you, asked to sign in to Signalbox with this address. If it was not you, do nothing.\n"
            .to_owned();
    for (account, link) in links {
        text.push_str(&format!("\n{account}: {link}\n"));
    }
    let until = until.to_offset(time::UtcOffset::UTC);
    text.push_str(&format!(
        "\nEach link works once, until {}, {:02}:{:02} UTC, and ends the one before.\n",
        until.date(),
        until.hour(),
        until.minute()
    ));
    Text {
        subject: "[Signalbox] Sign in".to_owned(),
        text: limited(text, CUT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "https://signalbox.example.com";

    fn told<'a>(kind: MessageType, task: Option<&'a TaskId>, content: &'a str) -> Told<'a> {
        Told {
            mail: MailId(uuid::Uuid::nil()),
            kind,
            from: "Ben\nBcc: eve",
            task,
            content,
        }
    }

    #[test]
    fn an_e_mail_has_the_mail_and_where_to_answer_it() {
        let (account, task) = (AccountId::parse("acme").unwrap(), TaskId::parse("PROJ-7").unwrap());
        let mail = told(MessageType::Question, Some(&task), "\n  Which\u{202e} one?\r\nA or B\n");
        let Text { subject, text } = one(BASE, &account, &mail);
        assert!(
            subject.starts_with("[Signalbox] question: Which") && subject.ends_with(" one?"),
            "{subject}"
        );
        assert!(!subject.contains('\u{202e}') && !text.contains('\u{202e}'));
        let link = "https://signalbox.example.com/c/acme/inbox/00000000-0000-0000-0000-000000000000\n";
        assert!(
            text.contains("\nA or B\n") && text.contains("Task: PROJ-7\n") && text.contains(link),
            "{text}"
        );
        assert!(text.contains("From: Ben\\nBcc: eve\n"), "{text}");
        let long = "x".repeat(200_000);
        let Text { subject, text } = one(BASE, &account, &told(MessageType::Message, None, &long));
        assert!(text.len() <= TEXT_BYTES_MAX && text.ends_with(CUT), "{}", text.len());
        assert_eq!(
            subject.chars().count(),
            "[Signalbox] message: ".len() + LINE_CHARACTERS_MAX + 1
        );
    }

    #[test]
    fn a_digest_is_grouped_by_task() {
        let (account, task) = (AccountId::parse("acme").unwrap(), TaskId::parse("PROJ-7").unwrap());
        let mail = [
            told(MessageType::Message, None, "one"),
            told(MessageType::Message, Some(&task), "two\nmore"),
            told(MessageType::Notification, Some(&task), "three"),
        ];
        let Text { subject, text } = digest(BASE, &account, &mail);
        assert_eq!(subject, "[Signalbox] digest: 3 in your inbox");
        let shown: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("inbox/") && !line.is_empty())
            .collect();
        assert_eq!(
            shown[1..6],
            [
                "Of no task",
                "- Ben\\nBcc: eve, message: one",
                "Task PROJ-7",
                "- Ben\\nBcc: eve, message: two",
                "- Ben\\nBcc: eve, notification: three",
            ]
        );
    }
}
