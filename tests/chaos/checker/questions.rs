//! I21: a question ends once, and its answer is one item. Always, except that a question may be open before the end, and that an
//! item may be on its way to a session that is not open. I27: what a person has to approve happens after the approval. Always.

use std::collections::BTreeMap;

use domain::Verdict;
use time::OffsetDateTime;

use super::{
    Violation,
    evidence::{Evidence, NotificationRow, OnceRow, is_on},
    resets::goes_on,
    turns::LOG_SLACK,
};
use crate::{
    clients::{answer, verdict},
    plan::{APPROVED, PLANNED, REVIEWED},
    records::{Answer, Offer, Offered},
};

fn broken(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I21",
        expected,
        found,
    }
}

fn of(question: &OnceRow) -> String {
    format!("question {} of {}", question.id, question.account_id)
}

/// Of all that end a question, one is accepted and the others are told so; the row has what that one said.
pub(super) fn ended_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut ends: BTreeMap<(&str, &str), Vec<(&Offer, bool)>> = BTreeMap::new();
    for aim in &evidence.records.aims {
        let offer = &evidence.records.offers[aim.offer];
        if let Offered::Answer { withdraws } = offer.what {
            let ended = ends.entry((&offer.account, &aim.target)).or_default();
            ended.push((offer, withdraws));
        }
    }
    let mut found = Vec::new();
    for question in &evidence.rows.questions {
        let name = (question.account_id.as_str(), question.id.as_str());
        let offers = ends.remove(&name).unwrap_or_default();
        let accepted: Vec<_> = offers.iter().filter(|(offer, _)| offer.is_accepted()).collect();
        let numbers: Vec<String> = accepted.iter().map(|(offer, _)| offer.number.to_string()).collect();
        if accepted.len() > 1 {
            let what = format!("{} was ended by the offers {}", of(question), numbers.join(", "));
            found.push(broken("a question is answered or withdrawn once", what));
        }
        for (offer, withdraws) in accepted {
            let canary = evidence.tenant(&offer.account).map_or("", |tenant| &tenant.canary);
            let state = if *withdraws { "withdrawn" } else { "answered" };
            let text = (!withdraws).then(|| answer(canary, offer.number));
            // It may have been accepted after the rows were read.
            let is_known = evidence.at_rest || question.state != "open";
            let verdict = verdict(&question.kind, offer.number).filter(|_| !withdraws);
            if is_known && (question.state.as_str(), &question.text, question.verdict) != (state, &text, verdict) {
                let what = format!(
                    "{} is {} with {:?} and {:?}, and offer {} was accepted",
                    of(question),
                    question.state,
                    question.verdict,
                    question.text,
                    offer.number
                );
                found.push(broken("a question has the answer that was accepted", what));
            }
        }
        for (offer, _) in &offers {
            let mut told = offer.tries.iter().map(|tried| &tried.answer);
            let wrong = told.find(|answer| match answer {
                Answer::Refused { status } => *status != 409 || offer.is_accepted(),
                Answer::Accepted | Answer::Unknown { .. } => false,
            });
            if let Some(answer) = wrong {
                let what = format!("{}: offer {} had {answer:?}", of(question), offer.number);
                found.push(broken(
                    "a second answer is told that it is the second, and a repetition is not",
                    what,
                ));
            }
        }
    }
    found
}

/// An item about a question is the one that its row names, and an answered question has it. A call has its answer as its result, and a
/// review moves the task.
pub(super) fn answers_are_items(evidence: &Evidence<'_>) -> Vec<Violation> {
    let questions = evidence.rows.questions.iter();
    let told = questions.filter(|row| matches!(row.kind.as_str(), "question" | "plan"));
    items_are_named(evidence, told, "answer", "I21")
}

/// I27: a call that needs an approval ran with its own; where a plan is required, nothing was changed before one was approved; a task with
/// a review is done after it.
pub(super) fn approved_first(evidence: &Evidence<'_>) -> Vec<Violation> {
    let broken = |expected, found| Violation {
        invariant: "I27",
        expected,
        found,
    };
    let approved =
        |account: &str, kind: &str| {
            let (account, kind) = (account.to_owned(), kind.to_owned());
            evidence.rows.questions.iter().filter(move |row| {
                row.account_id == account && row.kind == kind && row.verdict == Some(Verdict::Approved)
            })
        };
    let before = |account: &str, kind: &str, task: &str, at: OffsetDateTime| {
        approved(account, kind).any(|row| {
            let is_of_it = row.task_id.as_deref().is_some_and(|of| of.eq_ignore_ascii_case(task));
            is_of_it && row.ended_at.is_some_and(|ended_at| ended_at <= at + LOG_SLACK)
        })
    };
    let mut found = Vec::new();
    let calls = evidence.rows.calls.iter();
    for call in calls.filter(|call| call.state == "finished") {
        let account = call.account_id.as_str();
        let session = evidence.sessions.get(&(account, call.session_id.as_str()));
        let Some(session) = session else { continue };
        let task = session.task_id.as_deref().unwrap_or_default();
        let what = || format!("call {} of {account} ran {} on {task}", call.id, call.name);
        if is_on(session, APPROVED) && call.name == "task_message" {
            let is_own = |row: &OnceRow| row.tool_call.as_ref() == Some(&call.id);
            if !approved(account, "tool").any(is_own) {
                found.push(broken("a call that needs an approval runs with its own", what()));
            }
        }
        let at = call.finished_at.unwrap_or(call.started_at);
        let waits = matches!(call.name.as_str(), "task_status" | "response_request");
        if is_on(session, PLANNED) && waits && !before(account, "plan", task, at) {
            found.push(broken("nothing is changed before a plan is approved", what()));
        }
    }
    for moved in evidence.rows.moves.iter().filter(|moved| moved.to == "done") {
        let (account, task) = (moved.account_id.as_str(), moved.task_id.as_str());
        if task.eq_ignore_ascii_case(REVIEWED) && !before(account, "review", task, moved.created_at) {
            let what = format!("{task} of {account} was done at {}", moved.created_at);
            found.push(broken("a task with a review is done after it", what));
        }
    }
    found
}

