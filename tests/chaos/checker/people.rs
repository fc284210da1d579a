//! I37: mail to a conversation has one outcome, and a turn answers a piece once. I38: a task that waits for nothing any more is told to each of
//! its agents once. I39: an orchestrator remembers 200 at most.

use std::collections::BTreeMap;

use domain::{decay::MEMORIES_MAX, mail};

use super::{
    Violation,
    evidence::{Evidence, Name, name},
};
use crate::records::{Answer, Offered};

fn broken(invariant: &'static str, expected: &'static str, found: String) -> Violation {
    Violation {
        invariant,
        expected,
        found,
    }
}

/// Always: the turn that mail was in is the one that has its item.
pub(super) fn in_one_turn(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for row in evidence
        .rows
        .mail
        .iter()
        .filter(|row| row.outcome.as_deref() == Some("in_turn"))
    {
        // Without its item: that went with its session.
        let item = format!("{}:{}", mail::ITEM, row.id);
        let Some(item) = evidence.notifications.get(&(row.account_id.as_str(), item.as_str())) else {
            continue;
        };
        if item.state != "delivered" || item.turn_id != row.in_turn_id {
            let text = format!(
                "mail {} of {} was in turn {:?}, and its item is {} by {:?}",
                row.id, row.account_id, row.in_turn_id, item.state, item.turn_id
            );
            found.push(broken("I37", "mail has the outcome of its item", text));
        }
    }
    found
}

/// Always.
pub(super) fn answered_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut answers: BTreeMap<(Name<'_>, &str), usize> = BTreeMap::new();
    for row in evidence.rows.mail.iter().filter(|row| row.why == "answer") {
        if let (Some(turn), Some(of)) = (&row.turn_id, &row.reply_to) {
            *answers.entry((name(&row.account_id, turn), of)).or_default() += 1;
        }
    }
    let several = answers.into_iter().filter(|(_, count)| *count > 1);
    let text = |(((account, turn), of), count): ((Name<'_>, &str), usize)| {
        let text = format!("turn {turn} of {account} has answered mail {of} {count} times");
        broken("I37", "a turn answers a piece of mail once", text)
    };
    several.map(text).collect()
}

/// When idle: what was accepted is there, and has an outcome.
pub(super) fn all_settled(evidence: &Evidence<'_>) -> Vec<Violation> {
    let waiting = evidence.rows.mail.iter();
    let waiting = waiting.filter(|row| row.to_session.is_some() && row.outcome.is_none());
    let mut found: Vec<Violation> = waiting
        .map(|row| {
            let text = format!("mail {} of {} has none", row.id, row.account_id);
            broken("I37", "mail to a conversation has an outcome in the end", text)
        })
        .collect();
    for offer in &evidence.records.offers {
        let accepted = offer.tries.iter().any(|tried| tried.answer == Answer::Accepted);
        if accepted && matches!(offer.what, Offered::Mail { .. }) && evidence.ids_of(offer).len() != 1 {
            let text = format!(
                "offer {} of {} has {}",
                offer.number,
                offer.account,
                evidence.ids_of(offer).len()
            );
            found.push(broken("I37", "accepted mail has one item", text));
        }
    }
    found
}

/// Always.
pub(super) fn told_of_at_most_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let freed = evidence.rows.freed.iter();
    freed
        .filter(|row| row.items > row.agents)
        .map(|row| {
            let text = format!("{} of {}: {} items", row.task_id, row.account_id, row.items);
            broken("I38", "a task that is freed is told to each agent once", text)
        })
        .collect()
}

/// When idle.
pub(super) fn all_are_freed(evidence: &Evidence<'_>) -> Vec<Violation> {
    let freed = evidence.rows.freed.iter();
    freed
        .filter(|row| row.status == "blocked" || row.items < row.agents)
        .map(|row| {
            let text = format!(
                "{} of {} is {}, and {} of {} agents were told",
                row.task_id, row.account_id, row.status, row.items, row.agents
            );
            broken("I38", "a task whose blockers are done is freed and told", text)
        })
        .collect()
}

/// Always.
pub(super) fn memory_is_bounded(evidence: &Evidence<'_>) -> Vec<Violation> {
    let most = usize::try_from(MEMORIES_MAX).unwrap_or(usize::MAX);
    let memories = evidence.rows.memories.iter();
    memories
        .filter(|(_, _, count)| *count > most)
        .map(|(account, owner, count)| {
            broken(
                "I39",
                "an orchestrator remembers 200 at most",
                format!("{owner} of {account} has {count}"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::evidence::{FreedRow, MailRow},
        super::fabricated::Story,
        *,
    };

    /// The one notification is mail.
    fn story() -> Story {
        let mut story = Story::delivered();
        let turn = story.rows.notifications[0].turn_id.clone();
        "mail:m-1".clone_into(&mut story.rows.notifications[0].id);
        story.rows.mail = vec![MailRow {
            account_id: "acme".to_owned(),
            id: "m-1".to_owned(),
            why: "addressed".to_owned(),
            reply_to: None,
            turn_id: None,
            to_session: Some("orchestrator:acme:ann:v1".to_owned()),
            outcome: Some("in_turn".to_owned()),
            in_turn_id: turn,
        }];
        story
    }

    #[test]
    fn mail_without_its_outcome_is_found() {
        let mut story = story();
        assert_eq!(story.judge(in_one_turn), []);
        assert_eq!(story.judge(all_settled), []);
        story.rows.mail[0].in_turn_id = Some("turn-9".to_owned());
        assert!(story.finds(in_one_turn, "m-1"));
        story.rows.mail[0].outcome = None;
        assert_eq!(story.judge(in_one_turn), []);
        assert!(story.finds(all_settled, "m-1"));
    }

    #[test]
    fn a_second_answer_is_found() {
        let mut story = story();
        let answer = MailRow {
            why: "answer".to_owned(),
            turn_id: Some("turn-1".to_owned()),
            reply_to: Some("m-1".to_owned()),
            to_session: None,
            ..story.rows.mail[0].clone()
        };
        story.rows.mail.push(answer.clone());
        assert_eq!(story.judge(answered_once), []);
        story.rows.mail.push(answer);
        assert!(story.finds(answered_once, "m-1 2 times"));
    }

    #[test]
    fn a_task_that_nobody_is_told_of_is_found() {
        let mut story = Story::delivered();
        let freed = |status: &str, items| FreedRow {
            account_id: "acme".to_owned(),
            task_id: "b-1".to_owned(),
            status: status.to_owned(),
            agents: 1,
            items,
        };
        story.rows.freed = vec![freed("pending", 1)];
        assert_eq!(story.judge(all_are_freed), []);
        assert_eq!(story.judge(told_of_at_most_once), []);
        story.rows.freed = vec![freed("pending", 0)];
        assert!(story.finds(all_are_freed, "0 of 1"));
        story.rows.freed = vec![freed("blocked", 1)];
        assert!(story.finds(all_are_freed, "is blocked"));
        story.rows.freed = vec![freed("pending", 2)];
        assert!(story.finds(told_of_at_most_once, "2 items"));
    }

    #[test]
    fn one_memory_more_is_found() {
        let mut story = Story::delivered();
        story.rows.memories = vec![("acme".to_owned(), "user:ann".to_owned(), 200)];
        assert_eq!(story.judge(memory_is_bounded), []);
        story.rows.memories[0].2 = 201;
        assert!(story.finds(memory_is_bounded, "has 201"));
    }
}
