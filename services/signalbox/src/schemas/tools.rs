//! `schemas/tools.md`: the tools that agents may call, printed from their definitions.

use contracts::tools::{self, Audience, Reach, ToolDefinition, ToolEffect};
use domain::ModelKind;

pub(super) fn text() -> String {
    let mut text = String::from(
        "# Tools\n\nGenerated from `contracts::tools`. A task that a call names is its turn's own; a tool that reaches the account \
         takes any task of it in the\ncoordinator's chat.\n\n| tool | older names | offered in | effect | reach | arguments |\n\
         |---|---|---|---|---|---|\n",
    );
    for tool in tools::all() {
        let (offered, effect, reach) = words(tool);
        text += &format!(
            "| `{}` | {} | {offered} | {effect} | {reach} | {} |\n",
            tool.name,
            list(tool.aliases.iter().map(|alias| format!("`{alias}`"))),
            list(arguments(tool)),
        );
    }
    text.push_str("\n## As models read them\n");
    for tool in tools::all() {
        text += &format!("\n`{}`: {}\n", tool.name, tool.description);
    }
    text
}

fn words(tool: &ToolDefinition) -> (&'static str, &'static str, &'static str) {
    let offered = match tool.offered_to {
        Audience::Everyone => "every turn",
        Audience::Worker => "turns of agents, and not of orchestrators",
        Audience::Orchestrator => "turns of orchestrators, and of guests as far as the owner lets them",
        Audience::Own => "turns of orchestrators, and not of guests",
        Audience::Account => "turns of the account's orchestrator",
        Audience::WithTask => "turns with a task",
        Audience::Coordinator => "turns in the coordinator's chat",
        Audience::Mail => "turns of accounts with members",
        Audience::Board => "turns of orchestrators, and those with a task in accounts with members",
        Audience::OnBoard => "turns with a task in accounts with members",
        Audience::Asked => "turns that a question has woken",
        Audience::Spawner => "turns with a task, where branches may go deeper",
        Audience::Model(ModelKind::OpenResponses) => "turns with a task, if there is a model that answers in text",
        Audience::Model(ModelKind::Images) => "turns with a task, if there is a model that makes images",
    };
    let effect = match tool.effect {
        ToolEffect::None => "none",
        ToolEffect::Read => "read",
        ToolEffect::Write => "write",
        ToolEffect::External => "external",
    };
    let reach = match tool.reach {
        Reach::OwnTask => "own task",
        Reach::Account => "account",
        Reach::Board => "board",
        Reach::Outside => "outside",
    };
    (offered, effect, reach)
}

/// The arguments of a tool with their types; `?` marks optional ones.
fn arguments(tool: &ToolDefinition) -> impl Iterator<Item = String> {
    let required = tool.parameters["required"].as_array();
    let properties = tool.parameters["properties"].as_object();
    properties.into_iter().flatten().map(move |(name, _)| {
        let is_required = required.is_some_and(|required| required.iter().any(|one| one == name));
        let of = tool.id_of(name).map(|of| format!(" ({of:?})").to_lowercase());
        let optional = if is_required { "" } else { "?" };
        format!("`{name}`{optional}{}", of.unwrap_or_default())
    })
}

fn list(parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() {
        "–".to_owned()
    } else {
        parts.join(", ")
    }
}
