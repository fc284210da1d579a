//! I35: what is addressed to a person's orchestrator is in that conversation alone, and no other's prompt and no service has its words.
//! Always.

use domain::{SessionAddress, SessionKey};

use super::{
    Violation,
    evidence::{Evidence, SessionRow},
};
use crate::{
    plan::ORCHESTRATORS,
    records::{Offer, Offered},
};

fn broken(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I35",
        expected,
        found,
    }
}

/// The orchestrator that an offer is addressed to, or the session in which it answers whoever asks: its address, and the offer's effect.
fn addressed(offer: &Offer) -> Option<(String, &str)> {
    match &offer.what {
        Offered::Notification { agents, work, .. } => {
            let to = ORCHESTRATORS.into_iter().find(|to| agents.as_slice() == [*to])?;
            Some((to.to_owned(), &work.effect))
        }
        Offered::Mail { to, work } => {
            let to = match to.strip_prefix('@') {
                Some(owner) => format!("orchestrator:{}:{owner}:guest:{WRITER}:v1", offer.account),
                None => to.clone(),
            };
            Some((to, &work.effect))
        }
        _ => None,
    }
}

/// Who writes all mail of people.
const WRITER: &str = "ann";

/// Whether it is the key of one of the orchestrator's sessions.
fn is_of(key: &str, account: &str, to: &str) -> bool {
    let (Ok(key), Ok(address)) = (SessionKey::parse(key), SessionAddress::parse(to)) else {
        return false;
    };
    key.account.as_str() == account && address.within(&key.account) == Some(key.of)
}

pub(super) fn in_its_conversation(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for offer in &evidence.records.offers {
        let (Offered::Notification { .. } | Offered::Mail { .. }) = &offer.what else {
            continue;
        };
        let to = addressed(offer).map(|(to, _)| to);
        let to = to.as_deref();
        for id in evidence.ids_of(offer) {
            let row = evidence.notifications.get(&(offer.account.as_str(), id.as_str()));
            let session = row.and_then(|row| row.session_id.as_deref());
            let session: Option<&&SessionRow> =
                session.and_then(|id| evidence.sessions.get(&(offer.account.as_str(), id)));
            let Some(session) = session else { continue };
            let is_right = match to {
                Some(to) => is_of(&session.key, &offer.account, to),
                None => !["orchestrator", "guest"].contains(&session.kind.as_str()),
            };
            if !is_right {
                let to = to.unwrap_or("an agent");
                found.push(broken(
                    "what a person's orchestrator gets was addressed to it",
                    format!("notification {id} of {} to {to} is in {}", offer.account, session.key),
                ));
            }
        }
    }
    found
}

pub(super) fn shown_to_them_only(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for offer in &evidence.records.offers {
        let Some((to, effect)) = addressed(offer) else {
            continue;
        };
        let id = offer.number;
        // The words of what it gives away have another end.
        let others = evidence.records.calls.iter().filter(|call| {
            call.words.iter().any(|word| word == effect) && !is_of(&call.session_key, &offer.account, &to)
        });
        found.extend(others.map(|call| {
            let text = format!(
                "call {} of {} has the words of offer {id} to {to}",
                call.order, call.session_key
            );
            broken("a prompt has nothing of another person's", text)
        }));
        let marks = [format!("effect={effect};"), format!("reply {effect};")];
        let shown = evidence.records.answers.iter().filter(|answer| {
            answer.of_service
                && answer.account.as_ref() == Some(&offer.account)
                && marks.iter().any(|mark| answer.body.contains(mark))
        });
        found.extend(shown.map(|answer| {
            let text = format!("{} {} shows offer {id} to {to}", answer.status, answer.path);
            broken("a service is shown nothing of a person's own", text)
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::fabricated::Story, *};

    /// The one notification is addressed to a person's orchestrator.
    fn story() -> Story {
        let mut story = Story::delivered();
        if let Offered::Notification { agents, task, .. } = &mut story.records.offers[0].what {
            (*agents, *task) = (vec![ORCHESTRATORS[0].to_owned()], None);
        }
        of(&mut story, "ann");
        story
    }

    fn of(story: &mut Story, user: &str) {
        let key = format!("orchestrator:acme:{user}:v1");
        "orchestrator".clone_into(&mut story.rows.sessions[0].kind);
        for call in &mut story.records.calls {
            key.clone_into(&mut call.session_key);
        }
        story.rows.sessions[0].key = key;
    }

    #[test]
    fn an_item_of_another_person_is_found() {
        let mut story = story();
        assert_eq!(story.judge(in_its_conversation), []);
        assert_eq!(story.judge(shown_to_them_only), []);
        of(&mut story, "bob");
        assert!(story.finds(in_its_conversation, "orchestrator:acme:bob"));
        assert!(story.finds(shown_to_them_only, "orchestrator:acme:bob"));
        // What is a person's own is no guest's, nor the other way.
        of(&mut story, "ann:guest:bob");
        assert!(story.finds(in_its_conversation, "orchestrator:acme:ann:guest:bob"));
        assert!(story.finds(shown_to_them_only, "orchestrator:acme:ann:guest:bob"));
    }

    #[test]
    fn an_agents_item_in_an_orchestrator_is_found() {
        let mut story = Story::delivered();
        assert_eq!(story.judge(in_its_conversation), []);
        for kind in ["orchestrator", "guest"] {
            kind.clone_into(&mut story.rows.sessions[0].kind);
            assert!(story.finds(in_its_conversation, "to an agent"));
        }
    }

    #[test]
    fn a_service_that_sees_a_persons_words_is_found() {
        let mut story = story();
        story.records.answers[0].body = "work=reply effect=e1;".to_owned();
        assert_eq!(story.judge(shown_to_them_only), []);
        story.records.answers[0].of_service = true;
        assert!(story.finds(shown_to_them_only, "shows offer 0"));
    }
}
