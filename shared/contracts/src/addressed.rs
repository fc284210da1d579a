//! Messages between services name their account and task twice: in the subject, which routes and permits them, and in
//! the payload, which is processed. A reader compares the two: a publisher that is permitted for one account must not
//! write another's id into the payload.

use crate::{Root, message::Addressed};

/// Why a payload is refused. One word for programs, one sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum Misaddressed {
    #[error("The payload does not have the form of its subject's messages: {0}")]
    Malformed(serde_json::Error),
    #[error("The payload names another account or task than the subject.")]
    SubjectMismatch,
}

impl Misaddressed {
    pub fn reason(&self) -> &'static str {
        match self {
            Misaddressed::Malformed(_) => "malformed",
            Misaddressed::SubjectMismatch => "subject_mismatch",
        }
    }
}

/// Parses a payload that arrived on a subject.
pub fn read<M: Addressed>(root: &Root, subject: &str, payload: &[u8]) -> Result<M, Misaddressed> {
    let message: M = serde_json::from_slice(payload).map_err(Misaddressed::Malformed)?;
    if message.subject(root) == subject {
        Ok(message)
    } else {
        Err(Misaddressed::SubjectMismatch)
    }
}

#[cfg(test)]
mod tests {
    use domain::{AccountId, CloseReason, Generation, SessionId, TaskId};
    use uuid::Uuid;

    use super::*;
    use crate::session::SessionClosed;

    #[test]
    fn a_payload_counts_on_its_own_subject_only() {
        let closed = SessionClosed {
            account: AccountId::parse("acme").unwrap(),
            task: Some(TaskId::parse("T-1").unwrap()),
            session_id: SessionId(Uuid::from_u128(1)),
            session_key: "k".to_owned(),
            generation: Generation::FIRST,
            agent_id: None,
            reason: CloseReason::TaskDone,
        };
        let payload = serde_json::to_vec(&closed).unwrap();
        let check = |subject: &str, payload: &[u8], expected: Option<&str>| {
            let read: Result<SessionClosed, _> = read(&Root::default(), subject, payload);
            assert_eq!(read.err().map(|error| error.reason()), expected, "{subject}");
        };
        check("signalbox.session.closed.acme.T-1", &payload, None);
        check("signalbox.session.closed.other.T-1", &payload, Some("subject_mismatch"));
        check("signalbox.session.closed.acme.T-2", &payload, Some("subject_mismatch"));
        check("signalbox.session.closed.acme.-", &payload, Some("subject_mismatch"));
        check("other.session.closed.acme.T-1", &payload, Some("subject_mismatch"));
        check("signalbox.session.closed.acme.T-1", b"{}", Some("malformed"));
    }
}
