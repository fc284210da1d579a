//! `memory_write`: an orchestrator remembers something (`storage::lifecycle::memory`). A turn about other people's messages writes nothing,
//! so that nobody puts words into the memory of another one's agent.

use contracts::tools::BODY_BYTES_MAX;
use domain::{MemoryCategory, MemoryId, decay::CONTENT_BYTES_MAX};
use serde_json::{Map, Value, json};
use storage::lifecycle::memory::{MemoryOf, NewMemory, changed, memory_write};
use uuid::Uuid;

use super::{Running, ToolOutcome, body, children::owner, memory_read::surroundings};
use crate::{
    arguments::invalid_field,
    call::{Effect, ToolAnswer},
};

const _: () = assert!(CONTENT_BYTES_MAX <= BODY_BYTES_MAX);

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (account, owner) = (running.account, owner(running)?);
    let content = body(&arguments, "content")?;
    if content.len() > CONTENT_BYTES_MAX {
        let what = format!(
            "{} bytes; at most {CONTENT_BYTES_MAX} are taken, so write down what matters of it",
            content.len()
        );
        return Err(invalid_field("content", &what).into());
    }
    if surroundings(running, &owner).await?.is_foreign {
        let why = "This turn is about what somebody else has written, and remembers nothing.";
        let hint = "Nothing was written. Whom you work for can tell you themselves what you are to remember.";
        return Err(ToolAnswer::refused("not_permitted", why, hint).into());
    }
    let text = |field: &str| arguments.get(field).and_then(Value::as_str);
    let new = NewMemory {
        id: MemoryId(Uuid::new_v5(&running.call, b"memory")),
        category: text("category")
            .and_then(MemoryCategory::parse)
            .unwrap_or(MemoryCategory::General),
        content,
        key: text("key"),
        session: Some(running.session),
        now: running.setting.now,
    };
    let of = MemoryOf {
        account,
        owner: &owner,
        repository: None,
    };
    let written = memory_write(running.questions.tx, of, &new).await?;
    let event = changed(&owner, written.id, written.change());
    let told = running.setting.event(account, None, &running.call.to_string(), event);
    let result = json!({"id": written.id, "replaced": written.replaced, "pruned": written.pruned});
    Ok(Effect::new(result, vec![told]))
}
