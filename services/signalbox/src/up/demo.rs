//! Creates the demo's account and two agents over the API. Existing ones stay unchanged.

use anyhow::Context;
use api::{accounts::NewAccount, agents::NewAgent};
use serde_json::json;

use crate::client::{Client, read_as};

pub(super) const ACCOUNT: &str = "demo";

pub(super) async fn ensure(client: &Client) -> anyhow::Result<()> {
    let account: NewAccount = read_as(&json!({"id": ACCOUNT, "name": "Demo"}))?;
    let agents: Vec<NewAgent> = read_as(&json!([
        {"slug": "coder", "name": "Coder", "role": "Writes and mends code on the tasks it is asked about."},
        {"slug": "reviewer", "name": "Reviewer", "role": "Reads other agents' work and says what is wrong with it."},
    ]))?;
    let made = async {
        client.account_ensure(&account).await?;
        for agent in &agents {
            client.agent_ensure(ACCOUNT, agent).await?;
        }
        Ok::<_, crate::client::ApiError>(())
    };
    made.await.context("the demo account could not be made")
}