/// What became an item has exactly one, of its own id: where the session is open it is written at once, else the resolver does it.
pub(super) fn items_are_named<'a>(
    evidence: &Evidence<'a>,
    rows: impl Iterator<Item = &'a OnceRow>,
    kind: &str,
    invariant: &'static str,
) -> Vec<Violation> {
    let mut items: BTreeMap<(&str, &str), Vec<&NotificationRow>> = BTreeMap::new();
    for row in evidence.rows.notifications.iter().filter(|row| row.kind == kind) {
        let name = (row.account_id.as_str(), row.of.as_deref().unwrap_or_default());
        items.entry(name).or_default().push(row);
    }
    let mut found = Vec::new();
    for row in rows {
        let entered = items.remove(&(&row.account_id, &row.id)).unwrap_or_default();
        let strange = entered
            .iter()
            .filter(|item| Some(&item.id) != row.notification_id.as_ref());
        let strange: Vec<&str> = strange.map(|item| item.id.as_str()).collect();
        let named = row.notification_id.as_deref();
        let is_there = || {
            evidence
                .notifications
                .contains_key(&(&row.account_id, named.unwrap_or_default()))
        };
        let is_open = || {
            let session = row.session_id.as_deref().unwrap_or_default();
            let session = evidence.sessions.get(&(row.account_id.as_str(), session));
            session.is_some_and(|session| session.closed_at.is_none())
        };
        let is_lost = named.is_some() && row.state != "cleared" && (evidence.at_rest || is_open()) && !is_there();
        let is_untold = named.is_none() && matches!(row.state.as_str(), "answered" | "fired");
        if !strange.is_empty() || is_lost || is_untold {
            let what = format!(
                "{kind} of {} of {} ({}): the row names {named:?}, and there are also {strange:?}",
                row.id, row.account_id, row.state
            );
            found.push(Violation {
                invariant,
                expected: "what is answered or fired is one item",
                found: what,
            });
        }
    }
    found.extend(items.into_iter().map(|((account, of), items)| Violation {
        invariant,
        expected: "an item is of a row",
        found: format!("item {} of {account}: there is no {of:?}", items[0].id),
    }));
    found
}

/// The end of a session ends its questions, unless the work goes on in the next generation.
pub(super) fn none_of_closed_sessions(evidence: &Evidence<'_>) -> Vec<Violation> {
    left(evidence, &evidence.rows.questions, "open")
        .map(|row| broken("a closed session asks nothing", format!("{} is open", of(row))))
        .collect()
}

/// Rows in this state whose session is closed for good.
pub(super) fn left<'a>(
    evidence: &Evidence<'a>,
    rows: &'a [OnceRow],
    state: &'static str,
) -> impl Iterator<Item = &'a OnceRow> {
    let sessions = &evidence.sessions;
    rows.iter().filter(move |row| {
        let session = row.session_id.as_deref().unwrap_or_default();
        let session = sessions.get(&(row.account_id.as_str(), session));
        row.state == state && session.is_some_and(|session| session.closed_at.is_some() && !goes_on(session))
    })
}

