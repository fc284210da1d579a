//! Mail between people, orchestrators and sessions: who may write to whom, and what becomes of it.

use std::fmt;

use crate::{Deliver, Handle, MailId, Owner, SessionRef, TaskId, UserId, string_enum::string_enum};

string_enum! {
    /// What mail is: people choose by it where they hear of theirs.
    MessageType { Message = "message", Notification = "notification", Question = "question", Escalation = "escalation" }
}

string_enum! {
    /// How often a person hears of mail that waits for it.
    Digest { None = "none", Hourly = "hourly", Daily = "daily" }
}

string_enum! {
    /// Why mail was written.
    MailWhy {
        Addressed = "addressed", ChildStatus = "child_status", Forwarded = "forwarded", Answer = "answer", Bounce = "bounce",
        Question = "question", Escalation = "escalation",
    }
}

string_enum! {
    /// What has become of mail, as its sender sees it. `delivered`: in the inbox, or in a queue. `in_turn`: an agent has it in its turn.
    ReceiptState {
        Accepted = "accepted", Delivered = "delivered", InTurn = "in_turn", Answered = "answered", Read = "read", Bounced = "bounced",
    }
}

string_enum! {
    /// What has become of what a person is told outside of Signalbox. `held`: it waits for a digest. `superseded`: nobody has to be told any more.
    DeliveryState {
        Held = "held", Waiting = "waiting", Sending = "sending", Sent = "sent", Superseded = "superseded", Dead = "dead",
    }
}

/// The type of the notification that brings mail to a session.
pub const ITEM: &str = "mail";

/// In the metadata of an item: the owner of the orchestrator whose guest wrote it, or is answered by it, or to which the account's one has
/// forwarded it: what an agent wrote of others' words.
pub const GUEST_OF: &str = "guest_of";

/// The mail that an item of this id brings, if it is mail.
pub fn of_item(item: &str) -> Option<MailId> {
    let id = item.strip_prefix(ITEM)?.strip_prefix(':')?;
    MailId::parse(id).ok()
}

/// Nobody else gives an item the id of one that brings mail.
pub fn not_of_mail(item: &str) -> Result<(), &'static str> {
    match of_item(item) {
        Some(_) => Err("mail:{id} is the item of that mail: choose another id"),
        None => Ok(()),
    }
}

/// The item that brings this mail.
pub fn item_of(mail: MailId) -> String {
    format!("{ITEM}:{mail}")
}

/// Bytes of mail that an agent writes, and of mail over HTTP.
pub const TOOL_BYTES_MAX: usize = 16 * 1024;
pub const HTTP_BYTES_MAX: usize = 64 * 1024;
pub const CONTEXT_BYTES_MAX: usize = 512;
/// Mail that one turn may write; that a session, and a person, may write in an hour.
pub const OF_TURN_MAX: i64 = 10;
pub const OF_SESSION_MAX: i64 = 60;
pub const OF_PERSON_MAX: i64 = 120;
/// Unread mail of a person.
pub const UNREAD_MAX: i64 = 10_000;

/// An address, as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MailTo {
    /// `@handle`: an orchestrator.
    Handle(Handle),
    /// `@user:{id}`: the person.
    User(UserId),
    /// The id or the key of a session, or the short form of an orchestrator's.
    Session(SessionRef),
    /// A person's id or name.
    Name(String),
}

/// Characters of an address.
pub const TO_CHARACTERS_MAX: usize = 384;

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "an address is @handle, @user:{{id}}, a person's id or name, or a session's id or key, of at most {TO_CHARACTERS_MAX} characters"
)]
pub struct MailToError;

impl MailTo {
    pub fn parse(text: &str) -> Result<MailTo, MailToError> {
        let text = text.trim();
        if text.is_empty() || text.chars().count() > TO_CHARACTERS_MAX || text.chars().any(char::is_control) {
            return Err(MailToError);
        }
        if let Some(user) = text.strip_prefix("@user:") {
            return UserId::parse(user).map(MailTo::User).map_err(|_| MailToError);
        }
        if let Some(handle) = text.strip_prefix('@') {
            let handle = Handle::parse(&handle.to_ascii_lowercase());
            return handle.map(MailTo::Handle).map_err(|_| MailToError);
        }
        Ok(match text.parse::<SessionRef>() {
            Ok(session) => MailTo::Session(session),
            Err(_) => MailTo::Name(text.to_owned()),
        })
    }
}

/// Who writes, or is written to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Party {
    Person(UserId),
    Orchestrator(Owner),
    /// A person's orchestrator, as it answers another person.
    Guest {
        owner: UserId,
        guest: UserId,
    },
    /// A session on a task, which may be on somebody's board.
    Session {
        task: TaskId,
        board: Option<Owner>,
    },
    /// A session without a task, a branch's or a replay's.
    Other,
    /// A service, in its own name.
    Service,
}

impl Party {
    /// The person in whose name others' orchestrators are asked.
    pub fn person(&self) -> Option<&UserId> {
        match self {
            Self::Person(user) => Some(user),
            Self::Orchestrator(owner) => owner.user(),
            Self::Guest { .. } | Self::Session { .. } | Self::Other | Self::Service => None,
        }
    }

    /// Whether mail may reach into a turn in progress of the other's, or end it: an orchestrator's into its child's; and into those of its
    /// orchestrator and of other sessions of its board, a child's.
    pub fn may_deliver(&self, to: &Party, deliver: Deliver) -> bool {
        match (deliver, self, to) {
            (Deliver::Turn, _, _) => true,
            (_, Party::Orchestrator(owner), Party::Session { board: Some(of), .. }) => owner == of,
            (
                Deliver::Tool,
                Party::Session { board: Some(own), .. },
                Party::Session { board: Some(of), .. } | Party::Orchestrator(of),
            ) => own == of,
            (Deliver::Tool | Deliver::Interrupt, _, _) => false,
        }
    }

