//! `attribute_user`: the account's orchestrator looks up which person somebody outside is (O8).

use serde_json::json;

use super::{Audience, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect};

/// By what people are known outside. Channels add theirs.
pub const PROVIDERS: [&str; 1] = ["email"];

const DESCRIPTION: &str = "\
Find out which person of the account somebody is whom you know by a name from outside, such as an e-mail address. It says nothing of \
people who are not in the account; do not guess then.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "attribute_user",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "provider": {
                    "type": "string",
                    "enum": PROVIDERS,
                    "description": "Where the name is from. email: it is an e-mail address.",
                },
                "external_id": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 254,
                    "description": "The name, as it is known there.",
                },
            },
            "required": ["provider", "external_id"],
            "additionalProperties": false,
        }),
        ids: &[("external_id", IdOf::Recipient)],
        offered_to: Audience::Account,
        effect: ToolEffect::Read,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Orchestrator,
            "Whose somebody's name from outside is, `{attribute_user}` says: do not guess whom a person is.",
        )],
    }
}
