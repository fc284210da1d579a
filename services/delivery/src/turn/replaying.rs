//! Turns of replays: they get what their source turns got, or other instructions, and end without effects.

use std::{collections::HashMap, sync::Arc};

use domain::{AccountId, ContextMode, ContextReason, ImpossibleStep, PersonaText, ReplayId, SessionPhase, TurnContext};
use prompt::{
    InstructionFacts, Manifest, Profile, instructions,
    manifest::{Hash, Layer, Part, PartKind, Source},
    persona_source,
};
use storage::{
    StorageError, Tx,
    outbox::Owned,
    session::{replay_begin::replays_end, sessions_lock::LockedSession, turns_record::Changed},
};
use time::OffsetDateTime;

use super::{
    begin::{Prompt, ProviderFacts, tool_names},
    recorder::{Decided, Recorder},
    starter::{Starter, Starting},
};
use crate::{
    context::plan::Plan,
    providers::{Continuation, Driver, Thread},
    store::{
        SessionName,
        claim::OpenTurn,
        context::QueuedItem,
        past::PastOf,
        replays::{ReplayStart, replays_load},
    },
};

impl ReplayStart {
    /// The provider that is asked.
    fn asks(&self) -> &str {
        self.spec.provider.as_deref().unwrap_or(&self.provider)
    }

    /// Where the context of its turn comes from: the recipe of the source turn. What that turn's provider kept is reached only from a
    /// response; otherwise its past is assembled. Pure.
    pub(super) fn plan(&self, provider: ProviderFacts) -> Plan {
        use ContextMode::{Assembled, Continue, Fork};
        let source = &self.context;
        let forks = provider.keeps == Thread::Durable
            && provider.found_by == Continuation::Response
            && self.asks() == self.provider;
        let from = source.from.clone().filter(|_| forks && !source.is_assembled());
        let (used, reason) = match (&from, source.reason) {
            (Some(_), _) => (Fork, None),
            (None, Some(ContextReason::First)) => (Continue, Some(ContextReason::First)),
            (None, _) => (Assembled, None),
        };
        Plan {
            context: TurnContext {
                asked: source.asked,
                used,
                reason,
                thread: 1,
                from,
                base_sha256: source.base_sha256.clone(),
                lost_after: None,
                unconfirmed: false,
            },
            is_new: true,
            is_later: false,
        }
    }

    /// The past of the source turn.
    pub(super) fn past(&self) -> PastOf {
        PastOf {
            session: (self.account_id.clone(), self.source_session_id),
            continues: self.continues_id,
            task: self.task_id.clone(),
            before: self.number,
        }
    }

    /// The prompt of its turn: the source turn's, or one with the instructions that the replay asks for, built from `facts`, which have
    /// the agent as it is now. None: the record cannot be read. Pure.
    pub(super) fn prompt(&self, facts: &InstructionFacts<'_>) -> Option<Prompt> {
        let mut manifest = Manifest::unpacked(&self.manifest)?;
        let profile = match &self.spec.profile {
            None => self.profile(self.instructions.as_str().into()),
            Some(asked) => {
                let context = self.task_context(&manifest);
                let of_source: Vec<Part> = std::mem::take(&mut manifest.parts);
                let profile = match &asked.instructions {
                    Some(text) => {
                        let source = Source::Named(format!("replay/{}", self.id));
                        manifest
                            .parts
                            .push(Part::of(Layer::Instructions, PartKind::Policy, source, text));
                        self.profile(text.as_str().into())
                    }
                    None => {
                        let facts = InstructionFacts {
                            agent_role: asked.role.as_deref().unwrap_or(facts.agent_role),
                            persona: facts
                                .persona
                                .map(|(persona, _)| (persona, was_in_review(persona, &of_source))),
                            ..facts.clone()
                        };
                        let profile = instructions(&facts, &mut manifest);
                        match context {
                            None => profile,
                            Some((part, text)) => {
                                manifest.parts.push(part);
                                let text = format!("{}{text}", profile.text);
                                Profile {
                                    hash: Hash::of(&text).to_string(),
                                    text: text.into(),
                                    ..profile
                                }
                            }
                        }
                    }
                };
                let others = of_source.into_iter().filter(|part| part.layer != Layer::Instructions);
                manifest.parts.extend(others);
                profile
            }
        };
        Some(Prompt {
            profile,
            input: self.input.clone(),
            manifest,
        })
    }

    /// The task's context in the source turn's instructions.
    fn task_context(&self, manifest: &Manifest) -> Option<(Part, String)> {
        let slices = manifest.slices(Layer::Instructions, &self.instructions).ok()?;
        let context = slices
            .into_iter()
            .find(|slice| slice.part.part == PartKind::TaskContext)?;
        Some((context.part.clone(), context.text.to_owned()))
    }

    fn profile(&self, text: Arc<str>) -> Profile {
        Profile {
            version: self.profile_version.clone(),
            hash: Hash::of(&text).to_string(),
            text,
        }
    }
}

