//! Creates the demo's account, two agents and a person over the API. Existing ones stay unchanged.

use anyhow::Context;
use api::{accounts::NewAccount, agents::NewAgent, members::NewMember};
use serde_json::json;

use crate::client::{Client, read_as};

pub(super) const ACCOUNT: &str = "demo";

pub(super) async fn ensure(client: &Client) -> anyhow::Result<()> {
    let account: NewAccount = read_as(&json!({"id": ACCOUNT, "name": "Demo"}))?;
    let agents: Vec<NewAgent> = read_as(&json!([
        {"slug": "coder", "name": "Coder", "role": "Writes and mends code on the tasks it is asked about."},
        {"slug": "reviewer", "name": "Reviewer", "role": "Reads other agents' work and says what is wrong with it."},
    ]))?;
    let owner: NewMember = read_as(&json!({"user_id": "owner", "name": "Product owner", "role": "member"}))?;
    let made = async {
        client.account_ensure(&account).await?;
        for agent in &agents {
            client.agent_ensure(ACCOUNT, agent).await?;
        }
        client.member_ensure(ACCOUNT, &owner).await
    };
    made.await.context("the demo account could not be made")
}
