//! What the demo needs: an account and two agents, made over the API like anyone would, and left alone when they are
//! there already.

use anyhow::Context;
use serde_json::json;

use crate::client::Client;

pub(super) const ACCOUNT: &str = "demo";

pub(super) async fn ensure(client: &Client) -> anyhow::Result<()> {
    let made = async {
        client.account_ensure(ACCOUNT, "Demo").await?;
        let coder =
            json!({"slug": "coder", "name": "Coder", "role": "Writes and mends code on the tasks it is asked about."});
        client.agent_ensure(ACCOUNT, &coder).await?;
        let reviewer = json!({"slug": "reviewer", "name": "Reviewer", "role": "Reads other agents' work and says what is wrong with it."});
        client.agent_ensure(ACCOUNT, &reviewer).await
    };
    made.await.context("the demo account could not be made")
}