/// Whether the source turn was shown the persona's file for reviews.
fn was_in_review(persona: &PersonaText, of_source: &[Part]) -> bool {
    let mut files = persona.files.as_slice().iter().filter(|file| file.is_review());
    let is_there = |source: String| of_source.iter().any(|part| part.source.to_string() == source);
    files.any(|file| is_there(persona_source(persona, file)))
}

/// The prompt of a replay's turn, which is built in the place of the item's.
pub(super) fn prompt_of(
    (session, item): (&LockedSession, &QueuedItem),
    replay: &ReplayStart,
    driver: Option<&Driver>,
    hidden: &[&'static str],
) -> Result<Prompt, ImpossibleStep> {
    let facts = InstructionFacts {
        account: &session.account,
        agent_slug: &item.agent_slug,
        agent_name: &item.agent_name,
        agent_role: &item.agent_role,
        has_task: item.facts.task.is_some(),
        is_coordinator: item.is_coordinator,
        is_branch: replay.branch_id.is_some(),
        orchestrator: item.identity.as_ref(),
        persona: item.persona.as_deref().map(|persona| (persona, false)),
        task_context: None,
        tools: &tool_names(driver).without(hidden),
    };
    replay.prompt(&facts).ok_or(ImpossibleStep {
        noun: "replay",
        state: "with a manifest that cannot be read",
        step: "begin",
    })
}

impl Starter {
    /// The replays of these sessions. Without one there is no statement.
    pub(super) async fn replays_of(
        &self,
        tx: &Tx,
        sessions: impl Iterator<Item = &LockedSession>,
    ) -> Result<HashMap<SessionName, ReplayStart>, StorageError> {
        let of: Vec<(AccountId, ReplayId)> = sessions
            .filter_map(|session| Some((session.account.clone(), session.replay?)))
            .collect();
        replays_load(tx, &of, self.breakers.keys_json()).await
    }

    /// The same of sessions that start a turn, whose items name the provider that is asked. One whose source turn is gone ends.
    pub(super) async fn replays(
        &self,
        tx: &Tx,
        start: &mut Vec<(LockedSession, QueuedItem)>,
        starting: &mut Starting,
    ) -> Result<HashMap<SessionName, ReplayStart>, StorageError> {
        let replays = self.replays_of(tx, start.iter().map(|(session, _)| session)).await?;
        for (session, _) in start.iter().filter(|(session, _)| session.replay.is_some()) {
            if !replays.contains_key(&session.name()) {
                let ended = replays_end(tx, &session.account, vec![session.id], &self.breakers.setting()).await?;
                starting.events.extend(ended);
            }
        }
        start.retain_mut(|(session, item)| {
            let Some(replay) = replays.get(&session.name()) else {
                return session.replay.is_none();
            };
            item.provider = replay.asks().to_owned();
            item.breaker = replay.breaker;
            true
        });
        Ok(replays)
    }

    /// Gives open turns of replays their record; and the result that ends one, if its last answer called for that.
    pub(super) async fn replays_of_open(
        &self,
        tx: &Tx,
        open: &mut [(LockedSession, OpenTurn)],
    ) -> Result<HashMap<SessionName, ReplayStart>, StorageError> {
        let replays = self.replays_of(tx, open.iter().map(|(session, _)| session)).await?;
        for (session, turn) in open {
            let replay = replays.get(&session.name());
            turn.results
                .extend(replay.and_then(|replay| replay.ended_by(&turn.journal)));
        }
        Ok(replays)
    }
}

impl Recorder {
    /// Closes the sessions of replays whose turns have ended with these records. Without a replay there is no statement.
    pub(super) async fn end_replays(
        &self,
        tx: &Tx,
        decided: &[(Decided<'_>, Changed)],
        now: OffsetDateTime,
    ) -> Result<Vec<Owned>, StorageError> {
        let mut messages = Vec::new();
        for (one, _) in decided {
            let is_over = one.session.replay.is_some()
                && one.change.turn.over
                && !one.session.facts.closed
                && one.change.session.phase == SessionPhase::Idle;
            if is_over {
                let (account, sessions) = (&one.session.account, vec![one.session.id]);
                let setting = one.report.work.setting(&self.root, now);
                messages.extend(replays_end(tx, account, sessions, &setting).await?);
            }
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use domain::{AccountId, AgentSlug, ContextSize, InstructionLayout, ReplayProfile, TaskId};
    use prompt::{KnownContext, ToolNames};

    use super::*;
    use crate::{providers::Effects, store::replays::tests::replay};

    fn provider(keeps: Thread, found_by: Continuation) -> ProviderFacts {
        ProviderFacts {
            effects: Effects::GatewayOnly,
            keeps,
            found_by,
        }
    }

    #[test]
    fn earlier_turns_come_by_the_source_turn_s_recipe() {
        use Continuation::{Key, Response};
        let check = |source: &str, asks: Option<&str>, found_by, expected: &str| {
            let mut replay = replay();
            replay.context = serde_json::from_str(source).unwrap();
            replay.spec.provider = asks.map(str::to_owned);
            let Plan { context, is_new, .. } = replay.plan(provider(Thread::Durable, found_by));
            let reason = context
                .reason
                .map_or_else(|| "-".to_owned(), |reason| reason.to_string());
            let from = context.from.as_deref().unwrap_or("-");
            let line = format!("{}/{reason} t{} {from}", context.used, context.thread);
            assert_eq!(line, expected, "{source} {asks:?}");
            assert!(is_new);
        };
        let first = r#"{"asked": "continue", "used": "continue", "reason": "first", "thread": 1}"#;
        let went_on = r#"{"asked": "continue", "used": "continue", "thread": 2}"#;
        let went_on_from = r#"{"asked": "continue", "used": "continue", "thread": 2, "from": "r"}"#;
        let lost =
            r#"{"asked": "continue", "used": "continue", "reason": "thread_lost", "thread": 3, "lost_after": 1}"#;
        let assembled = r#"{"asked": "assembled", "used": "assembled", "thread": 4}"#;
        let forked = r#"{"asked": "fork", "used": "fork", "thread": 1, "from": "r", "base_sha256": "0f"}"#;
        check(first, None, Key, "continue/first t1 -");
        check(first, Some("other"), Response, "continue/first t1 -");
        check(went_on, None, Key, "assembled/- t1 -");
        check(went_on_from, None, Response, "fork/- t1 r");
        check(went_on_from, Some("default"), Response, "fork/- t1 r");
        check(went_on_from, Some("other"), Response, "assembled/- t1 -");
        check(went_on_from, None, Key, "assembled/- t1 -");
        check(lost, None, Response, "assembled/- t1 -");
        check(assembled, None, Response, "assembled/- t1 -");
        check(forked, None, Response, "fork/- t1 r");
        check(forked, Some("other"), Response, "assembled/- t1 -");
        // A process keeps nothing that a later turn could go on in.
        let mut replay = replay();
        replay.context = serde_json::from_str(went_on_from).unwrap();
        let plan = replay.plan(provider(Thread::Process, Response));
        assert!(plan.context.is_assembled());
    }

    #[test]
    fn other_instructions_are_accounted_for_and_the_rest_stays() {
        let (account, slug) = (AccountId::parse("acme").unwrap(), AgentSlug::parse("coder").unwrap());
        let (task, names) = (TaskId::parse("PROJ-7").unwrap(), ToolNames::new(str::to_owned));
        let facts = InstructionFacts {
            account: &account,
            agent_slug: &slug,
            agent_name: "Coder",
            agent_role: "You write code.",
            has_task: true,
            is_coordinator: false,
            is_branch: false,
            orchestrator: None,
            persona: None,
            task_context: None,
            tools: &names,
        };
        let known = KnownContext {
            task: &task,
            version: 2,
            body: "What is built.",
            size: ContextSize {
                characters: 14,
                cut_characters: 0,
            },
        };
        let mut manifest = Manifest::new(InstructionLayout::Inline);
        let with_context = InstructionFacts {
            task_context: Some(known),
            ..facts.clone()
        };
        let source = instructions(&with_context, &mut manifest);
        let input = Part::of(
            Layer::Input,
            PartKind::Notification,
            Source::Named("notification/n-1".to_owned()),
            "hello",
        );
        manifest.parts.push(input);
        let mut replay = replay();
        replay.instructions = source.text.to_string();
        replay.input = "hello".to_owned();
        replay.manifest = manifest.packed();
        let mut check = |profile: Option<ReplayProfile>, expected: &[&str], without: &[&str]| {
            replay.spec.profile = profile;
            let prompt = replay.prompt(&facts).unwrap();
            let text = &*prompt.profile.text;
            assert!(prompt.manifest.slices(Layer::Instructions, text).is_ok());
            assert!(prompt.manifest.slices(Layer::Input, "hello").is_ok());
            assert_eq!(prompt.profile.hash, Hash::of(text).to_string());
            assert_eq!(prompt.manifest.layout, InstructionLayout::Inline);
            assert!(expected.iter().all(|words| text.contains(words)), "{text}");
            assert!(!without.iter().any(|words| text.contains(words)), "{text}");
        };
        check(None, &["You write code.", "What is built."], &[]);
        let asked = ReplayProfile {
            role: Some("You answer in verse.".to_owned()),
            ..ReplayProfile::default()
        };
        check(
            Some(asked),
            &["You answer in verse.", "What is built."],
            &["You write code."],
        );
        check(
            Some(ReplayProfile::default()),
            &["You write code.", "What is built."],
            &[],
        );
        let asked = ReplayProfile {
            instructions: Some("Say nothing.".to_owned()),
            ..ReplayProfile::default()
        };
        check(Some(asked), &["Say nothing."], &["You write code.", "What is built."]);
    }
}
