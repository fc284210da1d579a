//! I12: no data of one account reaches another. I13: rows that refer to each other have one account. Checked always.

use super::{Violation, evidence::Evidence};
use crate::provider::account_of;

fn foreign(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I12",
        expected,
        found,
    }
}

/// I12, by requests to providers and answers to people.
pub(super) fn requests_and_answers(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for call in &evidence.records.calls {
        let account = account_of(&call.session_key);
        for other in call.canaries.iter().filter(|other| **other != account) {
            found.push(foreign(
                "a provider call holds nothing of another account",
                format!("call {} of {} holds words of {other}", call.order, call.session_key),
            ));
        }
    }
    for answer in &evidence.records.answers {
        // The operator sees everything.
        let Some(account) = &answer.account else { continue };
        for other in evidence.records.accounts.iter().filter(|tenant| tenant.id != *account) {
            if answer.body.contains(&other.canary) {
                found.push(foreign(
                    "a key of one account is shown nothing of another",
                    format!(
                        "{} {} for {account} holds words of {}",
                        answer.status, answer.path, other.id
                    ),
                ));
            }
        }
        let asked = answer
            .path
            .strip_prefix("/api/orgs/")
            .and_then(|rest| rest.split(['/', '?']).next());
        if asked.is_some_and(|asked| asked != account) && answer.status < 400 {
            found.push(foreign(
                "a key of one account opens no other",
                format!("{} {} for a key of {account}", answer.status, answer.path),
            ));
        }
    }
    found
}

/// I12 by stored rows, and I13.
pub(super) fn rows(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found: Vec<Violation> = evidence
        .rows
        .foreign
        .iter()
        .map(|(owner, account, place)| {
            foreign(
                "an account's rows hold nothing of another",
                format!("{place} of {account} holds words of {owner}"),
            )
        })
        .collect();
    let mut apart = |found_text: String| {
        found.push(Violation {
            invariant: "I13",
            expected: "what belongs together belongs to one account",
            found: found_text,
        });
    };
    let session = |account: &str, id: &str| evidence.sessions.contains_key(&(account, id));
    for row in &evidence.rows.notifications {
        if row
            .session_id
            .as_deref()
            .is_some_and(|id| !session(&row.account_id, id))
        {
            apart(format!(
                "notification {} of {}: its session is not there",
                row.id, row.account_id
            ));
        }
    }
    for turn in &evidence.rows.turns {
        let of = evidence
            .sessions
            .get(&(turn.account_id.as_str(), turn.session_id.as_str()));
        if of.is_none_or(|session| session.generation != turn.generation) {
            apart(format!(
                "turn {} of {}: its session is not there, or another generation",
                turn.id, turn.account_id
            ));
        }
    }
    for call in &evidence.rows.calls {
        let turn = call
            .turn_id
            .as_deref()
            .map(|turn| evidence.turns.get(&(call.account_id.as_str(), turn)));
        let agrees = turn.is_none_or(|turn| turn.is_some_and(|turn| turn.session_id == call.session_id));
        if !agrees || !session(&call.account_id, &call.session_id) {
            apart(format!(
                "tool call {} of {}: its session and turn disagree",
                call.id, call.account_id
            ));
        }
    }
    for message in &evidence.rows.messages {
        let turn = message.turn_id.as_deref();
        if turn.is_some_and(|turn| !evidence.turns.contains_key(&(message.account_id.as_str(), turn))) {
            apart(format!(
                "message {} of {}: its turn is not there",
                message.id, message.account_id
            ));
        }
    }
    for row in &evidence.rows.outbox {
        // `{root}.{what}.{account}.…`; a message without an account is the operator's, and some subjects name no account.
        let names_another = evidence
            .records
            .accounts
            .iter()
            .any(|tenant| tenant.id != row.account_id && row.subject.split('.').any(|token| token == tenant.id));
        if names_another {
            apart(format!(
                "a message of {} in the outbox of {}: {}",
                row.account_id, row.service, row.subject
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::fabricated::Story, *};

    #[test]
    fn ones_own_words_are_fine() {
        assert_eq!(Story::delivered().judge(requests_and_answers), []);
        assert_eq!(Story::delivered().judge(rows), []);
    }

    #[test]
    fn a_canary_in_a_provider_call_is_found() {
        let mut story = Story::delivered();
        story.records.calls[0].canaries.push("other".to_owned());
        assert!(story.finds(requests_and_answers, "words of other"));
    }

    #[test]
    fn a_canary_in_an_answer_is_found() {
        let mut story = Story::delivered();
        story.records.answers[0].body.push_str("… canary-of-other");
        assert!(story.finds(requests_and_answers, "words of other"));
        story.records.answers[0].account = None;
        assert_eq!(story.judge(requests_and_answers), [], "the operator's");
    }

    #[test]
    fn a_door_that_opens_for_another_is_found() {
        let mut story = Story::delivered();
        "/api/orgs/other/sessions?limit=2".clone_into(&mut story.records.answers[0].path);
        assert!(story.finds(requests_and_answers, "a key of acme"));
        story.records.answers[0].status = 404;
        assert_eq!(story.judge(requests_and_answers), []);
    }

    #[test]
    fn what_the_database_found_is_said() {
        let mut story = Story::delivered();
        story
            .rows
            .foreign
            .push(("other".to_owned(), "acme".to_owned(), "message m-1".to_owned()));
        assert!(story.finds(rows, "message m-1 of acme holds words of other"));
    }

    #[test]
    fn rows_that_point_into_another_account_are_found() {
        let mut story = Story::delivered();
        "other".clone_into(&mut story.rows.sessions[0].account_id);
        for words in ["notification n-1", "turn turn-1", "tool call call-1"] {
            assert!(story.finds(rows, words), "{words}");
        }
        let mut story = Story::delivered();
        "other".clone_into(&mut story.rows.messages[0].account_id);
        assert!(story.finds(rows, "message m-1"));
    }
}
