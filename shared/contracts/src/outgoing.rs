//! A message to be published. Handlers make it and the outbox stores it, so it depends on neither.

use domain::{AccountId, TaskId};

use crate::{
    Headers, Root, Timestamp, TraceContext, header,
    message::{Addressed, Message},
    subject::NO_ACCOUNT,
};

/// Subject, headers and payload. Its id (`Nats-Msg-Id`) is always set, and the same input gives the same id.
#[derive(Clone, PartialEq, Debug)]
pub struct Outgoing {
    pub subject: String,
    pub headers: Headers,
    pub payload: Vec<u8>,
}

impl AsRef<Outgoing> for Outgoing {
    fn as_ref(&self) -> &Outgoing {
        self
    }
}

/// The origin of a message: its cause, its number of hops, its trace.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Origin {
    /// Id of the message or turn that caused this one.
    pub cause: Option<String>,
    pub hops: u16,
    pub trace: TraceContext,
}

impl Outgoing {
    /// Builds a message with every header of `crate::header`, CloudEvents binary mode included.
    ///
    /// `source` names the service (`/signalbox/delivery`); `id` must follow from the input alone, so that a crash
    /// between commit and publish leads to the same message again. `time` is when the fact happened.
    pub fn new<M: Message>(
        subject: String,
        id: &str,
        source: &str,
        about: (Option<&AccountId>, Option<&TaskId>),
        origin: &Origin,
        time: Timestamp,
        payload: &M,
    ) -> Outgoing {
        let mut headers = Headers::default();
        headers.set(header::MESSAGE_ID, id);
        headers.set(header::CE_SPECVERSION, "1.0");
        headers.set(header::CE_ID, id);
        headers.set(header::CE_TYPE, format!("signalbox.{}", payload.fact()));
        headers.set(header::CE_SOURCE, source);
        let account = about.0.map_or(NO_ACCOUNT, AccountId::as_str);
        headers.set(
            header::CE_SUBJECT,
            match about.1 {
                Some(task) => format!("{account}/{task}"),
                None => account.to_owned(),
            },
        );
        headers.set(header::CE_TIME, time.to_string());
        headers.set(header::HOPS, origin.hops.to_string());
        if let Some(cause) = &origin.cause {
            headers.set(header::CAUSE, cause.as_str());
        }
        if let Some(traceparent) = &origin.trace.traceparent {
            headers.set(header::TRACEPARENT, traceparent.as_str());
        }
        if let Some(tracestate) = &origin.trace.tracestate {
            headers.set(header::TRACESTATE, tracestate.as_str());
        }
        let payload = serde_json::to_vec(payload).expect("wire types have string keys and no failing serializer");
        Outgoing {
            subject,
            headers,
            payload,
        }
    }

    /// The same for a message that names its account and task.
    pub fn of<M: Addressed>(
        root: &Root,
        id: &str,
        source: &str,
        origin: &Origin,
        time: Timestamp,
        message: &M,
    ) -> Outgoing {
        Outgoing::new(
            message.subject(root),
            id,
            source,
            message.about(),
            origin,
            time,
            message,
        )
    }

    pub fn id(&self) -> &str {
        self.headers.get(header::MESSAGE_ID).unwrap_or_default()
    }
}
