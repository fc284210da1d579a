//! Attempts from inside: the services themselves process the output of an account's models and its notifications. A world in which
//! one account reaches for another that way, and in which all data that it can read is checked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::StreamExt;
use testkit::{Reply, Seen, Tenant};

use super::{ATTACKER, VICTIM, calm, field::Field, generator::Ids, ids, judge::Marks, marks};
use crate::house::House;

/// Subject, headers and payload.
type Heard = Arc<Mutex<Vec<(String, String)>>>;

pub(super) struct Inside {
    pub(super) house: House,
    pub(super) marks: Marks,
    /// The victim's names without those that the attacker also has.
    pub(super) foreign: Ids,
    field: Field,
    victim: Tenant,
    attacker: Tenant,
    heard: Heard,
    before: BTreeMap<String, (i64, String)>,
}

impl Inside {
    pub(super) async fn open(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Inside {
        let house = calm(script).await;
        let owner = &house.world.database.owner;
        let victim = Tenant::furnish(owner, VICTIM).await;
        let attacker = Tenant::furnish(owner, ATTACKER).await;
        let field = Field::of(&house);
        let (own, theirs) = (ids(&house, &field, &attacker).await, ids(&house, &field, &victim).await);
        let heard = listen(&house).await;
        Inside {
            marks: marks(&theirs, &own),
            foreign: theirs
                .iter()
                .map(|(kind, ids)| (*kind, ids.difference(&own[kind]).cloned().collect()))
                .collect(),
            before: victim.snapshot(owner).await,
            house,
            field,
            victim,
            attacker,
            heard,
        }
    }

    /// Asserts that nothing of the victim was woken, posted or changed.
    pub(super) async fn close(self) {
        let (mut prompts, mut messages) = (0, 0);
        for seen in self.house.provider.seen() {
            assert!(seen.key.contains(&format!(":{ATTACKER}:")), "{}: was woken", seen.key);
            assert!(!self.marks.secret_in(&seen.body.to_string()), "{}", seen.key);
            prompts += 1;
        }
        for (subject, text) in self.heard.lock().unwrap().iter() {
            let names_victim = subject.split('.').any(|token| token.eq_ignore_ascii_case(VICTIM));
            assert!(!names_victim, "{subject}: {text}");
            assert!(!self.marks.secret_in(text), "{subject}: {text}");
            messages += 1;
        }
        let after = self.victim.snapshot(&self.house.world.database.owner).await;
        assert_eq!(after, self.before, "a row of the victim's has changed");
        assert!(!self.marks.secret_in(&self.field.everything(&self.attacker).await));
        assert!(prompts > 0 && messages > 0, "something was seen at all");
        println!("{prompts} provider calls and {messages} messages were read for traces");
        self.house.close().await;
    }
}

/// Subscribes to all messages on the broker, of every account.
async fn listen(house: &House) -> Heard {
    let heard = Heard::default();
    let client = house.world.operator().await;
    let mut messages = client.subscribe("signalbox.>").await.unwrap();
    client.flush().await.unwrap();
    let listening = Arc::clone(&heard);
    tokio::spawn(async move {
        let _client = client;
        while let Some(message) = messages.next().await {
            let text = format!("{:?} {}", message.headers, String::from_utf8_lossy(&message.payload));
            listening.lock().unwrap().push((message.subject.to_string(), text));
        }
    });
    heard
}
