//! An account that asks too fast is told to wait, by both services that strangers talk to, and nobody else is.

use reqwest::{Client, StatusCode, header::RETRY_AFTER};
use serde_json::Value;
use testkit::{OPERATOR_TOKEN, Reply};

use crate::house::House;

const ONE_A_SECOND: [(&str, &str); 2] = [
    ("http.account_requests_per_second", "1"),
    ("http.account_requests_burst", "5"),
];
/// A machine that stands still between two requests lets in more than the burst.
const TRIES_MAX: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_asks_too_fast_is_told_to_wait_and_others_are_not() {
    let house = House::open_with(|_| Reply::text("ok"), &ONE_A_SECOND).await;
    let client = Client::new();
    let ask = async |url: &str, token: &str| client.get(url).bearer_auth(token).send().await.unwrap();
    for account in ["acme", "other"] {
        house.account(account).await;
    }
    let tools = format!("{}/agent/tools", house.agent_api());
    for (role, acmes, others) in [
        (
            "member",
            format!("{}/api/orgs/acme/tasks", house.api()),
            format!("{}/api/orgs/other/tasks", house.api()),
        ),
        ("gateway", tools.clone(), tools),
    ] {
        let (key, second_key) = (house.key("acme", role).await, house.key("acme", role).await);
        let key_of_other = house.key("other", role).await;
        let mut refused = None;
        for _ in 0..TRIES_MAX {
            let answer = ask(&acmes, &key).await;
            if answer.status() == StatusCode::TOO_MANY_REQUESTS {
                refused = Some(answer);
                break;
            }
        }
        let refused = refused.unwrap_or_else(|| panic!("{role}: nothing was refused"));
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        let problem: Value = refused.json().await.unwrap();
        assert_eq!(problem["code"], "too_many_requests", "{problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains("this account"),
            "{problem}"
        );
        let mut is_shared = false;
        for _ in 0..TRIES_MAX {
            is_shared |= ask(&acmes, &second_key).await.status() == StatusCode::TOO_MANY_REQUESTS;
            if is_shared {
                break;
            }
        }
        assert!(is_shared, "{role}: a second key is no second account");
        assert_ne!(
            ask(&others, &key_of_other).await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
    }
    // The operator, who would mend it.
    for _ in 0..10 {
        let answer = ask(&format!("{}/api/orgs/acme/tasks", house.api()), OPERATOR_TOKEN).await;
        assert_eq!(answer.status(), StatusCode::OK);
    }
    house.close().await;
}
