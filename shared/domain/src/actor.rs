//! Actors. The name is for people; rules compare the id and the kind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;
use unicode_security::skeleton;

use crate::string_enum::string_enum;

string_enum! {
    ActorKind { User = "user", Agent = "agent", Service = "service" }
}

/// The author of a message, the sender of a notification, or the actor who moved a task.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct Actor {
    pub kind: ActorKind,
    #[schemars(length(min = 1, max = 128))]
    pub id: String,
    #[schemars(length(max = 128))]
    pub name: String,
    /// The name of the service whose word this is: it names another service, or speaks on behalf of a person. Absent where
    /// they speak for themselves. What a publisher writes here is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub via: Option<String>,
}

/// Why a sender may not be named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotTheirs {
    #[error("a person's key and an agent speak for themselves: leave it out, or use a key for services")]
    Another,
    #[error("kind is user or service: only an agent's tools speak for an agent")]
    Agent,
    #[error("this name is Signalbox's own: choose another")]
    Reserved,
}

impl Actor {
    /// The name for people, with the service whose word it is.
    pub fn called(&self) -> String {
        match &self.via {
            None => self.name.clone(),
            Some(via) => format!("{via}, on behalf of {}", self.name),
        }
    }

    /// Signalbox itself, for changes that no person, agent or publisher made.
    pub fn system() -> Actor {
        Actor {
            kind: ActorKind::Service,
            id: "signalbox".to_owned(),
            name: "Signalbox".to_owned(),
            via: None,
        }
    }

    /// Any publisher over NATS, which is not authenticated.
    pub fn publisher() -> Actor {
        Actor {
            kind: ActorKind::Service,
            id: "publisher".to_owned(),
            name: "publisher".to_owned(),
            via: None,
        }
    }

    /// The sender or author that is shown when this actor names `named`. Pure; the one rule for messages and
    /// notifications, over NATS and HTTP.
    pub fn speaks_as(&self, named: &Actor) -> Result<Actor, NotTheirs> {
        if named.kind == self.kind && named.id == self.id {
            return Ok(self.clone());
        }
        match (self.kind, named.kind) {
            (ActorKind::User | ActorKind::Agent, _) => Err(NotTheirs::Another),
            (ActorKind::Service, ActorKind::Agent) => Err(NotTheirs::Agent),
            (ActorKind::Service, ActorKind::User | ActorKind::Service) => {
                if is_reserved(&named.id) || is_reserved(&named.name) {
                    return Err(NotTheirs::Reserved);
                }
                Ok(Actor {
                    via: Some(self.name.clone()),
                    ..named.clone()
                })
            }
        }
    }
}

/// Whether a name could be read as the operator's or as that of Signalbox, regardless of separators and script.
pub fn is_reserved(name: &str) -> bool {
    let name: String = name.nfkc().collect();
    // A capital may resemble another letter than its small one does.
    [letters(&name), letters(&name.to_lowercase())]
        .iter()
        .any(|read| RESERVED.iter().any(|reserved| letters(reserved) == *read))
}

const RESERVED: [&str; 2] = ["operator", "signalbox"];

/// The Latin letters and digits that a text resembles (UTS 39), in one case. In UTS 39 `I`, `l` and `1` look alike and
/// `i` does not; here it does.
fn letters(text: &str) -> String {
    let alike = skeleton(text).filter(char::is_ascii_alphanumeric);
    alike
        .map(|letter| letter.to_ascii_lowercase())
        .map(|letter| if letter == 'i' { 'l' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(kind: ActorKind, id: &str, name: &str) -> Actor {
        Actor {
            kind,
            id: id.to_owned(),
            name: name.to_owned(),
            via: None,
        }
    }

    /// Every kind of actor, and the actors that it names.
    #[test]
    fn only_a_service_names_others_and_it_is_said_that_it_does() {
        use ActorKind::{Agent, Service, User};
        let check = |speaker: &Actor, named: &Actor, expected: Result<Option<&str>, NotTheirs>| {
            let mut forged = named.clone();
            forged.via = Some("somebody else".to_owned());
            let expected = expected.map(|via| match via {
                None => speaker.clone(),
                Some(via) => Actor {
                    via: Some(via.to_owned()),
                    ..named.clone()
                },
            });
            assert_eq!(speaker.speaks_as(named), expected, "{speaker:?} {named:?}");
            assert_eq!(speaker.speaks_as(&forged), expected, "{speaker:?} {forged:?}");
        };
        let (ann, ci) = (actor(User, "k-1", "Ann"), actor(Service, "k-2", "CI"));
        let (bob, coder) = (actor(User, "bob", "Bob"), actor(Agent, "a-1", "Coder"));
        let operator = actor(User, "operator", "Operator");
        for speaker in [&ann, &coder, &operator] {
            check(speaker, speaker, Ok(None));
            check(speaker, &actor(speaker.kind, &speaker.id, "Another name"), Ok(None));
            check(speaker, &bob, Err(NotTheirs::Another));
            check(speaker, &ci, Err(NotTheirs::Another));
        }
        check(&ann, &coder, Err(NotTheirs::Another));
        check(&ann, &operator, Err(NotTheirs::Another));
        check(&ci, &ci, Ok(None));
        check(&ci, &bob, Ok(Some("CI")));
        check(&ci, &actor(Service, "github", "GitHub"), Ok(Some("CI")));
        check(&ci, &coder, Err(NotTheirs::Agent));
        check(&ci, &operator, Err(NotTheirs::Reserved));
        check(&ci, &actor(User, "o", "Oper\u{200b}ator"), Err(NotTheirs::Reserved));
        check(&ci, &actor(Service, "SignalBox", "x"), Err(NotTheirs::Reserved));
        check(&Actor::publisher(), &Actor::system(), Err(NotTheirs::Reserved));
        check(&Actor::publisher(), &Actor::publisher(), Ok(None));
    }

    #[test]
    fn a_name_that_looks_like_ours_is_reserved() {
        for name in [
            "operator",
            "Operator",
            "OPERATOR",
            "O p e r a t o r",
            "oper\u{200b}ator",
            "0perator",
            "[Operator]",
            "Operatör",
            "\u{41e}\u{440}\u{435}r\u{430}t\u{43e}r",
            "\u{39f}perat\u{3bf}r",
            "Ｏｐｅｒａｔｏｒ",
            "𝐎𝐩𝐞𝐫𝐚𝐭𝐨𝐫",
            "ⓞperator",
            "Signalbox",
            "SignalBox",
            "signal-box",
            "Slgnalbox",
            "S1gna1b0x",
            "SIGNA\u{13de}BOX",
            "\u{405}IGN\u{410}LBOX",
            "\u{455}\u{456}gn\u{430}lb\u{43e}\u{445}",
        ] {
            assert!(is_reserved(name), "{name}");
        }
        for name in [
            "",
            "Ann",
            "CI",
            "operations",
            "Opera",
            "the signal box of Ann",
            "Оксана",
            "オペレーター",
            "cooperator",
            "—",
        ] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
