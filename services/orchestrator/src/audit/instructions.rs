//! Rules for the instructions and the offer of tools. A template has to be there word by word, with names of its own account; a role is
//! the agent's.

use domain::UserId;
use prompt::{
    FilledIn, KnownContext, PROFILE_VERSION, filled_in, identity_block, identity_source,
    manifest::{Hash, Layer, Offer, Part, PartKind},
    persona_block, persona_source, persona_sources, role_block, task_context,
};
use storage::lifecycle::task_context::KEPT;

use super::{
    judge::{Case, Ruling, foreign, proven, unknown_source, whole},
    store::context_named,
    verdict::{
        Doubt::{Changed, Retention, UnknownTemplate},
        Fault::{ForeignAccount, ForeignThread, HashMismatch, SourceMissing},
        Judged, Policy,
        Verdict::{ByPolicy, Unproven, Violation},
    },
};

impl Case<'_> {
    pub(super) fn instructions(&self, judged: &mut Vec<Judged>) {
        let Some(text) = &self.turn.instructions else {
            let parts = self.manifest.layer(Layer::Instructions);
            let bytes = parts.map(|part| part.bytes).fold(0, usize::saturating_add);
            let ruling = (
                Violation(SourceMissing),
                "the text of its instructions is not stored".to_owned(),
            );
            judged.push(whole("instructions", bytes, ruling));
            return;
        };
        if Hash::of(text).to_string() != self.turn.profile_hash {
            let ruling = (
                Violation(HashMismatch),
                "its instructions have another hash than its profile".to_owned(),
            );
            judged.push(whole("instructions", 0, ruling));
        }
        self.slices(
            Layer::Instructions,
            text,
            |part, text| self.instruction(part, text),
            judged,
        );
        if let Some(ruling) = self.persona_missing() {
            judged.push(whole("instructions", 0, ruling));
        }
    }

    fn instruction(&self, part: &Part, text: &str) -> Ruling {
        // Whoever asked for the replay wrote it.
        let asked = self.turn.replay_id.map(|replay| format!("replay/{replay}"));
        if asked.is_some_and(|asked| part.source.to_string() == asked) {
            let given = self.turn.replay_instructions.as_deref();
            return match part.part == PartKind::Policy && given == Some(text) {
                true => proven(),
                false => (
                    Violation(HashMismatch),
                    "the replay was asked for with other instructions".to_owned(),
                ),
            };
        }
        match part.part {
            PartKind::Policy
            | PartKind::Coordinator
            | PartKind::Taskless
            | PartKind::Branch
            | PartKind::Orchestrator => self.template(part, text),
            PartKind::Role => self.role(part, text),
            PartKind::TaskContext => self.task_context(part, text),
            PartKind::Persona => self.persona(part, text),
            PartKind::Identity => self.identity(part, text),
            PartKind::Interruption
            | PartKind::Notification
            | PartKind::Task
            | PartKind::Thread
            | PartKind::Message
            | PartKind::Briefing
            | PartKind::Overview
            | PartKind::Followup
            | PartKind::Stopped
            | PartKind::Injected
            | PartKind::TaskState
            | PartKind::Entry
            | PartKind::EntriesLeftOut
            | PartKind::ToolResult
            | PartKind::Subagents => unknown_source(),
        }
    }

    fn template(&self, part: &Part, text: &str) -> Ruling {
        let source = part.source.to_string();
        let version = source.split('/').nth(1).unwrap_or_default();
        if version != PROFILE_VERSION {
            return (
                Unproven(UnknownTemplate),
                format!("this version does not have profile {version}"),
            );
        }
        let Some(filled) = filled_in(&source, text) else {
            return (Violation(HashMismatch), format!("the text is not {source}, filled in"));
        };
        let account = self.turn.account.as_str();
        if let Some(named) = filled.account.filter(|named| *named != account) {
            return (Violation(ForeignAccount), format!("it names the account {named:?}"));
        }
        if !self.names_its_agent(&filled) {
            return (Unproven(Changed), "its agent has another name now".to_owned());
        }
        match (part.part == PartKind::Coordinator, self.is_coordinator()) {
            (false, _) => proven(),
            (true, true) => (
                ByPolicy(Policy::Coordinator),
                "the turn is on the coordinator task".to_owned(),
            ),
            (true, false) => (Unproven(Changed), "its task is not the coordinator task now".to_owned()),
        }
    }

    fn names_its_agent(&self, filled: &FilledIn<'_>) -> bool {
        let (slug, name) = match self.turn.orchestrator() {
            Some(of) => {
                let identity = self.sources.identities.get(&of);
                (
                    identity.map(|one| one.handle.as_str()),
                    identity.map(|one| one.name.as_str()),
                )
            }
            None => (
                self.turn.agent_slug.as_ref().map(|slug| slug.as_str()),
                self.turn.agent_name.as_deref(),
            ),
        };
        let is_slug = filled.agent_slug.is_none_or(|named| slug == Some(named));
        let is_name = name.is_some_and(|name| filled.is_named(name));
        is_slug && (is_name || filled.agent_name.is_none())
    }

    /// Of a replay it may be the one that was asked for. An agent's row does not say when it changed.
    fn role(&self, part: &Part, text: &str) -> Ruling {
        if !part.source.to_string().starts_with("agent/") {
            return unknown_source();
        }
        let Some(role) = &self.turn.agent_role else {
            return (Violation(SourceMissing), "its agent is not there".to_owned());
        };
        match role_block(role).is_some_and(|(block, _)| block == text) {
            true => proven(),
            false => (Unproven(Changed), "its agent has another role now".to_owned()),
        }
    }

    /// The turn's instructions lack a file of its session's persona, or have the files in another order.
    fn persona_missing(&self) -> Option<Ruling> {
        let persona = self.sources.personas.get(&self.turn.persona_version_id?)?;
        let parts = self.manifest.layer(Layer::Instructions);
        let has: Vec<String> = parts
            .filter(|part| part.part == PartKind::Persona)
            .map(|part| part.source.to_string())
            .collect();
        // Whether the task was under review then is not stored. Whoever asked for a replay may have written its instructions.
        let is_whole = [false, true]
            .map(|in_review| persona_sources(persona, in_review))
            .contains(&has);
        (!is_whole && self.turn.replay_instructions.is_none()).then(|| {
            let what = format!(
                "it lacks a file of its session's persona {}, or has them in another order",
                persona.slug
            );
            (Violation(SourceMissing), what)
        })
    }

    /// What its orchestrator is called. The row is the newest one: the one of an earlier turn is not kept.
    fn identity(&self, part: &Part, text: &str) -> Ruling {
        let of = part.source.to_string();
        let Some(name) = self.turn.orchestrator() else {
            return (
                Violation(ForeignThread),
                format!("{of}: its session is no orchestrator's"),
            );
        };
        let own = format!("orchestrator/{}/", name.1.user().map_or("org", UserId::as_str));
        if !of.starts_with(&own) {
            return (Violation(ForeignThread), format!("{of} is of another orchestrator"));
        }
        match self.sources.identities.get(&name) {
            None => (Unproven(Retention), format!("{of}: its person was removed")),
            Some(identity) if identity_source(identity) != of => (
                Unproven(Changed),
                format!("{of}: its orchestrator has another identity now"),
            ),
            Some(identity) => self.rendered(identity_block(identity) == text, &of),
        }
    }

    /// A file of the persona that the turn's session has.
    fn persona(&self, part: &Part, text: &str) -> Ruling {
        let of = part.source.to_string();
        let Some(id) = self.turn.persona_version_id else {
            return (Violation(ForeignThread), format!("{of}: its session has no persona"));
        };
        let Some(persona) = self.sources.personas.get(&id) else {
            return (
                Violation(SourceMissing),
                format!("{of}: the persona of its session is not there"),
            );
        };
        let mut files = persona.files.as_slice().iter();
        match files.find(|file| persona_source(persona, file) == of) {
            Some(file) => self.rendered(persona_block(file).as_deref() == Some(text), &of),
            None => (
                Violation(ForeignThread),
                format!("{of} is not of its session's persona"),
            ),
        }
    }

    /// A version of the context of the turn's own task; of a branch, the one that its parent knew.
    fn task_context(&self, part: &Part, text: &str) -> Ruling {
        let of = part.source.to_string();
        let Some((task, version)) = context_named(&of) else {
            return unknown_source();
        };
        if let Some(ruling) = foreign(self.turn, Some(&task), &of) {
            return ruling;
        }
        let known_to = self.branch().map(|branch| branch.base.context_version);
        if known_to.is_some_and(|known| known != Some(version)) {
            return (
                Violation(ForeignThread),
                format!("{of} is not in the base of its branch"),
            );
        }
        let known = self.sources.contexts.get(&(task.to_string(), version));
        match known.map(|known| (known, known.size)) {
            Some((known, Some(size))) => {
                let shown = KnownContext {
                    task: self.turn.task_display.as_ref().unwrap_or(&task),
                    version,
                    body: &known.body,
                    size,
                };
                self.rendered(task_context(&shown) == text, &of)
            }
            Some((known, None)) if version <= known.newest - KEPT => (
                Unproven(Retention),
                format!("{of} was removed: later ones were written"),
            ),
            Some((_, None)) | None => (Violation(SourceMissing), format!("{of} is not there")),
        }
    }

    /// None: version 1 says nothing of it.
    pub(super) fn offer(&self) -> Option<Judged> {
        let offer = self.manifest.tools?;
        let names = self.turn.tools.as_deref().unwrap_or_default();
        let is_same = Offer::of(names.iter().map(String::as_str)) == offer;
        let ruling = match is_same {
            true => proven(),
            false => (
                Unproven(UnknownTemplate),
                "the tools of these names have other schemas now".to_owned(),
            ),
        };
        Some(whole("offer", 0, ruling))
    }
}
