//! I29: a prompt holds what is of its own task. By the audit's own rules: it finds no violation, it finds what is planted, and what it
//! judges is what the provider received. And by a second, independent reading of the wire: no word of another task or account is in a
//! request. The audit and what the audits planted are checked at rest, the others always.

use std::collections::{BTreeMap, HashMap};

use domain::{SessionKey, SessionOf};
use prompt::{
    Manifest,
    manifest::{Hash, Layer},
};

use super::{
    Violation,
    evidence::{CallRow, Evidence, TurnRow},
};
use crate::records::{Offered, TextOf};

fn found(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I29",
        expected,
        found,
    }
}

/// Of the audits at the end, which have every turn.
pub(super) fn no_violation(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut all = Vec::new();
    for audit in &evidence.records.audits {
        let of = |line: &String| found("an audit finds no violation", format!("{}: {line}", audit.account));
        all.extend(audit.violations.iter().map(of));
        let turns = evidence
            .rows
            .turns
            .iter()
            .filter(|turn| turn.account_id == audit.account)
            .count();
        if turns != audit.turns {
            let text = format!("{} of {turns} turns of {}", audit.turns, audit.account);
            all.push(found("an audit reads every turn", text));
        }
    }
    all
}

pub(super) fn planted_is_found(evidence: &Evidence<'_>) -> Vec<Violation> {
    let planted = evidence.records.audits.iter().flat_map(|audit| &audit.planted);
    let missed = planted.filter(|planted| !planted.is_found);
    missed
        .map(|planted| found("an audit finds a planted foreign sentence", planted.place.clone()))
        .collect()
}

/// The texts of each request are those of its turn, by their hashes.
pub(super) fn as_recorded(evidence: &Evidence<'_>) -> Vec<Violation> {
    let turns: HashMap<&str, &TurnRow> = evidence
        .rows
        .turns
        .iter()
        .map(|turn| (turn.id.as_str(), turn))
        .collect();
    let mut results: HashMap<(&str, &str), &CallRow> = HashMap::new();
    for call in &evidence.rows.calls {
        results.insert(
            (call.turn_id.as_deref().unwrap_or_default(), call.call_id.as_str()),
            call,
        );
    }
    let mut all = Vec::new();
    for call in &evidence.records.calls {
        let (turn, _) = call.idempotency_key.split_once(':').unwrap_or_default();
        let Some(turn) = turns.get(turn) else { continue };
        let recorded = Recorded::of(turn);
        for sent in &call.texts {
            let is_its = match &sent.of {
                TextOf::Instructions => sent.sha256 == turn.profile_hash,
                TextOf::User | TextOf::Assistant => recorded.0.contains_key(sent.sha256.as_str()),
                // One without a result has words of ours.
                TextOf::Result(id) => {
                    let result = results.get(&(turn.id.as_str(), id.as_str()));
                    let result = result.and_then(|result| result.result_sha256.as_ref());
                    result.is_none_or(|result| *result == sent.sha256)
                }
            };
            if !is_its {
                let text = format!(
                    "call {} of turn {} has another text: {:?}",
                    call.order, turn.id, sent.of
                );
                all.push(found("what a provider receives is what is recorded", text));
            }
        }
    }
    all
}

/// The hashes of what a turn's items may be.
struct Recorded(BTreeMap<String, ()>);

impl Recorded {
    fn of(turn: &TurnRow) -> Recorded {
        let mut hashes = vec![turn.input_sha256.clone()];
        hashes.extend(turn.notes_sha256.iter().cloned());
        let packed = turn.manifest.as_ref().and_then(|hex| hex::decode(hex).ok());
        if let Some(manifest) = packed.as_deref().and_then(Manifest::unpacked) {
            hashes.extend(manifest.layer(Layer::Context).map(|part| part.sha256.to_string()));
        }
        let rounds = turn.journal.as_array().into_iter().flatten();
        hashes.extend(rounds.filter_map(|round| Some(Hash::of(round["text"].as_str()?).to_string())));
        Recorded(hashes.into_iter().map(|hash| (hash, ())).collect())
    }
}

/// An effect is of one offer, which names an account and a task: its words stand in no request of another.
pub(super) fn own_words(evidence: &Evidence<'_>) -> Vec<Violation> {
    let homes = homes(evidence);
    let mut all = Vec::new();
    for call in &evidence.records.calls {
        let Ok(key) = SessionKey::parse(&call.session_key) else {
            continue;
        };
        let own = match &key.of {
            SessionOf::Task { task, .. } => Some(task.key().to_string()),
            SessionOf::Branch { .. } | SessionOf::Replay(_) => {
                let mut sessions = evidence.rows.sessions.iter();
                let session = sessions.find(|session| session.key == call.session_key);
                // It is removed with its session.
                let Some(session) = session else { continue };
                session.task_id.clone()
            }
            SessionOf::Agent(_) | SessionOf::Orchestrator(_) | SessionOf::Guest { .. } => None,
        };
        for word in &call.words {
            let Some((account, task)) = home(&homes, word) else {
                continue;
            };
            if *account != key.account.as_str() || *task != own {
                let text = format!(
                    "call {} of {} holds {word}, which is of {account} and {}",
                    call.order,
                    call.session_key,
                    task.as_deref().unwrap_or("no task")
                );
                all.push(found("a request holds no words of another task", text));
            }
        }
    }
    all
}