/// When the system is idle: the campaign has answered all.
pub(super) fn none_open(evidence: &Evidence<'_>) -> Vec<Violation> {
    let open = evidence.rows.questions.iter().filter(|row| row.state == "open");
    open.map(|row| broken("no question is open in the end", of(row)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            evidence::MoveRow,
            fabricated::{Story, at},
        },
        *,
    };
    use crate::records::Aim;

    const ALL: [super::super::Check; 5] = [
        ended_once,
        answers_are_items,
        approved_first,
        none_of_closed_sessions,
        none_open,
    ];

    /// A question that offer 1 answered while offer 2 came too late.
    fn story() -> Story {
        let mut story = Story::delivered();
        for number in 1..3 {
            let mut offer = story.records.offers[0].clone();
            offer.number = number;
            offer.what = Offered::Answer { withdraws: false };
            if number == 2 {
                offer.tries[0].answer = Answer::Refused { status: 409 };
            }
            story.records.offers.push(offer);
            story.records.aims.push(Aim {
                offer: number,
                target: "q-1".to_owned(),
                named: None,
            });
        }
        story.rows.questions.push(OnceRow {
            account_id: "acme".to_owned(),
            id: "q-1".to_owned(),
            state: "answered".to_owned(),
            session_id: Some("session-1".to_owned()),
            kind: "question".to_owned(),
            task_id: Some("t-1".to_owned()),
            verdict: None,
            tool_call: None,
            text: Some(answer("canary-of-acme", 1)),
            notification_id: Some("n-2".to_owned()),
            ended_at: Some(at(7)),
        });
        let mut item = story.rows.notifications[0].clone();
        (item.id, item.kind, item.of) = ("n-2".to_owned(), "answer".to_owned(), Some("q-1".to_owned()));
        story.rows.notifications.push(item);
        story
    }

    #[test]
    fn one_answer_is_fine() {
        for check in ALL {
            assert_eq!(story().judge(check), []);
        }
    }

    /// On the task that needs this approval, its agent has written and called the task done.
    fn judged(task: &str, kind: &str) -> Story {
        let mut story = story();
        let key = task.to_lowercase();
        if task == PLANNED {
            "task_status".clone_into(&mut story.rows.calls[0].name);
        }
        story.rows.sessions[0].task_id = Some(key.clone());
        let question = &mut story.rows.questions[0];
        (question.kind, question.task_id) = (kind.to_owned(), Some(key.clone()));
        (question.verdict, question.notification_id) = (Some(Verdict::Approved), None);
        question.tool_call = Some(story.rows.calls[0].id.clone());
        question.ended_at = Some(at(1));
        story.rows.notifications.pop();
        story.rows.moves = vec![MoveRow {
            account_id: "acme".to_owned(),
            task_id: key,
            to: "done".to_owned(),
            created_at: at(8),
        }];
        assert_eq!(story.judge(approved_first), [], "{task}");
        assert_eq!(story.judge(ended_once), [], "{task}");
        story
    }

    #[test]
    fn what_happens_without_its_approval_is_found() {
        for (task, kind) in [(APPROVED, "tool"), (PLANNED, "plan"), (REVIEWED, "review")] {
            let mut story = judged(task, kind);
            story.rows.questions[0].verdict = Some(Verdict::Denied);
            assert!(story.finds(approved_first, task.to_lowercase().as_str()), "{task}");
            assert!(story.finds(ended_once, "and offer 1 was accepted"), "{task}");
        }
        let mut story = judged(APPROVED, "tool");
        story.rows.questions[0].tool_call = Some("another".to_owned());
        assert!(story.finds(approved_first, "ran task_message on t-7"));
        for (task, kind) in [(PLANNED, "plan"), (REVIEWED, "review")] {
            let mut story = judged(task, kind);
            story.rows.questions[0].ended_at = Some(at(60));
            assert!(story.finds(approved_first, task.to_lowercase().as_str()), "{task}");
        }
    }

    #[test]
    fn two_answers_are_found() {
        let mut story = story();
        story.records.offers[2].tries[0].answer = Answer::Accepted;
        assert!(story.finds(ended_once, "by the offers 1, 2"));
        assert!(story.finds(ended_once, "and offer 2 was accepted"));
        let mut story = self::story();
        story.records.offers[2].tries[0].answer = Answer::Refused { status: 404 };
        assert!(story.finds(ended_once, "offer 2 had"));
        let mut story = self::story();
        let mut again = story.records.offers[1].tries[0].clone();
        again.answer = Answer::Refused { status: 409 };
        story.records.offers[1].tries.push(again);
        assert!(story.finds(ended_once, "offer 1 had"));
    }

    #[test]
    fn an_answer_without_its_one_item_is_found() {
        let mut story = story();
        story.rows.notifications.pop();
        assert!(story.finds(answers_are_items, "names Some(\"n-2\")"));
        story.at_rest = false;
        story.rows.sessions[0].closed_at = Some(at(8));
        assert_eq!(story.judge(answers_are_items), [], "it may be on its way");
        let mut story = self::story();
        let mut second = story.rows.notifications[1].clone();
        "n-3".clone_into(&mut second.id);
        story.rows.notifications.push(second);
        assert!(story.finds(answers_are_items, "n-3"));
        let mut story = self::story();
        story.rows.questions.clear();
        assert!(story.finds(answers_are_items, "there is no"));
    }

    #[test]
    fn an_open_question_of_a_closed_session_is_found() {
        let mut story = story();
        "open".clone_into(&mut story.rows.questions[0].state);
        assert!(story.finds(none_open, "q-1"));
        assert_eq!(story.judge(none_of_closed_sessions), []);
        story.rows.sessions[0].closed_at = Some(at(8));
        assert!(story.finds(none_of_closed_sessions, "q-1"));
    }
}
