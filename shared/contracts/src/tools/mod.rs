//! The tools that agents may call, declared once: one file a tool, and a line in [`each_tool`](crate::each_tool).
//! Delivery offers them to the provider and builds the policy from them; the tool-gateway checks arguments against the
//! same schemas and runs the tools, in files of the same names; tests cover the whole list.
//!
//! The texts are for models, and pinned by golden files. They name no other tool: a gateway may offer tools under other
//! names.

pub mod answer_question;
pub mod ask_model;
pub mod ask_question;
pub mod attribute_user;
pub mod check_later;
pub mod check_messages;
pub mod create_session;
pub mod create_task;
pub mod forward_to_user;
pub mod generate_media;
pub mod get_session_status;
pub mod list_personas;
pub mod list_sessions;
pub mod list_tasks;
pub mod memory_read;
pub mod memory_write;
pub mod my_tasks;
pub mod no_reply;
pub mod read_media;
pub mod response_request;
pub mod send_message;
pub mod send_to_session;
pub mod subagent_cancel;
pub mod subagent_list;
pub mod subagent_spawn;
pub mod submit_plan;
pub mod task_context_read;
pub mod task_context_write;
pub mod task_history;
pub mod task_message;
pub mod task_status;
pub mod update_task;
pub mod withdraw_question;

use std::{collections::HashMap, sync::LazyLock};

use domain::{ModelKind, ModelKinds, Reachable};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The table: a line a tool, in the order in which models see them. Passes the lines to a macro of the caller's.
#[macro_export]
macro_rules! each_tool {
    ($of:ident) => {
        $of! {
            task_history
            task_status
            task_message
            task_context_read
            task_context_write
            response_request
            check_later
            ask_question
            answer_question
            withdraw_question
            submit_plan
            subagent_spawn
            subagent_list
            subagent_cancel
            list_sessions
            get_session_status
            list_personas
            create_session
            send_to_session
            memory_read
            memory_write
            create_task
            list_tasks
            update_task
            my_tasks
            send_message
            check_messages
            attribute_user
            forward_to_user
            ask_model
            read_media
            generate_media
            no_reply
        }
    };
}

macro_rules! definitions {
    ($($name:ident)+) => {
        /// The names of every tool, in the order in which models see them.
        pub const NAMES: &[&str] = &[$(stringify!($name)),+];

        /// Every tool, in the order in which models see them. Built once: the schemas are many values.
        pub fn all() -> &'static [ToolDefinition] {
            static ALL: LazyLock<Vec<ToolDefinition>> = LazyLock::new(|| vec![$($name::definition()),+]);
            &ALL
        }
    };
}
each_tool!(definitions);

/// Bodies that an agent writes (a message, a request) are at most this long.
pub const BODY_BYTES_MAX: usize = 16 * 1024;

/// Artifacts of one call.
pub const ARTIFACTS_MAX: usize = 8;

/// A tool as a model sees it, and its permissions.
#[derive(Clone, PartialEq, Debug)]
pub struct ToolDefinition {
    pub name: &'static str,
    /// Older names that calls may still use, and that are not offered.
    pub aliases: &'static [&'static str],
    pub description: &'static str,
    /// JSON Schema (2020-12) of the arguments; always an object.
    pub parameters: Value,
    /// The arguments that name an object; `of.field`: a field of the objects in a list. A task is checked against the call's session before the tool runs; any other
    /// object is looked up by the tool, within the caller's account.
    pub ids: &'static [(&'static str, IdOf)],
    pub offered_to: Audience,
    pub effect: ToolEffect,
    pub reach: Reach,
    /// It may move the task in its arguments, and so close sessions, or gives it a session: decides the lock order.
    pub moves_task: bool,
    /// It shares its transaction with no other call.
    pub runs_alone: bool,
    /// It may be called where a plan is required and none is approved.
    pub before_plan: bool,
    /// Where it is served besides `/agent/tools/{name}`.
    pub short_form: Option<&'static str>,
    /// The tool's items in the policy, by section: whole list items, in which `{name}` stands for a tool's name as the
    /// model sees it. A change is a new version of the profile.
    pub wording: &'static [(PolicySection, &'static str)],
}

/// The kind of object that an argument names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdOf {
    Task,
    /// A task of the caller's board, which the tool looks up.
    OnBoard,
    /// By slug or by id.
    Agent,
    Question,
    Branch,
    Artifact,
    /// By its id, or by the key of any of its generations.
    Session,
    /// By its slug or id.
    Persona,
    Mail,
    /// A person, an orchestrator, an agent or a session, by an address.
    Recipient,
}

