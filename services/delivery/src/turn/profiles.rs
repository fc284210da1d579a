//! Caches instructions: they depend on an agent and not on the time, and every turn of the agent sends the same ones.
//! The cached facts are compared with the current ones, so a changed name, role or tool name rebuilds the instructions.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use domain::{AccountId, AgentSlug, PersonaVersionId, TaskId, identity::IdentityText};
use prompt::{InstructionFacts, Manifest, Profile, ToolNames, instructions, manifest::Part};

/// Maximum number of cached agents. The cache is cleared when it is full.
const KEPT_MAX: usize = 1_024;

/// Maximum size of all cached texts together: with personas one may have some 100 KiB.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// The agent, the kind of turn, and the persona, of which a version never changes.
type Key = (AccountId, AgentSlug, bool, bool, bool, Option<(PersonaVersionId, bool)>);

#[derive(Debug, Default)]
pub struct Profiles(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    kept: HashMap<Key, Kept>,
    /// Of the texts.
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    name: String,
    role: String,
    tools: ToolNames,
    /// A version of a task's context never changes.
    context: Option<(TaskId, i32)>,
    identity: Option<IdentityText>,
    profile: Profile,
    parts: Vec<Part>,
}

impl Profiles {
    /// Returns the same as [`instructions`].
    pub fn instructions(&self, facts: &InstructionFacts<'_>, manifest: &mut Manifest) -> Profile {
        let key = (
            facts.account.clone(),
            facts.agent_slug.clone(),
            facts.has_task,
            facts.is_coordinator,
            facts.is_branch,
            facts.persona.map(|(persona, in_review)| (persona.id, in_review)),
        );
        if let Some(kept) = self.cache().kept.get(&key).filter(|kept| kept.is_for(facts)) {
            manifest.parts.extend(kept.parts.iter().cloned());
            return kept.profile.clone();
        }
        let before = manifest.parts.len();
        let profile = instructions(facts, manifest);
        let mut cache = self.cache();
        if cache.kept.len() >= KEPT_MAX || cache.bytes >= KEPT_BYTES_MAX {
            *cache = Cache::default();
        }
        cache.bytes += profile.text.len();
        let made = Kept {
            name: facts.agent_name.to_owned(),
            role: facts.agent_role.to_owned(),
            tools: facts.tools.clone(),
            context: facts.task_context.map(|known| (known.task.clone(), known.version)),
            identity: facts.orchestrator.cloned(),
            profile: profile.clone(),
            parts: manifest.parts[before..].to_vec(),
        };
        if let Some(replaced) = cache.kept.insert(key, made) {
            cache.bytes -= replaced.profile.text.len();
        }
        profile
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn is_for(&self, facts: &InstructionFacts<'_>) -> bool {
        let context = facts.task_context.map(|known| (known.task, known.version));
        self.name == facts.agent_name
            && self.role == facts.agent_role
            && self.tools == *facts.tools
            && self.identity.as_ref() == facts.orchestrator
            && self.context.as_ref().map(|(task, version)| (task, *version)) == context
    }
}

#[cfg(test)]
mod tests {
    use domain::{ContextSize, InstructionLayout};
    use prompt::KnownContext;

    use super::*;

    #[test]
    fn kept_instructions_are_the_ones_that_would_be_made() {
        let names = |prefix: &str| ToolNames::new(|name| format!("{prefix}{name}"));
        let accounts = ["acme", "other"].map(|account| AccountId::parse(account).unwrap());
        let slugs = ["coder", "planner"].map(|slug| AgentSlug::parse(slug).unwrap());
        let tools = ["", "signalbox_"].map(names);
        let task = TaskId::parse("PROJ-7").unwrap();
        let known = KnownContext {
            task: &task,
            version: 2,
            body: "What is built.",
            size: ContextSize {
                characters: 14,
                cut_characters: 0,
            },
        };
        let profiles = Profiles::default();
        // Twice: the second time every entry is cached, or was just replaced.
        for _ in 0..2 {
            for n in 0..256 {
                let bit = |place: u32| (n >> place) & 1;
                let facts = InstructionFacts {
                    account: &accounts[bit(0)],
                    agent_slug: &slugs[bit(1)],
                    agent_name: ["Coder", "Planner"][bit(2)],
                    agent_role: ["", "You plan."][bit(3)],
                    has_task: bit(4) == 1,
                    is_coordinator: bit(4) == 1 && bit(1) == 1,
                    is_branch: bit(6) == 1,
                    orchestrator: None,
                    persona: None,
                    task_context: [None, Some(known)][bit(7)],
                    tools: &tools[bit(5)],
                };
                let (mut expected, mut manifest) = (
                    Manifest::new(InstructionLayout::Layered),
                    Manifest::new(InstructionLayout::Layered),
                );
                let made = instructions(&facts, &mut expected);
                for _ in 0..2 {
                    manifest.parts.clear();
                    assert_eq!(profiles.instructions(&facts, &mut manifest), made, "{facts:?}");
                    assert_eq!(manifest, expected, "{facts:?}");
                }
            }
        }
    }
}
