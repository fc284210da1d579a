//! Mail between people, orchestrators and sessions (O11). It is written once, by `storage::lifecycle::mail_send`; what becomes of mail to a
//! session is what becomes of its item.

pub mod http;
pub mod store;
pub mod sweep;

use contracts::event::{Event, MailChange, MailChanged};
use domain::{AccountId, MailId, MailTo, Party, UserId};
use runtime::http::Problem;
use storage::{
    Tx,
    lifecycle::mail_send::{Addressee, addressees},
};

use crate::{
    auth::Caller,
    error::{ApiError, invalid_field},
};

/// Whom the caller may write to by this address. Nobody, several, and who may not be written to are told apart only where the caller may
/// know them.
pub async fn recipient(tx: &Tx, account: &AccountId, caller: &Caller, address: &str) -> Result<Addressee, ApiError> {
    let to = MailTo::parse(address).map_err(|error| invalid_field("to", error))?;
    let from = match caller.person() {
        Some(person) => Party::Person(person.id.clone()),
        None => Party::Service,
    };
    let mut found = addressees(tx, account, (from.person(), &to)).await?;
    found.retain(|to| from.may_write(&to.party));
    match &found[..] {
        [_] => Ok(found.remove(0)),
        [] => {
            let detail = "there is nobody of this address to whom you may write";
            Err(Problem::conflict("unknown_recipient", detail).into())
        }
        several => {
            let ids: Vec<String> = several
                .iter()
                .filter_map(|one| one.user().map(|user| format!("@user:{user}")))
                .collect();
            let detail = format!("several people have this name: {}", ids.join(", "));
            Err(invalid_field("to", detail).into())
        }
    }
}

pub fn changed(mail: MailId, to_user: Option<&UserId>, change: MailChange) -> Event {
    Event::MailChanged(MailChanged {
        mail_id: mail,
        to_user: to_user.cloned(),
        change,
    })
}
