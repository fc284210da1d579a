//! Members: the people of an account. A member's id never changes and is never another person's; a removed member's row stays.

pub mod http;
pub mod link;
pub mod store;

use contracts::event::{Change, Event, MemberChanged};
use domain::{Actor, UserId};

/// The event of a member.
pub fn changed(user: &UserId, change: Change, by: Actor) -> Event {
    Event::MemberChanged(MemberChanged {
        user_id: user.clone(),
        change,
        by,
    })
}
