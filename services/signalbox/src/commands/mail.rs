//! `signalbox mail`: one piece of mail, and what has become of it.

use std::process::ExitCode;

use api::mail::{Mail, MailParty};
use serde_json::Value;

use super::moment;
use crate::{cli::MailArgs, client::read_as, print::show, text::one_line};

pub(crate) async fn run(args: &MailArgs, json: bool) -> anyhow::Result<ExitCode> {
    let mail: Value = args.access.client()?.get(&["api", "messages", &args.id], &[]).await?;
    show(json, &mail, |mail| Ok(in_full(&read_as(mail)?)))
}

/// Texts of others keep to their lines.
fn in_full(mail: &Mail) -> String {
    let party = |party: &MailParty| {
        let of = party.id.as_deref().or(party.session_key.as_deref()).unwrap_or_default();
        format!("{} ({} {of})", one_line(&party.name, 64), party.kind)
    };
    let content: String = mail
        .content
        .lines()
        .map(|line| format!("  {}\n", one_line(line, 400)))
        .collect();
    let receipt = &mail.receipt;
    let reason = receipt
        .reason
        .as_deref()
        .map_or_else(String::new, |reason| format!(": {}", one_line(reason, 200)));
    format!(
        "{} ({}, {}), {}\nfrom: {}\nto: {}\n{content}{} since {}{reason}\n",
        mail.id,
        mail.message_type,
        mail.why,
        moment(Some(mail.created_at)),
        party(&mail.from),
        party(&mail.to),
        receipt.state,
        moment(Some(receipt.at)),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_who_wrote_what_and_what_came_of_it() {
        let party = |id: &str| json!({"kind": "person", "id": id, "session_key": null, "name": "A\u{1b}[31m name"});
        let id = "0190b5a8-0000-7000-8000-000000000001";
        let mail = json!({"id": id, "from": party("ann"), "to": party("ben"), "message_type": "message", "content": "Hi\nBen",
            "why": "addressed", "context_task_id": null, "context_session": null, "context_ref": null, "reply_to": null,
            "thread_id": id, "read_at": null, "archived_at": null, "snoozed_until": null, "created_at": "2026-01-02T03:04:05Z",
            "receipt": {"state": "bounced", "at": "2026-01-02T03:04:06Z", "turn_id": null, "turn_number": null, "answered_by": null,
                "reason": "the person was removed"}});
        let text = in_full(&read_as(&mail).unwrap());
        for part in [
            "(person ann)",
            "  Ben\n",
            "bounced since 2026-01-02 03:04:06: the person was removed",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