/// The turns that a tool is offered in, and in which calls to it are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    Everyone,
    /// Turns of agents, and not of orchestrators.
    Worker,
    /// Turns of orchestrators, of people's and the account's, and of their guests.
    Orchestrator,
    /// Turns of orchestrators, and not of their guests.
    Own,
    /// Turns of the account's orchestrator.
    Account,
    /// Turns of accounts with members.
    Mail,
    /// Turns of orchestrators, and those that are about a task in accounts with members.
    Board,
    /// Of these, those that are about a task.
    OnBoard,
    /// Turns that are about a task.
    WithTask,
    /// Turns on the account's coordinator task.
    Coordinator,
    /// Turns that a question has woken.
    Asked,
    /// Turns about a task that may give parts of their work to others.
    Spawner,
    /// Turns that are about a task, where the operator has named a model of this kind.
    Model(ModelKind),
}

/// What a call changes besides its own record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolEffect {
    /// It neither changes nor reads anything.
    None,
    Read,
    /// It writes to Signalbox.
    Write,
    /// It calls somebody outside of Signalbox: an external call, which neither waits for other calls of its turn nor holds them up.
    External,
}

/// The tasks that a call may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The task of its turn.
    OwnTask,
    /// In the coordinator's chat, and for an orchestrator, any task of the account; elsewhere the turn's task.
    Account,
    /// Those that the tool lets the caller have: of an orchestrator's board, or given to a session.
    Board,
    /// None: what is sent leaves Signalbox.
    Outside,
}

/// A section of the policy with items of tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicySection {
    Scope,
    Reporting,
    /// For the coordinator only.
    Coordinator,
    /// For orchestrators only.
    Orchestrator,
}

/// The context that decides which tools a turn is offered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OfferContext {
    /// The turn is about a task.
    pub has_task: bool,
    /// That task is the account's coordinator task.
    pub is_coordinator: bool,
    /// The turn's notification asks its agent.
    pub is_asked: bool,
    /// The turn is an orchestrator's, also where it answers a guest.
    pub is_orchestrator: bool,
    /// The turn is the account's orchestrator's.
    pub is_account: bool,
    /// What the guest whom the turn answers may ask.
    pub guest: Option<Reachable>,
    /// Its account has members, to whom agents may write.
    pub has_mail: bool,
    /// The turn works for another one, in a branch: it reads the task and writes nothing of it.
    pub is_branch: bool,
    /// The turn is about a task, and may have branches of its own.
    pub may_branch: bool,
    /// The kinds of models that the account may use.
    pub models: ModelKinds,
}

impl ToolDefinition {
    /// The argument that names a task.
    pub fn task_argument(&self) -> Option<&'static str> {
        let mut tasks = self.ids.iter().filter(|(_, of)| *of == IdOf::Task);
        tasks.next().map(|(argument, _)| *argument)
    }

    /// The kind of object that an argument names, if any.
    pub fn id_of(&self, argument: &str) -> Option<IdOf> {
        let mut ids = self.ids.iter();
        ids.find(|(name, _)| *name == argument).map(|(_, of)| *of)
    }
}

impl Audience {
    pub fn includes(self, context: OfferContext) -> bool {
        match self {
            Self::Everyone => true,
            Self::Worker => !context.is_orchestrator,
            Self::Orchestrator => context.is_orchestrator,
            Self::Own => context.is_orchestrator && context.guest.is_none(),
            Self::Account => context.is_account,
            Self::Mail => context.has_mail,
            Self::Board => context.is_orchestrator || Self::OnBoard.includes(context),
            Self::OnBoard => context.has_mail && context.has_task && !context.is_orchestrator && !context.is_branch,
            Self::WithTask => context.has_task,
            Self::Coordinator => context.is_coordinator,
            Self::Asked => context.is_asked,
            Self::Spawner => context.may_branch,
            Self::Model(kind) => context.has_task && context.models.has(kind),
        }
    }
}

impl ToolDefinition {
    /// A branch's result goes to its parent: it writes nothing itself but branches of its own, and the files that models bring. A guest has
    /// an orchestrator's tools and mail alone, of those what the owner's reach is for.
    pub fn is_offered(&self, context: OfferContext) -> bool {
        if let Some(reach) = context.guest
            && self.least_reach().is_none_or(|least| reach < least)
        {
            return false;
        }
        let is_write = match self.effect {
            ToolEffect::Write => true,
            ToolEffect::None | ToolEffect::Read | ToolEffect::External => false,
        };
        let is_kept = context.is_branch && is_write && self.offered_to != Audience::Spawner;
        self.offered_to.includes(context) && !is_kept
    }
}

