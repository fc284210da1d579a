//! `task_history`: limits, order, and no row of another task or account.

use domain::ToolCallState::{Failed, Refused};
use serde_json::{Value, json};

use crate::world::World;

fn bodies(result: &Value) -> Vec<&str> {
    let messages = result["messages"].as_array().expect("a list");
    messages
        .iter()
        .map(|message| message["body"].as_str().expect("a text"))
        .collect()
}

#[tokio::test]
async fn shows_the_task_its_thread_and_its_activities() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let task = coder.task.clone().unwrap();
    for number in 1..=30 {
        world
            .fixture()
            .message(&coder.account, &task, &format!("m{number}"))
            .await;
    }
    world
        .call(&coder.request(1, "task_status", &json!({"task_id": "PROJ-7", "status": "review"})))
        .await
        .ok();
    world
        .call(&coder.request(2, "task_message", &json!({"task_id": "PROJ-7", "body": "mine"})))
        .await
        .ok();

    let result = world
        .call(&coder.request(3, "task_history", &json!({"task_id": "proj-7"})))
        .await
        .ok();
    assert_eq!(result["task"]["id"], "PROJ-7");
    assert_eq!(result["task"]["status"], "review");
    assert_eq!(result["task"]["assignees"][0]["slug"], "coder");
    // 25 unless asked for more, the newest, oldest first
    let shown = bodies(&result);
    assert_eq!((shown.len(), shown[0], shown[24]), (25, "m7", "mine"));
    assert_eq!(result["messages"][24]["author"]["kind"], "agent");
    assert_eq!(result["messages"][24]["author"]["id"], coder.agent.to_string());
    // 30 unless asked for more, the newest first
    let kinds: Vec<&str> = result["activities"]
        .as_array()
        .unwrap()
        .iter()
        .map(|activity| activity["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..2], ["message.posted", "task.status_changed"]);
    assert_eq!(kinds[2..], ["message.posted"; 28]);
    assert_eq!(
        result["activities"][1]["detail"],
        json!({"from": "in_progress", "to": "review"})
    );
    assert_eq!(
        result["meta"],
        json!({"message_limit_applied": 25, "activity_limit_applied": 30})
    );

    let limits = json!({"taskId": "PROJ-7", "messageLimit": 2, "activityLimit": 1});
    let result = world.call(&coder.request(4, "task_load", &limits)).await.ok();
    assert_eq!(bodies(&result), ["m30", "mine"]);
    assert_eq!(result["activities"].as_array().unwrap().len(), 1);

    let limits = json!({"task_id": "PROJ-7", "message_limit": 5000, "activity_limit": 201});
    let result = world.call(&coder.request(5, "task_history", &limits)).await.ok();
    assert_eq!(bodies(&result).len(), 31);
    assert_eq!(result["meta"]["message_limit_applied"], 200);
    assert_eq!(result["meta"]["activity_limit_applied"], 200);
    let note = result["meta"]["note"].as_str().unwrap();
    assert!(note.contains("5000") && note.contains("201"), "{note}");
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_long_thread_is_cut_to_what_fits_and_says_so() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let task = coder.task.clone().unwrap();
    for number in 1..=8 {
        let body = format!("m{number} {}", "ä".repeat(9_000));
        world.fixture().message(&coder.account, &task, &body).await;
    }
    let request = coder.request(1, "task_history", &json!({"task_id": "PROJ-7"}));
    let answer = world.call(&request).await;
    let bytes = world.finished(&request)[0].result.as_ref().unwrap().len();
    assert!((32_000..=64 * 1024).contains(&bytes), "{bytes}");
    let result = answer.ok();
    let shown = bodies(&result);
    assert!(shown.last().unwrap().starts_with("m8 "));
    assert_eq!(result["meta"]["messages_left_out"], 8 - shown.len());
    assert_eq!(result["messages"][0]["body_cut_of_bytes"], 18_003);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn no_row_of_another_task_or_account_is_shown() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let ours = world.coder("acme").await;
    let other_task = world.fixture().task(&ours.account, "PROJ-8", &[ours.agent]).await;
    world
        .fixture()
        .message(&ours.account, &other_task, "of the other task")
        .await;
    // The same task id, in another account
    let theirs = world.coder("globex").await;
    world
        .fixture()
        .message(&theirs.account, theirs.task.as_ref().unwrap(), "of the other account")
        .await;
    world.fixture().task(&theirs.account, "SECRET-1", &[]).await;

    let result = world
        .call(&ours.request(1, "task_history", &json!({"task_id": "PROJ-7"})))
        .await
        .ok();
    assert_eq!(bodies(&result), Vec::<&str>::new());

    // An existing task of another agent, one of another account and an unknown one: the same answer
    let mut told = Vec::new();
    for (ordinal, task) in [(2, "PROJ-8"), (3, "SECRET-1"), (4, "NOBODY-1")] {
        let answer = world
            .call(&ours.request(ordinal, "task_history", &json!({"task_id": task})))
            .await;
        assert_eq!(answer.code(Refused), "task_not_found");
        told.push(answer.result.to_string().replace(task, "X"));
    }
    assert!(told.iter().all(|text| text == &told[0]), "{told:?}");
    let answer = world
        .call(&ours.request(5, "task_history", &json!({"task_id": "no task id"})))
        .await;
    assert_eq!(answer.code(Failed), "invalid_arguments");
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn the_coordinator_reads_every_task_of_its_account() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let fixture = world.fixture();
    let coder = world.coder("acme").await;
    let chat = fixture.task(&coder.account, "Chat", &[]).await;
    fixture.account_set(&coder.account, "coordinator_task", "CHAT").await;
    let lead = fixture.agent(&coder.account, "lead").await;
    let lead = world.session(&coder.account, Some(&chat), lead).await;
    fixture
        .message(&coder.account, coder.task.as_ref().unwrap(), "for all of acme")
        .await;
    let globex = world.coder("globex").await;
    fixture.task(&globex.account, "GLOBEX-1", &[]).await;

    let result = world
        .call(&lead.request(1, "task_history", &json!({"task_id": "PROJ-7"})))
        .await
        .ok();
    assert_eq!(bodies(&result), ["for all of acme"]);
    let mut told = Vec::new();
    for (ordinal, task) in [(2, "GLOBEX-1"), (3, "NOBODY-1")] {
        let answer = world
            .call(&lead.request(ordinal, "task_history", &json!({"task_id": task})))
            .await;
        assert_eq!(answer.code(Refused), "task_not_found");
        told.push(answer.result.to_string().replace(task, "X"));
    }
    assert_eq!(told[0], told[1]);
    // Assigned to an agent, the chat belongs to that agent alone.
    let boss = fixture.agent(&coder.account, "boss").await;
    fixture.assign(&coder.account, &chat, boss).await;
    let answer = world
        .call(&lead.request(4, "task_history", &json!({"task_id": "PROJ-7"})))
        .await;
    assert_eq!(answer.code(Refused), "task_not_found");
    // An agent is coordinator only in the chat.
    let elsewhere = world.session(&coder.account, coder.task.as_ref(), lead.agent).await;
    let answer = world
        .call(&elsewhere.request(1, "task_history", &json!({"task_id": "Chat"})))
        .await;
    assert_eq!(answer.code(Refused), "task_not_found");
    world.end(&[&gateway]).await;
}
