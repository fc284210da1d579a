//! `generate_media`: an external model makes images, which are kept as artifacts of the task (X3).

use domain::ModelKind;
use serde_json::json;

use super::{Audience, Reach, ToolDefinition, ToolEffect, model, model_request};

/// Images of one call.
pub const COUNT_MAX: usize = 4;

const DESCRIPTION: &str = "\
Have a model make images: a diagram, a mock-up, an illustration. The model is told the context of your task, and then your request; \
say what is to be seen, in which style, and what must not be there. Each image is kept as an artifact of your task; the result gives their \
ids, which others can open and you can have looked at. Making images costs money: ask for what is needed, once.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "generate_media",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "request": model_request("What the images are to show."),
                "name": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 200,
                    "description": "The name of the file, without its ending. \"image\" unless given.",
                },
                "size": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 11,
                    "description": "Width and height, as in 1024x1024. As the model chooses unless given.",
                },
                "count": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": COUNT_MAX,
                    "description": "How many images. 1 unless given.",
                },
                "model": model(),
            },
            "required": ["request"],
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::Model(ModelKind::Images),
        effect: ToolEffect::External,
        reach: Reach::Outside,
        moves_task: false,
        runs_alone: true,
        before_plan: false,
        short_form: None,
        wording: &[],
    }
}