impl ToolDefinition {
    /// From which reach on guests have it: who may only ask changes nothing. None: they never have it.
    fn least_reach(&self) -> Option<Reachable> {
        let changes = match self.effect {
            ToolEffect::None | ToolEffect::Read => Reachable::Answer,
            ToolEffect::Write | ToolEffect::External => Reachable::Delegate,
        };
        match self.offered_to {
            Audience::Mail => Some(Reachable::Answer),
            Audience::Everyone => Some(changes).filter(|_| self.effect == ToolEffect::None),
            Audience::Orchestrator | Audience::Board => Some(changes),
            Audience::Own
            | Audience::Account
            | Audience::Worker
            | Audience::OnBoard
            | Audience::WithTask
            | Audience::Coordinator
            | Audience::Asked
            | Audience::Spawner
            | Audience::Model(_) => None,
        }
    }
}

/// SHA-256 of a tool's schema: what is approved for one schema is not approved for another.
pub fn schema_hash(tool: &str) -> &'static [u8] {
    static HASHES: LazyLock<HashMap<&'static str, Vec<u8>>> = LazyLock::new(|| {
        let hash = |tool: &ToolDefinition| (tool.name, Sha256::digest(tool.parameters.to_string()).to_vec());
        all().iter().map(hash).collect()
    });
    HASHES.get(tool).map_or(&[], Vec::as_slice)
}

/// The turns that a tool is offered in; none: there is no such tool.
pub fn offered_to(tool: &str) -> Option<Audience> {
    static AUDIENCES: LazyLock<HashMap<&'static str, Audience>> =
        LazyLock::new(|| all().iter().map(|tool| (tool.name, tool.offered_to)).collect());
    AUDIENCES.get(tool).copied()
}

/// Whether calls of the tool are external ones.
pub fn is_external(tool: &str) -> bool {
    static EXTERNAL: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let external = all().iter().filter(|tool| tool.effect == ToolEffect::External);
        external.map(|tool| tool.name).collect()
    });
    EXTERNAL.contains(&tool)
}

/// Whether a call waits for an earlier one of its answer. An external call waits for none, and is waited for by those only that may
/// move the task, and so end the session of the answer.
pub fn waits_for(tool: &str, earlier: &str) -> bool {
    static MOVING: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let moving = all().iter().filter(|tool| tool.moves_task);
        moving.map(|tool| tool.name).collect()
    });
    !is_external(tool) && (!is_external(earlier) || MOVING.contains(&tool))
}

/// The tools to offer; the same context gives the same list, byte for byte.
pub fn offered(context: OfferContext) -> Vec<&'static ToolDefinition> {
    all().iter().filter(|tool| tool.is_offered(context)).collect()
}

/// The argument that names a task.
fn task_id() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 64,
        "description": "The id of the task, as given in the notification, for example PROJ-7.",
    })
}

/// The request to a model.
fn model_request(about: &str) -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": BODY_BYTES_MAX,
        "description": format!("{about} At most 16 KiB."),
    })
}

/// The argument that names a model.
fn model() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 64,
        "description": "The name of the model, if you were told to use another one than the default.",
    })
}

/// Artifacts of the task.
fn artifacts(at_least: usize) -> Value {
    json!({
        "type": "array",
        "minItems": at_least,
        "maxItems": ARTIFACTS_MAX,
        "items": {"type": "string", "minLength": 1, "maxLength": 64},
        "description": "The ids of artifacts (files) of your task that the model is to be shown, in this order. At most 8.",
    })
}

/// The argument that names a session.
fn session_id() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 256,
        "description": "The id or the key of the session, as it was given to you.",
    })
}

