//! The kind of server at a provider's URL: a preset of a provider's settings. It decides how the rounds of a turn are
//! continued and how a call is worded. A setting cannot contradict its preset: [`continued`] refuses an entry that
//! cannot work, and names the correction.

use serde::Deserialize;

use super::settings::{ProviderKind, SettingsError, Thread};

/// `server` of an entry. The default depends on its kind: `generic`, or `openclaw`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Server {
    /// Keeps the conversation under a session key, in `user` and in a header, unless other settings differ.
    Generic,
    /// OpenAI's API.
    OpenAi,
    /// vLLM. Its store is in memory, disabled by default, and loses function calls.
    Vllm,
    /// Ollama. It ignores `previous_response_id`.
    Ollama,
    LmStudio,
    /// An OpenClaw gateway.
    OpenClaw,
}

impl Server {
    /// The name in the settings.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a call carries OpenAI's own fields, and no session key of ours.
    pub(crate) fn has_openai_fields(self) -> bool {
        match self {
            Self::OpenAi | Self::Vllm | Self::Ollama | Self::LmStudio => true,
            Self::Generic | Self::OpenClaw => false,
        }
    }
}

/// How a server finds its stored conversation: `thread_by` of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThreadBy {
    /// By our session key.
    Key,
    /// By the id of the previous response (`previous_response_id`).
    Response,
}

/// How the second and every further call of a turn refers to the calls before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuation {
    /// Only the tool results, under the session key.
    Key,
    /// Only the tool results, with the id of the response that requested them.
    Response,
    /// The turn's own input, and the calls and results of all its rounds, each time.
    Whole,
}

/// The server of an entry, how long it remembers, and how a turn is continued there.
pub(super) fn continued(
    kind: ProviderKind,
    server: Option<Server>,
    thread: Option<Thread>,
    thread_by: Option<ThreadBy>,
) -> Result<(Server, Thread, Continuation), SettingsError> {
    let server = server.unwrap_or(match kind {
        ProviderKind::OpenResponses => Server::Generic,
        ProviderKind::OpenClaw => Server::OpenClaw,
    });
    if (kind == ProviderKind::OpenClaw) != (server == Server::OpenClaw) {
        return Err(SettingsError::ServerOfKind);
    }
    let thread = thread.unwrap_or(match server {
        Server::Generic | Server::OpenClaw => Thread::Durable,
        Server::OpenAi | Server::Vllm | Server::Ollama | Server::LmStudio => Thread::None,
    });
    let continuation = match (server, thread, thread_by) {
        (Server::OpenClaw, Thread::None, _) => return Err(SettingsError::GatewayThread),
        (Server::OpenClaw, _, Some(ThreadBy::Response)) => return Err(SettingsError::GatewayThreadBy),
        (Server::OpenClaw, Thread::Durable | Thread::Process, None | Some(ThreadBy::Key)) => Continuation::Key,
        (_, Thread::None, None) => Continuation::Whole,
        (Server::Vllm | Server::Ollama | Server::LmStudio, ..) => {
            return Err(SettingsError::ServerForgets(server.as_str()));
        }
        (Server::Generic | Server::OpenAi, Thread::None, Some(_)) => return Err(SettingsError::ThreadByWithoutThread),
        (Server::OpenAi, Thread::Durable, None | Some(ThreadBy::Response)) => Continuation::Response,
        (Server::OpenAi, Thread::Process, _) | (Server::OpenAi, _, Some(ThreadBy::Key)) => {
            return Err(SettingsError::OpenAiThread);
        }
        (Server::Generic, Thread::Durable | Thread::Process, Some(ThreadBy::Response)) => Continuation::Response,
        (Server::Generic, Thread::Durable | Thread::Process, None | Some(ThreadBy::Key)) => Continuation::Key,
    };
    Ok((server, thread, continuation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_says_how_a_turn_is_continued() {
        use Continuation::{Key, Response, Whole};
        use ProviderKind::{OpenClaw, OpenResponses};
        let check = |kind, server, thread, by, expected: (Thread, Continuation)| {
            let (_, kept, continuation) = continued(kind, server, thread, by).unwrap();
            assert_eq!((kept, continuation), expected, "{server:?} {thread:?} {by:?}");
        };
        let (durable, process, none) = (Some(Thread::Durable), Some(Thread::Process), Some(Thread::None));
        let (by_key, by_response) = (Some(ThreadBy::Key), Some(ThreadBy::Response));
        for server in [None, Some(Server::Generic)] {
            check(OpenResponses, server, None, None, (Thread::Durable, Key));
            check(OpenResponses, server, process, by_key, (Thread::Process, Key));
            check(OpenResponses, server, None, by_response, (Thread::Durable, Response));
            check(OpenResponses, server, none, None, (Thread::None, Whole));
        }
        for server in [Server::OpenAi, Server::Vllm, Server::Ollama, Server::LmStudio] {
            check(OpenResponses, Some(server), None, None, (Thread::None, Whole));
            check(OpenResponses, Some(server), none, None, (Thread::None, Whole));
        }
        let openai = Some(Server::OpenAi);
        check(OpenResponses, openai, durable, None, (Thread::Durable, Response));
        check(OpenResponses, openai, durable, by_response, (Thread::Durable, Response));
        for server in [None, Some(Server::OpenClaw)] {
            check(OpenClaw, server, None, by_key, (Thread::Durable, Key));
            check(OpenClaw, server, process, None, (Thread::Process, Key));
        }
    }

    #[test]
    fn refuses_what_cannot_work_and_says_what_to_write() {
        use ProviderKind::{OpenClaw, OpenResponses};
        let check = |kind, server, thread, by, says: &str| {
            let error = continued(kind, server, thread, by).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        };
        let (durable, process, none) = (Some(Thread::Durable), Some(Thread::Process), Some(Thread::None));
        let (by_key, by_response) = (Some(ThreadBy::Key), Some(ThreadBy::Response));
        for server in [Server::Vllm, Server::Ollama, Server::LmStudio] {
            let says = format!(
                "server = \"{}\" is sent the whole turn with every call",
                server.as_str()
            );
            for (thread, by) in [
                (durable, None),
                (process, None),
                (None, by_response),
                (none, by_key),
                (durable, by_response),
            ] {
                check(OpenResponses, Some(server), thread, by, &says);
            }
        }
        let openai = Some(Server::OpenAi);
        check(
            OpenResponses,
            openai,
            process,
            None,
            "thread = \"none\", or thread = \"durable\"",
        );
        check(
            OpenResponses,
            openai,
            durable,
            by_key,
            "thread = \"none\", or thread = \"durable\"",
        );
        check(
            OpenResponses,
            openai,
            None,
            by_response,
            "write thread = \"durable\", or leave out thread_by",
        );
        check(
            OpenResponses,
            None,
            none,
            by_key,
            "write thread = \"durable\", or leave out thread_by",
        );
        let together = "server = \"openclaw\" and kind = \"openclaw\" go together";
        check(OpenResponses, Some(Server::OpenClaw), None, None, together);
        check(OpenClaw, Some(Server::Generic), None, None, together);
        check(OpenClaw, openai, None, None, together);
        check(OpenClaw, None, none, None, "thread cannot be none");
        check(OpenClaw, None, None, by_response, "leave out thread_by");
    }
}