type Homes<'a> = HashMap<String, (&'a str, Option<String>)>;

/// The account and the task of each effect.
fn homes<'a>(evidence: &Evidence<'a>) -> Homes<'a> {
    let mut homes: Homes<'a> = HashMap::new();
    for offer in &evidence.records.offers {
        let (work, task) = match &offer.what {
            Offered::Notification { work, task, .. } => (work, task.as_ref()),
            Offered::Message { work, task } => (work, Some(task)),
            Offered::Mail { work, .. } => (work, None),
            Offered::Task { effect, id, .. } => {
                homes.insert(effect.clone(), (&offer.account, Some(id.to_lowercase())));
                continue;
            }
            Offered::Repeat { .. }
            | Offered::Conflict { .. }
            | Offered::KeyReused { .. }
            | Offered::Poison { .. }
            | Offered::Status { .. }
            | Offered::Persona
            | Offered::Stop { .. }
            | Offered::Reset { .. }
            | Offered::Replay { .. }
            | Offered::EndBranch { .. }
            | Offered::Resume { .. }
            | Offered::Hold { .. }
            | Offered::Release { .. }
            | Offered::Edit { .. }
            | Offered::Answer { .. }
            | Offered::Handover { .. }
            | Offered::Remember => continue,
        };
        homes.insert(
            work.effect.clone(),
            (&offer.account, task.map(|task| task.to_lowercase())),
        );
    }
    // What a client answers is of the task of the question.
    for aim in &evidence.records.aims {
        let question = evidence
            .rows
            .questions
            .iter()
            .find(|question| question.id == aim.target);
        if let Some(question) = question {
            homes.insert(
                format!("a{}", aim.offer),
                (&question.account_id, question.task_id.clone()),
            );
        }
    }
    homes
}

/// Agents add `-asked` and `-2` to an effect.
fn home<'h, 'a>(homes: &'h Homes<'a>, word: &str) -> Option<&'h (&'a str, Option<String>)> {
    let mut base = word;
    loop {
        if let Some(home) = homes.get(base) {
            return Some(home);
        }
        (base, _) = base.rsplit_once('-')?;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fabricated::Story, *};
    use crate::records::{Audited, Planted, SentText};

    fn sent(of: TextOf, sha256: &str) -> SentText {
        SentText {
            of,
            sha256: sha256.to_owned(),
        }
    }

    #[test]
    fn what_is_received_is_recorded() {
        let mut story = Story::delivered();
        let result = TextOf::Result("message.e1.0.0".to_owned());
        story.records.calls[0].texts = vec![
            sent(TextOf::Instructions, "profile"),
            sent(TextOf::User, "input"),
            sent(TextOf::User, "note"),
            sent(result.clone(), "result"),
            sent(TextOf::Result("unknown".to_owned()), "missing"),
        ];
        assert_eq!(story.judge(as_recorded), []);
        for (of, sha256) in [
            (TextOf::Instructions, "input"),
            (TextOf::User, "profile"),
            (TextOf::Assistant, "x"),
            (result, "input"),
        ] {
            story.records.calls[0].texts = vec![sent(of.clone(), sha256)];
            assert!(story.finds(as_recorded, "another text"), "{of:?}");
        }
    }

    #[test]
    fn words_of_another_task_or_account_are_found() {
        let mut story = Story::delivered();
        story.records.calls[0].words = vec!["e1-asked".to_owned(), "e1-2".to_owned(), "e777".to_owned()];
        assert_eq!(story.judge(own_words), []);
        let other = |story: &mut Story, account: &str, task: Option<&str>| {
            let mut offer = story.records.offers[0].clone();
            offer.account = account.to_owned();
            if let Offered::Notification { work, task: of, .. } = &mut offer.what {
                work.effect = "e2".to_owned();
                *of = task.map(str::to_owned);
            }
            story.records.offers.push(offer);
            story.records.calls[0].words = vec!["e2-asked".to_owned()];
        };
        for (account, task, is_found) in [
            ("acme", Some("T-1"), false),
            ("acme", Some("T-2"), true),
            ("acme", None, true),
            ("other", Some("T-1"), true),
        ] {
            let mut story = Story::delivered();
            other(&mut story, account, task);
            assert_eq!(story.finds(own_words, "holds e2-asked"), is_found, "{account} {task:?}");
        }
    }

    #[test]
    fn an_audit_says_what_it_found_and_reads_everything() {
        let mut story = Story::delivered();
        let audit = Audited {
            account: "acme".to_owned(),
            turns: 1,
            violations: Vec::new(),
            planted: vec![Planted {
                place: "turn-1 3".to_owned(),
                is_found: true,
            }],
        };
        story.records.audits = vec![audit];
        assert_eq!(story.judge(no_violation), []);
        assert_eq!(story.judge(planted_is_found), []);
        story.records.audits[0].turns = 0;
        assert!(story.finds(no_violation, "0 of 1 turns"));
        story.records.audits[0]
            .violations
            .push("turn-1 foreign_task".to_owned());
        assert!(story.finds(no_violation, "foreign_task"));
        story.records.audits[0].planted[0].is_found = false;
        assert!(story.finds(planted_is_found, "turn-1 3"));
    }
}
