//! The instructions: a versioned template, filled in. A change of a template is a new version, under a new file name.

use std::sync::Arc;

use contracts::quote;
use domain::{AccountId, AgentSlug};

use super::manifest::{Manifest, sha256};

/// The version of the templates below.
const VERSION: &str = "2";
const PROFILE: &str = include_str!("profile_2.md");
const COORDINATOR: &str = include_str!("coordinator_2.md");
const ROLE: &str = include_str!("role_2.md");
const TASKLESS: &str = include_str!("taskless_2.md");

/// An agent's own words about its role are part of the instructions, up to this.
const ROLE_BYTES_MAX: usize = 16 * 1024;
const NAME_BYTES_MAX: usize = 128;

/// Everything that the instructions depend on: no clock, no notification, so that they are the same turn after turn.
#[derive(Clone, Debug)]
pub struct InstructionFacts<'a> {
    pub account: &'a AccountId,
    pub agent_slug: &'a AgentSlug,
    pub agent_name: &'a str,
    pub agent_role: &'a str,
    pub has_task: bool,
    /// The session is the account's coordinator chat (S6).
    pub is_coordinator: bool,
    pub tools: &'a ToolNames,
}

/// Tools as the model sees their names, which some providers change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolNames {
    pub task_history: String,
    pub task_status: String,
    pub task_message: String,
    pub response_request: String,
    pub no_reply: String,
}

/// Instructions as sent, with what stands on the turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    pub version: &'static str,
    pub hash: String,
    pub text: Arc<str>,
}

/// Fills the templates in and enters the parts into the manifest.
pub fn instructions(facts: &InstructionFacts<'_>, manifest: &mut Manifest) -> Profile {
    let mut text = String::new();
    let mut add = |part: &str, source: String, piece: String, cut: usize| {
        manifest.add("instructions", part, source, &piece, cut);
        text.push_str(&piece);
    };
    add("policy", format!("profile/{VERSION}"), fill(PROFILE, facts), 0);
    if facts.is_coordinator {
        add(
            "coordinator",
            format!("profile/{VERSION}/coordinator"),
            fill(COORDINATOR, facts),
            0,
        );
    }
    if !facts.has_task {
        add(
            "taskless",
            format!("profile/{VERSION}/taskless"),
            fill(TASKLESS, facts),
            0,
        );
    }
    if !facts.agent_role.trim().is_empty() {
        let role = quote::inert(facts.agent_role.trim());
        let shown = &role[..role.floor_char_boundary(ROLE_BYTES_MAX)];
        add(
            "role",
            format!("agent/{}", facts.agent_slug),
            ROLE.replace("{role}", shown),
            role.len() - shown.len(),
        );
    }
    Profile {
        version: VERSION,
        hash: sha256(&text),
        text: text.into(),
    }
}

/// Names are put in last and once: a name that looks like a placeholder is not filled in again.
fn fill(template: &str, facts: &InstructionFacts<'_>) -> String {
    let values = [
        ("{task_history}", facts.tools.task_history.clone()),
        ("{task_status}", facts.tools.task_status.clone()),
        ("{task_message}", facts.tools.task_message.clone()),
        ("{response_request}", facts.tools.response_request.clone()),
        ("{no_reply}", facts.tools.no_reply.clone()),
        ("{account}", facts.account.to_string()),
        ("{agent_slug}", facts.agent_slug.to_string()),
        ("{agent_name}", quote::line(facts.agent_name, NAME_BYTES_MAX).0),
    ];
    values
        .iter()
        .fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}
