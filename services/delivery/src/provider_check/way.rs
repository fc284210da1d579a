//! The ways to continue a turn that a check tries, and their settings.

use crate::providers::{Continuation, ProviderKind, ProviderSettings, Server, Thread};

/// A way to continue a turn, in terms of the settings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) server: Server,
    pub(super) thread: Thread,
    pub(super) continuation: Continuation,
}

impl Way {
    pub(super) fn of(settings: &ProviderSettings) -> Way {
        Way {
            server: settings.server,
            thread: settings.thread,
            continuation: settings.continuation,
        }
    }

    /// All distinct ways, the preferred one first.
    pub(super) fn all(kind: ProviderKind) -> Vec<Way> {
        let way = |server, thread, continuation| Way {
            server,
            thread,
            continuation,
        };
        match kind {
            ProviderKind::OpenClaw => vec![way(Server::OpenClaw, Thread::Durable, Continuation::Key)],
            ProviderKind::OpenResponses => vec![
                way(Server::Generic, Thread::Durable, Continuation::Key),
                way(Server::OpenAi, Thread::None, Continuation::Whole),
                way(Server::Generic, Thread::Durable, Continuation::Response),
                way(Server::Generic, Thread::None, Continuation::Whole),
            ],
        }
    }

    /// Whether the calls of both ways are the same.
    pub(super) fn is_like(self, other: Way) -> bool {
        self.continuation == other.continuation && self.has_words_of(other)
    }

    pub(super) fn has_words_of(self, other: Way) -> bool {
        self.server.has_openai_fields() == other.server.has_openai_fields()
    }

    pub(super) fn settings(self, settings: &ProviderSettings) -> ProviderSettings {
        ProviderSettings {
            server: self.server,
            thread: self.thread,
            continuation: self.continuation,
            ..settings.clone()
        }
    }

    pub(super) fn lines(self, kind: ProviderKind) -> Vec<String> {
        let thread = match (self.server, self.thread) {
            (Server::OpenAi, Thread::Durable) => Some("durable"),
            (Server::Generic, Thread::None) => Some("none"),
            (_, Thread::Process) => Some("process"),
            (_, Thread::Durable | Thread::None) => None, // the default
        };
        let thread_by = self.server == Server::Generic && self.continuation == Continuation::Response;
        let lines = [
            Some(format!("kind = \"{}\"", kind.as_str())),
            Some(format!("server = \"{}\"", self.server.as_str())),
            thread.map(|thread| format!("thread = \"{thread}\"")),
            thread_by.then(|| "thread_by = \"response\"".to_owned()),
        ];
        lines.into_iter().flatten().collect()
    }
}