    /// Who may write to whom. What may not is answered as what is not there.
    pub fn may_write(&self, to: &Party) -> bool {
        match (self, to) {
            // It answers its guest, and tells its owner; what others are to hear, its owner's own session says.
            (Party::Guest { owner, guest }, Party::Person(user)) => user == owner || user == guest,
            (Party::Guest { guest, .. }, Party::Orchestrator(owner)) => owner.user() == Some(guest),
            (Party::Guest { .. }, _) => false,
            (Party::Person(user) | Party::Orchestrator(Owner::User(user)), Party::Guest { guest, .. }) => user == guest,
            (_, Party::Guest { .. }) => false,
            (Party::Service | Party::Other, Party::Person(_)) | (Party::Service, Party::Session { .. }) => true,
            (_, Party::Other | Party::Service) | (Party::Service | Party::Other, _) => false,
            (_, Party::Person(_)) => true,
            // Another person's orchestrator answers from a session of the guest's own.
            (Party::Person(user), Party::Orchestrator(owner)) => owner.user() == Some(user) || *owner == Owner::Account,
            (Party::Person(_), Party::Session { .. }) => true,
            (Party::Orchestrator(of), Party::Session { board, .. }) => board.as_ref() == Some(of),
            (Party::Orchestrator(from), Party::Orchestrator(to)) => *to == Owner::Account && from != to,
            (Party::Session { board, .. }, Party::Orchestrator(owner)) => board.as_ref() == Some(owner),
            // Of the same task, or siblings on one board.
            (
                Party::Session { task, board },
                Party::Session {
                    task: other,
                    board: theirs,
                },
            ) => task.key() == other.key() || board.is_some() && board == theirs,
        }
    }
}

impl fmt::Display for MailTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handle(handle) => write!(f, "@{handle}"),
            Self::User(user) => write!(f, "@user:{user}"),
            Self::Session(SessionRef::Id(id)) => id.fmt(f),
            Self::Session(SessionRef::Address(address)) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_by_their_form() {
        let id = "0190b5a8-0000-7000-8000-000000000001";
        for (text, expected) in [
            ("@Jarvis", "@jarvis"),
            (" @user:ann ", "@user:ann"),
            ("ann", "ann"),
            ("Ann Miller", "Ann Miller"),
            ("orchestrator:ann", "orchestrator:ann"),
            (id, id),
        ] {
            assert_eq!(MailTo::parse(text).unwrap().to_string(), expected, "{text}");
        }
        assert!(matches!(MailTo::parse("ann"), Ok(MailTo::Name(_))));
        assert!(matches!(MailTo::parse(id), Ok(MailTo::Session(SessionRef::Id(_)))));
        for bad in ["", " ", "@", "@a b", "@user:", "@user:A B", "a\nb", &"x".repeat(385)] {
            assert!(MailTo::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_who_works_together_reaches_into_a_turn() {
        use Deliver::{Interrupt, Tool, Turn};
        let ann = || Owner::User(UserId::parse("ann").unwrap());
        let on = |board: Option<Owner>| Party::Session {
            task: TaskId::parse("t-1").unwrap(),
            board,
        };
        let own = Party::Orchestrator(ann());
        for (from, to, expected) in [
            (&own, &on(Some(ann())), &[Turn, Tool, Interrupt][..]),
            (&own, &on(Some(Owner::Account)), &[Turn]),
            (&own, &on(None), &[Turn]),
            (&on(Some(ann())), &own, &[Turn, Tool]),
            (&on(Some(ann())), &on(Some(ann())), &[Turn, Tool]),
            (&on(None), &on(None), &[Turn]),
            (&on(Some(ann())), &Party::Orchestrator(Owner::Account), &[Turn]),
            (&Party::Service, &on(Some(ann())), &[Turn]),
        ] {
            let may: Vec<Deliver> = [Turn, Tool, Interrupt]
                .into_iter()
                .filter(|how| from.may_deliver(to, *how))
                .collect();
            assert_eq!(may, expected, "{from:?} {to:?}");
        }
    }

    #[test]
    fn each_writes_to_whom_it_may() {
        let user = |id: &str| UserId::parse(id).unwrap();
        let task = |id: &str, board: Option<Owner>| Party::Session {
            task: TaskId::parse(id).unwrap(),
            board,
        };
        let of_ann = || Some(Owner::User(user("ann")));
        let parties = [
            Party::Person(user("ann")),
            Party::Person(user("bob")),
            Party::Orchestrator(Owner::User(user("ann"))),
            Party::Orchestrator(Owner::User(user("bob"))),
            Party::Orchestrator(Owner::Account),
            Party::Guest {
                owner: user("ann"),
                guest: user("bob"),
            },
            task("A-1", of_ann()),
            task("A-2", of_ann()),
            task("T-1", None),
            task("T-2", None),
            Party::Other,
            Party::Service,
        ];
        // A line a sender: each recipient in the same order.
        let expected = [
            "111010111100",
            "110111111100",
            "110010110000",
            "110011000000",
            "110000000000",
            "110100000000",
            "111000110000",
            "111000110000",
            "110000001000",
            "110000000100",
            "110000000000",
            "110000111100",
        ];
        for (from, line) in parties.iter().zip(expected) {
            let may: String = parties
                .iter()
                .map(|to| if from.may_write(to) { '1' } else { '0' })
                .collect();
            assert_eq!(may, line, "{from:?}");
        }
    }
}
