//! `signalbox members`: the people of an account, and the links by which they sign in.

use std::process::ExitCode;

use api::members::{CreatedMember, Invite, Member, NewMember, NewSignInLink, SignInLink};
use domain::{AccountId, Email, MemberRole, UserId};
use serde_json::Value;

use super::moment;
use crate::{
    cli::{ListArgs, MemberAddArgs, MemberArgs, MemberLinkArgs, MembersArgs, MembersCommand},
    client::read_as,
    print::show,
    table::Table,
    text::one_line,
};

pub(crate) async fn run(args: MembersArgs, json: bool) -> anyhow::Result<ExitCode> {
    match args.command.unwrap_or(MembersCommand::List(args.list)) {
        MembersCommand::List(args) => list(&args, json).await,
        MembersCommand::Add(args) => add(&args, json).await,
        MembersCommand::Remove(args) => remove(&args, json).await,
        MembersCommand::Link(args) => link(&args, json).await,
    }
}

async fn list(args: &ListArgs, json: bool) -> anyhow::Result<ExitCode> {
    let path = ["api", "orgs", &args.of.account, "members"];
    let members = args.of.access.client()?.list(&path, &[], args.limit.into()).await?;
    show(json, &members, |members| table(members))
}

fn table(members: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&["USER", "NAME", "ROLE", "E-MAIL", "SIGNED IN", "SINCE"]);
    for member in members {
        let member: Member = read_as(member)?;
        table.row([
            &member.user_id,
            &one_line(&member.name, 64),
            &member.role,
            member.email.as_deref().unwrap_or_default(),
            if member.signed_in { "yes" } else { "no" },
            &moment(Some(member.created_at)),
        ]);
    }
    Ok(table.render("the account has no members"))
}

async fn add(args: &MemberAddArgs, json: bool) -> anyhow::Result<ExitCode> {
    let user_id = args.user.as_deref().map(UserId::parse).transpose()?;
    let new = NewMember {
        user_id: user_id.map(TryInto::try_into).transpose().map_err(anyhow::Error::msg)?,
        email: args.email.as_deref().map(Email::parse).transpose()?,
        name: serde_json::from_value(args.name.clone().into())?,
        role: if args.admin {
            MemberRole::Admin
        } else {
            MemberRole::Member
        },
        invite: Some(true),
    };
    let path = ["api", "orgs", &args.of.account, "members"];
    let made: Value = args.of.access.client()?.post(&path, &new).await?;
    show(json, &made, |made| {
        let made: CreatedMember = read_as(made)?;
        let (user, role) = (&made.member.user_id, &made.member.role);
        Ok(match &made.link {
            Some(link) => format!("added {user} as {role}\n{}", text_of(link)),
            None => format!(
                "{user} is back as {role}, and has signed in before: the operator makes a link with `signalbox members link {user}`\n"
            ),
        })
    })
}

fn text_of(link: &SignInLink) -> String {
    let url = link.sign_in_link.as_deref().unwrap_or_default();
    format!("{url}\nworks once, until {} UTC\n", moment(Some(link.expires_at)))
}

async fn remove(args: &MemberArgs, json: bool) -> anyhow::Result<ExitCode> {
    let path = ["api", "orgs", &args.of.account, "members", &args.user];
    let gone: Value = args.of.access.client()?.delete(&path).await?;
    show(json, &gone, |_| {
        Ok(format!("removed {}, and revoked their keys\n", args.user))
    })
}

/// As an admin; where that is refused since the person has signed in, as the operator.
async fn link(args: &MemberLinkArgs, json: bool) -> anyhow::Result<ExitCode> {
    let of = &args.member.of;
    let client = of.access.client()?;
    let path = ["api", "orgs", &of.account, "members", &args.member.user, "sign-in-link"];
    let new = NewSignInLink {
        account: AccountId::parse(&of.account)?,
        user_id: UserId::parse(&args.member.user)?,
        minutes: None,
        another_login: args.another_login.then_some(true),
    };
    if args.another_login {
        let made: Value = client.post(&["api", "sign-in-links"], &new).await?;
        return show(json, &made, |made| Ok(text_of(&read_as(made)?)));
    }
    let made: Value = match client.post(&path, &Invite {}).await {
        Err(error) if error.code() == Some("has_signed_in") => {
            // Only the operator may; whoever is told to ask the operator is told so by the first refusal.
            client.post(&["api", "sign-in-links"], &new).await.map_err(|_| error)?
        }
        made => made?,
    };
    show(json, &made, |made| Ok(text_of(&read_as(made)?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_who_there_is() {
        let member = |user: &str, email: Value, signed_in: bool| {
            json!({"user_id": user, "name": "A\nname", "email": email, "role": "member", "time_zone": "UTC",
                "signed_in": signed_in, "created_at": "2026-01-02T03:04:05Z"})
        };
        let members = [
            member("ann", json!("ann@example.com"), true),
            member("bob", json!(null), false),
        ];
        assert_eq!(
            table(&members).unwrap(),
            "USER  NAME    ROLE    E-MAIL           SIGNED IN  SINCE\n\
             ann   A name  member  ann@example.com  yes        2026-01-02 03:04:05\n\
             bob   A name  member  -                no         2026-01-02 03:04:05\n"
        );
    }
}
