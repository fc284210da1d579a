//! `memory_read`: what an orchestrator has written down in earlier turns (O9).

use domain::{MemoryCategory, decay::QUERY_CHARACTERS_MAX};
use serde_json::json;

use super::{Audience, PolicySection, Reach, ToolDefinition, ToolEffect};

/// Memories of one answer, and bytes of their texts.
pub const READ_MAX: usize = 50;
pub const READ_DEFAULT: usize = 10;
pub const BYTES_MAX: usize = 32 * 1024;

const DESCRIPTION: &str = "\
Look up what you have remembered in earlier turns, by words or by category; without either, what is most relevant. What you look up fades \
later. `matched` says whether anything has one of the words: if nothing has, the most relevant memories are given. Memories are notes, \
and may be out of date.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "memory_read",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": QUERY_CHARACTERS_MAX,
                    "description": "Optional. Words, or their beginnings of three letters and more; any of them is enough.",
                },
                "category": {
                    "type": "string",
                    "enum": categories(),
                    "description": "Optional. Only memories of this category.",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": READ_MAX,
                    "description": "Optional. At most so many, 10 unless given.",
                },
            },
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::Orchestrator,
        // What is read fades later.
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Orchestrator,
            "Before you choose who works on something, look with `{memory_read}` whether you know how it is to be done.",
        )],
    }
}

pub(super) fn categories() -> Vec<&'static str> {
    MemoryCategory::ALL.iter().map(|category| category.as_str()).collect()
}