/// The argument that names a question.
fn question_id() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 64,
        "description": "The id of the question, as it was given to you.",
    })
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn what_models_read_is_pinned() {
        let texts: Vec<Value> = all()
            .iter()
            .map(|tool| {
                json!({
                    "name": tool.name,
                    "aliases": tool.aliases,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "offered_to": format!("{:?}", tool.offered_to),
                    "ids": tool.ids.iter().map(|(argument, of)| (*argument, format!("{of:?}"))).collect::<Vec<_>>(),
                    "effect": format!("{:?}", tool.effect),
                    "reach": format!("{:?}", tool.reach),
                    "moves_task": tool.moves_task,
                    "runs_alone": tool.runs_alone,
                    "before_plan": tool.before_plan,
                    "short_form": tool.short_form,
                    "wording": tool.wording.iter().map(|(section, text)| (format!("{section:?}"), *text)).collect::<Vec<_>>(),
                })
            })
            .collect();
        insta::assert_json_snapshot!("tools", texts);
    }

    #[test]
    fn each_turn_is_offered_what_it_can_use() {
        use Audience::{
            Account, Asked, Board, Coordinator, Everyone, Mail, Model, OnBoard, Orchestrator, Own, Spawner, WithTask,
            Worker,
        };
        use ModelKind::{Images, OpenResponses};
        let check = |context: OfferContext, expected: &[Audience]| {
            for audience in [
                Everyone,
                Worker,
                Orchestrator,
                Own,
                Account,
                Mail,
                Board,
                OnBoard,
                WithTask,
                Coordinator,
                Asked,
                Spawner,
                Model(OpenResponses),
                Model(Images),
            ] {
                assert_eq!(
                    audience.includes(context),
                    expected.contains(&audience),
                    "{audience:?} {context:?}"
                );
            }
            let tools = all();
            let expected = tools.iter().filter(|tool| expected.contains(&tool.offered_to));
            assert!(offered(context).into_iter().eq(expected), "{context:?}");
        };
        let taskless = OfferContext {
            has_task: false,
            is_coordinator: false,
            is_asked: false,
            is_orchestrator: false,
            is_account: false,
            guest: None,
            has_mail: false,
            is_branch: false,
            may_branch: false,
            models: ModelKinds::default(),
        };
        let task = OfferContext {
            has_task: true,
            may_branch: true,
            ..taskless
        };
        check(task, &[Everyone, Worker, WithTask, Spawner]);
        let coordinator = OfferContext {
            is_coordinator: true,
            ..task
        };
        check(coordinator, &[Everyone, Worker, WithTask, Coordinator, Spawner]);
        check(taskless, &[Everyone, Worker]);
        let orchestrator = OfferContext {
            is_orchestrator: true,
            ..taskless
        };
        check(orchestrator, &[Everyone, Orchestrator, Own, Board]);
        let account = OfferContext {
            is_account: true,
            ..orchestrator
        };
        check(account, &[Everyone, Orchestrator, Own, Account, Board]);
        let with_mail = OfferContext {
            has_mail: true,
            ..taskless
        };
        check(with_mail, &[Everyone, Worker, Mail]);
        let on_board = OfferContext { has_mail: true, ..task };
        check(on_board, &[Everyone, Worker, Mail, Board, OnBoard, WithTask, Spawner]);
        let asked = OfferContext { is_asked: true, ..task };
        check(asked, &[Everyone, Worker, WithTask, Asked, Spawner]);
        let deep = OfferContext {
            may_branch: false,
            ..task
        };
        check(deep, &[Everyone, Worker, WithTask]);
        let with = |models: &[ModelKind], context: OfferContext| OfferContext {
            models: models.iter().copied().collect(),
            ..context
        };
        check(
            with(&[OpenResponses], deep),
            &[Everyone, Worker, WithTask, Model(OpenResponses)],
        );
        check(with(&[Images], deep), &[Everyone, Worker, WithTask, Model(Images)]);
        // What a model is told is the context of a task.
        check(with(&[OpenResponses, Images], taskless), &[Everyone, Worker]);
    }

    #[test]
    fn a_branch_reads_and_asks_models_and_writes_nothing() {
        let names = |may_branch| {
            let context = OfferContext {
                has_task: true,
                is_coordinator: false,
                is_asked: false,
                is_orchestrator: false,
                is_account: false,
                guest: None,
                has_mail: true,
                is_branch: true,
                may_branch,
                models: ModelKind::ALL.iter().copied().collect(),
            };
            let tools = offered(context).into_iter();
            tools.map(|tool| tool.name).collect::<Vec<_>>()
        };
        let kept = "task_history task_context_read ask_model read_media generate_media no_reply";
        assert_eq!(names(false).join(" "), kept);
        let own = "subagent_spawn subagent_list subagent_cancel";
        let with_own = kept.replace(" ask_model", &format!(" {own} ask_model"));
        assert_eq!(names(true).join(" "), with_own);
    }

    #[test]
    fn a_guest_has_what_the_owners_reach_is_for() {
        let names = |reach| {
            let context = OfferContext {
                has_task: false,
                is_coordinator: false,
                is_asked: true,
                is_orchestrator: true,
                is_account: false,
                guest: Some(reach),
                has_mail: true,
                is_branch: false,
                may_branch: false,
                models: ModelKind::ALL.iter().copied().collect(),
            };
            let tools = offered(context).into_iter();
            tools.map(|tool| tool.name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(Reachable::Off), "");
        let asks = "list_sessions get_session_status list_personas list_tasks send_message check_messages no_reply";
        assert_eq!(names(Reachable::Answer), asks);
        let delegates = "list_sessions get_session_status list_personas create_session send_to_session memory_read create_task \
                         list_tasks update_task send_message check_messages no_reply";
        assert_eq!(names(Reachable::Delegate), delegates);
    }

    #[test]
    fn external_calls_hold_up_only_what_may_end_the_task() {
        let check = |tool, earlier, expected| assert_eq!(waits_for(tool, earlier), expected, "{tool} {earlier}");
        check("task_message", "task_history", true);
        check("task_message", "ask_model", false);
        check("task_status", "ask_model", true);
        check("submit_plan", "generate_media", true);
        check("ask_model", "task_message", false);
        check("ask_model", "task_status", false);
        check("ask_model", "read_media", false);
        check("invented", "task_message", true);
        check("invented", "ask_model", false);
    }

    #[test]
    fn the_names_are_those_of_the_definitions() {
        assert!(all().iter().map(|tool| tool.name).eq(NAMES.iter().copied()));
    }

    /// Longer than any name. A longer text is no name.
    const NAME_CHARS_MAX: u64 = domain::mail::TO_CHARACTERS_MAX as u64;

    /// Short texts that name nothing of an account.
    const WORDS: [&str; 6] = ["title", "options", "model", "name", "size", "key"];

    /// `tests/it/crossing` tries names of other accounts in every declared argument, so that none may be forgotten: a
    /// text as short as a name counts as one, unless it is a word of a list or a time.
    #[test]
    fn every_argument_that_can_name_something_is_declared() {
        for tool in all() {
            let properties = tool.parameters["properties"].as_object().unwrap();
            for (argument, schema) in properties {
                let of = format!("{}.{argument}", tool.name);
                let value = if schema["type"] == "array" {
                    &schema["items"]
                } else {
                    schema
                };
                let kind = value["type"].as_str().unwrap();
                assert!(
                    ["string", "integer", "boolean", "object"].contains(&kind),
                    "{of} is {kind}"
                );
                let is_short = value["maxLength"].as_u64().is_none_or(|max| max <= NAME_CHARS_MAX);
                let is_word =
                    WORDS.contains(&argument.as_str()) || !value["enum"].is_null() || !value["format"].is_null();
                let is_name = kind == "string" && is_short && !is_word;
                assert_eq!(tool.id_of(argument).is_some(), is_name, "{of}");
            }
            let is_argument = |argument: &str| match argument.split_once('.') {
                None => properties.contains_key(argument),
                Some((list, field)) => !properties[list]["items"]["properties"][field].is_null(),
            };
            assert!(tool.ids.iter().all(|(argument, _)| is_argument(argument)));
            let tasks = tool.ids.iter().filter(|(_, of)| *of == IdOf::Task);
            assert!(tasks.count() < 2, "{}: one task is held against the session", tool.name);
        }
    }

    #[test]
    fn schemas_compile_and_say_no_to_what_they_do_not_know() {
        let names = all()
            .iter()
            .flat_map(|tool| tool.aliases.iter().copied().chain([tool.name]))
            .map(str::to_owned)
            .collect::<Vec<_>>();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[at + 1..].contains(name), "{name} twice");
            // The strictest form that providers require of a function's name.
            assert!(
                name.len() <= 64 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{name}"
            );
        }
        for tool in all() {
            let schema =
                jsonschema::validator_for(&tool.parameters).unwrap_or_else(|error| panic!("{}: {error}", tool.name));
            assert!(!schema.is_valid(&json!({"surprise": 1})), "{}", tool.name);
            assert!(!schema.is_valid(&json!([])), "{}", tool.name);
            assert_eq!(tool.parameters["additionalProperties"], json!(false), "{}", tool.name);
            for (name, property) in tool.parameters["properties"].as_object().unwrap() {
                assert!(property["description"].is_string(), "{}.{name}", tool.name);
            }
            for other in all() {
                assert!(
                    !tool.description.contains(other.name),
                    "{} speaks of {}",
                    tool.name,
                    other.name
                );
            }
        }
    }
}
