//! I34: a generation has one persona, the newest that was there when it opened, in every prompt, whole. Always.

use prompt::{
    Manifest,
    manifest::{Layer, PartKind},
};
use time::OffsetDateTime;

use super::{
    Violation,
    evidence::{Evidence, SessionRow},
};
use crate::{
    clients::{TONE, tone},
    records::{Answer, Offered},
};

fn broken(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I34",
        expected,
        found,
    }
}

/// By the manifests, whose texts are those that the provider received (I29).
pub(super) fn one_for_a_generation(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut all = Vec::new();
    for turn in &evidence.rows.turns {
        let Some(session) = evidence
            .sessions
            .get(&(turn.account_id.as_str(), turn.session_id.as_str()))
        else {
            continue;
        };
        let packed = turn.manifest.as_ref().and_then(|hex| hex::decode(hex).ok());
        let Some(manifest) = packed.as_deref().and_then(Manifest::unpacked) else {
            continue;
        };
        let parts = manifest.layer(Layer::Instructions);
        let parts = parts.filter(|part| part.part == PartKind::Persona);
        let has: Vec<String> = parts.map(|part| part.source.to_string()).collect();
        let of = session.persona.as_ref();
        let should: Vec<String> = of
            .map(|(slug, number)| format!("persona/{slug}/{number}/{TONE}"))
            .into_iter()
            .collect();
        if has != should {
            let found = format!("turn {} of {} has {has:?} and not {should:?}", turn.id, session.key);
            all.push(broken("a prompt has the persona of its generation", found));
        }
    }
    all
}

/// Branches and replays have that of another session, and orchestrators have none.
pub(super) fn newest_at_the_beginning(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut all = Vec::new();
    for session in evidence
        .rows
        .sessions
        .iter()
        .filter(|session| session.origin().is_none() && !["orchestrator", "guest"].contains(&session.kind.as_str()))
    {
        let expected = "a generation opens with the newest version of the account's persona";
        match &session.persona {
            Some((_, number)) => {
                let written = written_before(evidence, session, session.opened_at);
                all.extend(written.filter(|written| written > number).map(|written| {
                    let found = format!("{} has version {number}, and {written} was there", session.key);
                    broken(expected, found)
                }));
            }
            None if evidence
                .rows
                .personas
                .iter()
                .any(|(account, ..)| *account == session.account_id) =>
            {
                all.push(broken(expected, format!("{} has none", session.key)));
            }
            None => {}
        }
    }
    all
}

/// The versions that clients were told are written, before this time. Old ones that no session has are removed.
fn written_before(evidence: &Evidence<'_>, session: &SessionRow, at: OffsetDateTime) -> impl Iterator<Item = i64> {
    let account = session.account_id.as_str();
    let offers = evidence.records.offers.iter().filter(move |offer| {
        let is_written = |tried: &crate::records::Try| tried.answer == Answer::Accepted && tried.ended_at < at;
        offer.account == account && offer.what == Offered::Persona && offer.tries.iter().any(is_written)
    });
    offers.filter_map(move |offer| {
        let mark = tone(offer.number);
        let versions = evidence.rows.personas.iter();
        let versions = versions.filter(|(of, _, text)| of == account && text.starts_with(&mark));
        versions.map(|(_, number, _)| *number).min()
    })
}

#[cfg(test)]
mod tests {
    use domain::InstructionLayout;
    use prompt::manifest::{Part, Source};

    use super::{
        super::fabricated::{Story, at},
        *,
    };
    use crate::records::{Offer, Try, Via};

    /// Version 2 was written at second 2, before the session opened.
    fn story() -> Story {
        let mut story = Story::delivered();
        let version = |number, text: &str| ("acme".to_owned(), number, format!("{text} canary-of-acme"));
        story.rows.personas = vec![version(1, "Tone."), version(2, &tone(1))];
        story.records.offers.push(Offer {
            number: 1,
            account: "acme".to_owned(),
            what: Offered::Persona,
            tries: vec![Try {
                via: Via::Http,
                sent_at: at(1),
                ended_at: at(2),
                answer: Answer::Accepted,
            }],
        });
        story.rows.sessions[0].opened_at = at(3);
        has(&mut story, 2, 2);
        story
    }

    fn has(story: &mut Story, session: i64, turn: i64) {
        story.rows.sessions[0].persona = Some(("tone".to_owned(), session));
        let source = Source::named(format!("persona/tone/{turn}/{TONE}"));
        let manifest = Manifest {
            parts: vec![Part::of(Layer::Instructions, PartKind::Persona, source, "Tone.")],
            ..Manifest::new(InstructionLayout::Layered)
        };
        story.rows.turns[0].manifest = Some(hex::encode(manifest.packed()));
    }

    #[test]
    fn another_version_in_a_prompt_is_found() {
        let mut story = story();
        assert_eq!(story.judge(one_for_a_generation), []);
        has(&mut story, 2, 1);
        assert!(story.finds(one_for_a_generation, "tone/1"));
        has(&mut story, 2, 2);
        story.rows.sessions[0].persona = None;
        assert!(story.finds(one_for_a_generation, "and not []"));
    }

    #[test]
    fn an_old_version_at_the_beginning_is_found() {
        let mut story = story();
        assert_eq!(story.judge(newest_at_the_beginning), []);
        has(&mut story, 1, 1);
        assert!(story.finds(newest_at_the_beginning, "2 was there"));
        story.rows.sessions[0].opened_at = at(1);
        assert_eq!(story.judge(newest_at_the_beginning), [], "it was written later");
        story.rows.sessions[0].persona = None;
        assert!(story.finds(newest_at_the_beginning, "has none"));
    }
}
