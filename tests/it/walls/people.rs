//! The part of an account's life that is about people: members, what is theirs, their orchestrators, mail, personas, the board.

use serde_json::{Value, json};
use testkit::{eventually, openid::CODE};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    own::{PAGED, opening, own},
    walk::{CALLS, FAILS, LINGERS, USED, USES, WAITS, Walk},
};
use crate::crossing::attempt::{Door, Request};

/// A request with this token, and whatever account it is of.
fn of(token: &str, method: &'static str, path: &str, body: &Value) -> Request {
    Request {
        door: Door::Api,
        method,
        path: path.to_owned(),
        token: token.to_owned(),
        headers: Vec::new(),
        body: Some(body).filter(|body| !body.is_null()).map(Value::to_string),
    }
}

impl Walk<'_> {
    /// A person comes by a link, works with their orchestrator, changes what is theirs, is no admin any more, goes, and returns.
    pub(super) async fn people(&self) {
        let new = |role: &str| json!({"name": "n", "email": "new@example.com", "role": role, "invite": true});
        let [key, id] = self.signed_in(&new("admin")).await;
        let memory = self.remembered("user:new").await;
        let calls = format!("{CALLS}LIVE-1 pending");
        self.said_to(&key, "new", &calls).await;
        self.gives_work_away(&key).await;
        self.writes(&key).await;
        self.mailed(&key).await;
        self.guested(&key).await;
        self.browsers(&key).await;
        let own_persona = json!({"slug": "own", "name": "n", "visibility": "private", "files": [{"filename": "STYLE.md", "content": "x"}]});
        self.mine(&key, "POST", "/api/orgs/alder/personas", &own_persona).await;
        self.requests(own(&key, &id, &memory)).await;
        self.api("PATCH", "/members/new", &json!({"role": "member"})).await;
        self.api("DELETE", "/members/new", &Value::Null).await;
        self.api("POST", "/members", &new("member")).await;
        // In its next generation.
        self.published_to("new", "to-the-next", "b").await;
        self.house.until(&self.tenant.account, "to-the-next", "delivered").await;
        // A handle that another account has.
        self.api("POST", "/agents", &json!({"slug": "of-the-twin", "name": "n"}))
            .await;
        // The last admin who has signed in stays.
        let spare = json!({"user_id": "spare", "name": "n", "role": "admin"});
        self.api("POST", "/members", &spare).await;
        self.conflicts("DELETE", "/members/ann", &Value::Null).await;
        self.account_s_orchestrator().await;
        let over = "update mail set settled_at = now() - interval '2 years'
                    where account_id = 'alder' and id in (select id from mail where account_id = 'alder' and settled_at is not null and to_session is not null limit 1)";
        self.changed(over).await;
    }

    async fn changed(&self, sql: &'static str) {
        let changed = sqlx::query(sql).execute(&self.house.world.database.owner).await;
        changed.expect("the database does as it is told");
    }

    /// The person hears by e-mail: at once, and of two messages together. Then what was sent is old.
    async fn mailed(&self, key: &str) {
        let together = json!({"message_type": "message", "deliver_email": true, "digest": "hourly"});
        self.mine(key, "PUT", "/api/me/notification-preferences", &together)
            .await;
        let tells = |kind: &str| {
            (
                "send_message",
                json!({"to": "@user:new", "content": "c", "message_type": kind}),
            )
        };
        self.uses(key, &[tells("escalation"), tells("message"), tells("message")])
            .await;
        let ended = |count: i64| async move {
            let sql =
                "select count(*) from outbound_delivery where account_id = 'alder' and state in ('sent', 'superseded')";
            eventually("e-mail is sent", || async {
                (self.house.world.database.count(sql).await >= count).then_some(())
            })
            .await;
        };
        ended(1).await;
        self.trials.next_step();
        self.changed("update outbound_delivery set next_at = now() where account_id = 'alder' and state = 'held'")
            .await;
        ended(3).await;
        self.changed("update outbound_delivery set kept_until = now() - interval '1 day' where account_id = 'alder' and kept_until is not null")
            .await;
        let link = of("", "POST", "/sign-in/link", &json!({"email": "new@example.com"}));
        self.requests(vec![link]).await;
    }

    /// A new person comes by a link: their key, and its id.
    async fn signed_in(&self, new: &Value) -> [String; 2] {
        let made = self.api("POST", "/members", new).await;
        let link = made["link"]["sign_in_link"].as_str().expect("a link");
        let [look, redeem] = opening(&link[link.find("/sign-in/").expect("its path")..]);
        self.requests(vec![look]).await;
        self.trials.next_step();
        let signed_in = self.field.send(&redeem).await;
        let signed_in: Value = serde_json::from_str(&signed_in.body).expect("a key");
        ["key", "id"].map(|name| signed_in["key"][name].as_str().expect("a key").to_owned())
    }

    /// Another person asks the orchestrator of this one, which is let ask, and then not any more. Words of both wait for it.
    async fn guested(&self, key: &str) {
        let reach = |reachable: &str| {
            let change = json!({"handle": "of-new", "reachable": reachable});
            of(key, "PUT", "/api/me/orchestrator/identity", &change)
        };
        let new = json!({"user_id": "guest", "name": "g", "role": "member", "invite": true});
        let [guest, _] = self.signed_in(&new).await;
        self.requests(vec![reach("answer")]).await;
        for (id, body, user) in [
            ("is-busy", LINGERS, "new"),
            ("is-own", "b", "new"),
            ("is-others", "b", "guest"),
        ] {
            let told = json!({"id": id, "session": "orchestrator:new", "body": body, "queue_mode": "collect",
                "sender": {"kind": "user", "id": user, "name": "n"}});
            self.trials.next_step();
            self.house.publish(&self.tenant.account, "-", told).await;
        }
        let mail = json!({"to": "@of-new", "content": "c"});
        self.requests(vec![of(&guest, "POST", "/api/messages", &mail)]).await;
        let account = &self.tenant.account;
        for id in ["is-busy", "is-own", "is-others"] {
            self.house.until(account, id, "delivered").await;
        }
        let answered = "select count(*) from mail where account_id = $1 and to_user = 'guest' and why = 'answer'";
        eventually("the guest is answered", || async {
            let answered = sqlx::query_scalar::<_, i64>(answered).bind(account);
            let answers = answered.fetch_one(&self.house.world.database.owner).await;
            (answers.expect("a count") == 1).then_some(())
        })
        .await;
        self.requests(vec![reach("off")]).await;
        self.api("DELETE", "/members/guest", &Value::Null).await;
    }

    /// A browser signs in by a key, and another one by a provider, as a person who was invited by the address that it has confirmed.
    async fn browsers(&self, key: &str) {
        self.trials.next_step();
        let (base, none) = (self.house.api(), reqwest::redirect::Policy::none());
        let browser = reqwest::Client::builder().redirect(none).build().expect("a client");
        let header = |answer: &reqwest::Response, name: &str| -> String {
            let value = answer.headers()[name].to_str().expect("a text");
            value.split(';').next().expect("a value").to_owned()
        };
        let sent = browser
            .post(format!("{base}/sign-in/key"))
            .json(&json!({"key": key}))
            .send()
            .await;
        let cookie = header(&sent.expect("an answer"), "set-cookie");
        let seen = browser
            .get(format!("{base}/sign-in"))
            .header("cookie", cookie)
            .send()
            .await;
        assert_eq!(seen.expect("an answer").status(), 200);
        let invited = json!({"user_id": "confirmed", "name": "n", "email": "confirmed@example.com", "role": "member"});
        self.api("POST", "/members", &invited).await;
        self.people
            .says(json!({"email": "confirmed@example.com", "email_verified": true}));
        let begun = browser
            .get(format!("{base}/sign-in/oidc/corp"))
            .send()
            .await
            .expect("an answer");
        let state = self.people.visited(&header(&begun, "location"))["state"].clone();
        let back = format!("{base}/sign-in/oidc/corp/callback?code={CODE}&state={state}");
        let back = browser
            .get(back)
            .header("cookie", header(&begun, "set-cookie"))
            .send()
            .await;
        assert_eq!(back.expect("an answer").status(), 303);
    }

    /// While it is off, in its first generation, and in the next one.
    async fn account_s_orchestrator(&self) {
        let (path, account) = ("/orchestrator/identity", &self.tenant.account);
        let admin = &self.tenant.keys["admin"];
        self.api("PUT", path, &json!({"enabled": false})).await;
        let of_account = format!("org:{account}");
        self.published_to(&of_account, "to-nothing", "b").await;
        self.house.until(account, "to-nothing", "refused").await;
        self.api("PUT", path, &json!({"enabled": true})).await;
        self.api("PATCH", "", &json!({"orchestrator_provider": "default"}))
            .await;
        let calls = [
            (
                "attribute_user",
                json!({"provider": "email", "external_id": "new@example.com"}),
            ),
            ("forward_to_user", json!({"user_id": "new", "message": "b"})),
        ];
        self.used_by(admin, &of_account, &calls).await;
        let open = "select id::text from session where account_id = 'alder' and kind = 'orchestrator' and user_id is null and closed_at is null";
        let session = self.one_of(open).await;
        self.api("POST", &format!("/sessions/{session}/reset"), &json!({"reason": "r"}))
            .await;
        self.said_to(admin, &of_account, "b").await;
    }

    async fn published_to(&self, user: &str, id: &str, body: &str) {
        self.trials.next_step();
        let sender = user.strip_prefix("org:").map_or(user, |_| "ann");
        let told = json!({"id": id, "session": format!("orchestrator:{user}"), "body": body,
            "sender": {"kind": "user", "id": sender, "name": "n"}});
        self.house.publish(&self.tenant.account, "-", told).await;
    }

    /// Whom a publisher names is not believed in an orchestrator: this is said with a key.
    async fn said_to(&self, key: &str, user: &str, body: &str) {
        let path = format!("/api/sessions/orchestrator:{user}/prompt");
        let told = self.mine(key, "POST", &path, &json!({"content": body})).await;
        let id = told["notification_id"].as_str().expect("an id");
        self.house.until(&self.tenant.account, id, "delivered").await;
    }

    /// Its person's orchestrator calls these tools.
    async fn uses(&self, key: &str, calls: &[(&str, Value)]) {
        self.used_by(key, "new", calls).await;
    }

    async fn used_by(&self, key: &str, user: &str, calls: &[(&str, Value)]) {
        let calls: Vec<String> = calls.iter().map(|(name, said)| format!("{name} {said}")).collect();
        self.said_to(key, user, &format!("{USES}{}", calls.join(USED))).await;
    }

    async fn one_of(&self, sql: &'static str) -> String {
        eventually(sql, || async { self.house.world.database.texts(sql).await.pop() }).await
    }

    async fn mine(&self, key: &str, method: &'static str, path: &str, body: &Value) -> Value {
        self.trials.next_step();
        let answer = self.field.send(&of(key, method, path, body)).await;
        assert!(answer.status < 300, "{method} {path} {body}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap_or(Value::Null)
    }

    /// To sessions of their own: on a new task, and on one that is there; with a board. One waits for its provider, with an item behind it.
    async fn gives_work_away(&self, key: &str) {
        let new =
            json!({"prompt": WAITS, "agent": "coder", "title": "t", "persona": "style", "persona_from": "inferred"});
        self.uses(key, &[("create_session", new)]).await;
        let child = "select s.id::text from session s join task t on t.account_id = s.account_id and t.id = s.task_id
                     where s.account_id = 'alder' and t.board = 'user:new' and s.phase = 'backoff'";
        let child = self.one_of(child).await;
        let known =
            json!({"prompt": "b", "agent": "coder", "task_id": format!("{}-3", self.tenant.account.to_uppercase())});
        self.uses(key, &[("create_session", known)]).await;
        let behind = json!({"session_id": child, "message": "b"});
        self.uses(key, &[("send_to_session", behind)]).await;
        let behind =
            "select n.id from notification n join session s on s.account_id = n.account_id and s.id = n.session_id
                      where n.account_id = 'alder' and n.state = 'queued' and s.phase = 'backoff' and n.body like '%b'";
        self.one_of(behind).await;
        let looks = [
            ("get_session_status", json!({"session_id": child})),
            ("list_sessions", json!({})),
            ("check_later", json!({"after_minutes": 600, "note": "n"})),
        ];
        self.uses(key, &looks).await;

        let first = json!({"title": "first", "session_id": child});
        self.uses(key, &[("create_task", first)]).await;
        let first = self
            .one_of("select display_id from task where account_id = 'alder' and title = 'first'")
            .await;
        let second = json!({"title": "second", "parent_task_id": first, "session_id": child, "blocked_by": []});
        self.uses(key, &[("create_task", second)]).await;
        let second = self
            .one_of("select display_id from task where account_id = 'alder' and title = 'second'")
            .await;
        let third = json!({"title": "third", "blocked_by": [second]});
        self.uses(key, &[("create_task", third)]).await;
        let board = "/api/sessions/orchestrator:new/tasks";
        self.mine(key, "GET", board, &Value::Null).await;
        let worked = json!({"result": "r", "session_id": null});
        self.mine(key, "PUT", &format!("{board}/{second}"), &worked).await;
        let done = json!({"task_id": second, "status": "done", "result": "r"});
        self.uses(
            key,
            &[
                ("list_tasks", json!({})),
                ("update_task", done),
                ("list_tasks", json!({})),
            ],
        )
        .await;
        let mine = format!("/api/sessions/{child}/my-tasks?{PAGED}");
        self.requests(vec![of(key, "GET", &mine, &Value::Null)]).await;
    }

    /// To their orchestrator, to others of every kind of address; reads, puts off and answers what comes back.
    async fn writes(&self, key: &str) {
        let mail = |to: &str, content: &str| json!({"to": to, "content": content});
        let child = "select s.id::text from session s join task t on t.account_id = s.account_id and t.id = s.task_id
                     where s.account_id = 'alder' and t.board = 'user:new' and s.phase = 'backoff'";
        let (child, posts) = (self.one_of(child).await, "/api/messages");
        let asks = self.mine(key, "POST", posts, &mail("@new", "c")).await;
        let asks = asks["id"].as_str().expect("an id").to_owned();
        let key_of_child = "select s.key from session s join task t on t.account_id = s.account_id and t.id = s.task_id
                            where s.account_id = 'alder' and t.board = 'user:new' and s.phase = 'backoff'";
        let key_of_child = self.one_of(key_of_child).await;
        for to in [child.as_str(), key_of_child.as_str(), "@user:ann"] {
            self.mine(key, "POST", posts, &mail(to, "c")).await;
        }
        self.requests(vec![of(key, "POST", posts, &mail("n", "c"))]).await;
        // What waits for the child is read in its place.
        let read = format!("/api/sessions/{child}/messages/read");
        self.requests(vec![of(key, "PUT", &read, &json!({}))]).await;
        let answer = eventually("it is answered", || async {
            let mail = self.mine(key, "GET", &format!("{posts}/{asks}"), &Value::Null).await;
            mail["receipt"]["answered_by"].as_str().map(str::to_owned)
        })
        .await;
        let tomorrow = OffsetDateTime::now_utc() + Duration::days(1);
        let tomorrow = json!({"until": tomorrow.format(&Rfc3339).expect("a time")});
        let item = format!("/api/me/inbox/{answer}");
        self.mine(key, "PUT", &format!("{item}/snooze"), &tomorrow).await;
        // In the thread of what was put off.
        let back = json!({"to": "@user:new", "content": "c", "reply_to": asks});
        self.uses(key, &[("send_message", back), ("check_messages", json!({}))])
            .await;
        let fails = self.mine(key, "POST", posts, &mail("@new", FAILS)).await;
        let fails = format!("mail:{}", fails["id"].as_str().expect("an id"));
        let letter = eventually("what failed is a dead letter", || async {
            let letters = self
                .mine(key, "GET", "/api/orgs/alder/dead-letters", &Value::Null)
                .await;
            let mut items = letters["items"].as_array()?.iter();
            let letter = items.find(|letter| letter["payload"].to_string().contains(&fails))?;
            Some(letter["id"].as_str()?.to_owned())
        })
        .await;
        self.mine(
            key,
            "POST",
            &format!("/api/orgs/alder/dead-letters/{letter}/redrive"),
            &json!({}),
        )
        .await;
        for (method, path, body) in [
            ("GET", format!("/api/me/inbox?{PAGED}"), Value::Null),
            ("GET", "/api/me/inbox/count".to_owned(), Value::Null),
            ("GET", item.clone(), Value::Null),
            ("PUT", "/api/me/inbox/read".to_owned(), json!({"ids": [answer]})),
            ("PUT", format!("{item}/read"), json!({"read": false})),
            ("POST", format!("{item}/reply"), json!({"content": "c"})),
            ("PUT", format!("{item}/archive"), json!({"archived": true})),
            ("GET", format!("/api/me/inbox?state=archived&{PAGED}"), Value::Null),
            (
                "GET",
                format!("/api/sessions/orchestrator:new/messages?{PAGED}"),
                Value::Null,
            ),
            ("GET", format!("/api/me/inbox?from_session_id={child}"), Value::Null),
            (
                "GET",
                format!("/api/sessions?owner=user:new&persona=style&{PAGED}"),
                Value::Null,
            ),
            ("GET", format!("/api/sessions/{key_of_child}"), Value::Null),
            ("GET", "/api/sessions/orchestrator:new".to_owned(), Value::Null),
            (
                "GET",
                format!("/api/orgs/alder/agents?kind=orchestrator&{PAGED}"),
                Value::Null,
            ),
            ("GET", "/api/me/notification-preferences".to_owned(), Value::Null),
            (
                "PUT",
                "/api/me/notification-preferences".to_owned(),
                json!({"message_type": "message", "deliver_email": true}),
            ),
            ("GET", "/api/me/orchestrator".to_owned(), Value::Null),
            ("POST", "/api/me/orchestrator/wake".to_owned(), json!({})),
            ("GET", format!("/api/me/orchestrator/chat?{PAGED}"), Value::Null),
            (
                "PUT",
                "/api/me/orchestrator/identity".to_owned(),
                json!({"name": "m", "handle": "new-one", "style": "terse"}),
            ),
            ("GET", "/api/me/orchestrator/identity".to_owned(), Value::Null),
            (
                "GET",
                "/api/orgs/alder/audit/isolation?until=2120-01-01T00:00:00Z".to_owned(),
                Value::Null,
            ),
        ] {
            self.requests(vec![of(key, method, &path, &body)]).await;
        }
    }

    /// As many memories as are kept; gives the id of one.
    async fn remembered(&self, owner: &str) -> String {
        let sql = "
            insert into memory (account_id, id, owner, key, category, content, relevance, touched_at, fades_at, created_at)
            select $1, gen_random_uuid(), $2, 'k-' || n, 'general', 'n', 1, now(), now() + (200 + n) * interval '1 day', now()
            from generate_series(1, 200) n
            returning id::text";
        let ids: Vec<String> = sqlx::query_scalar(sql)
            .bind(&self.tenant.account)
            .bind(owner)
            .fetch_all(&self.house.world.database.owner)
            .await
            .expect("the database does as it is told");
        ids[199].clone()
    }

    /// Two personas, of which the second becomes the default. Files are written until an old version goes. A task's turn has one.
    pub(super) async fn personas(&self) {
        let files = |content: &str| json!([{"filename": "STYLE.md", "content": content}]);
        for slug in ["first", "second"] {
            let new =
                json!({"slug": slug, "name": "n", "visibility": "shared", "is_default": true, "files": files("x")});
            self.api("POST", "/personas", &new).await;
        }
        self.api("PUT", "/personas/second", &json!({"is_default": false})).await;
        self.api("PUT", "/personas/first", &json!({"description": "d", "agent": "coder"}))
            .await;
        self.conflicts("PUT", "/personas/first", &json!({"slug": "second"}))
            .await;
        self.trials.next_step();
        self.api("PUT", "/personas/first/files", &json!({"files": files("y")}))
            .await;
        let task = json!({"id": "STYLED-1", "title": "t", "assignees": ["coder"], "persona": "first"});
        self.api("POST", "/tasks", &task).await;
        self.delivered("STYLED-1", "styled", "b").await;
        self.api("PATCH", "/tasks/STYLED-1", &json!({"persona": null})).await;
        for path in [
            "/personas",
            "/personas/first/versions",
            "/personas/first/versions/1",
            "/sessions?task=STYLED-1",
        ] {
            self.api("GET", path, &Value::Null).await;
        }
        self.api("GET", "/audit/isolation?task=STYLED-1", &Value::Null).await;
        self.api("DELETE", "/personas/second", &Value::Null).await;
        // What is left of it goes, once it has been removed for a while.
        let long_ago = "update persona set removed_at = removed_at - interval '1 hour' where account_id = 'alder' and removed_at is not null";
        sqlx::query(long_ago)
            .execute(&self.house.world.database.owner)
            .await
            .expect("the database does as it is told");
        let third = json!({"slug": "third", "name": "n", "files": files("z")});
        self.api("POST", "/personas", &third).await;
    }

    /// Tasks that wait for others and are below others: what is done frees, what is given up does not, and a tree goes at once. On the
    /// account's board, too.
    pub(super) async fn board(&self) {
        let waits = |id: &str, blockers: &[&str]| json!({"id": id, "title": "t", "assignees": ["coder"], "blocked_by": blockers});
        for (id, blockers) in [
            ("WAITED-1", &[][..]),
            ("WAITED-2", &[]),
            ("WAITS-1", &["WAITED-1"]),
            ("WAITS-2", &["WAITED-1", "WAITED-2"]),
        ] {
            self.api("POST", "/tasks", &waits(id, blockers)).await;
        }
        let below = json!({"id": "BELOW-1", "title": "t", "parent_task": "WAITS-2"});
        self.api("POST", "/tasks", &below).await;
        self.api("PATCH", "/tasks/BELOW-1", &json!({"blocked_by": ["WAITS-1"]}))
            .await;
        self.conflicts("PATCH", "/tasks/WAITED-1", &json!({"blocked_by": ["WAITS-1"]}))
            .await;
        self.conflicts("PATCH", "/tasks/WAITS-2", &json!({"parent_task": "BELOW-1"}))
            .await;
        self.conflicts("PATCH", "/tasks/WAITS-2", &json!({"status": "in_progress"}))
            .await;
        self.api("GET", "/tasks/BELOW-1", &Value::Null).await;
        self.api("PATCH", "/tasks/WAITED-1", &json!({"status": "done"})).await;
        // What was done is opened again: whoever waited for it waits no more.
        self.api("PATCH", "/tasks/WAITED-1", &json!({"status": "in_progress"}))
            .await;
        self.api("PATCH", "/tasks/WAITS-1", &json!({"blocked_by": ["WAITED-1"]}))
            .await;
        self.api("PATCH", "/tasks/WAITS-1", &json!({"blocked_by": []})).await;
        self.api(
            "PATCH",
            "/tasks/BELOW-1",
            &json!({"blocked_by": ["WAITS-1", "WAITED-1"]}),
        )
        .await;
        self.api("PATCH", "/tasks/WAITED-2", &json!({"status": "failed"})).await;
        self.api("PATCH", "/tasks/WAITS-2", &json!({"blocked_by": []})).await;
        self.api("POST", "/tasks/WAITS-2/cancel", &json!({"tree": true})).await;
        let path = format!("/api/sessions/orchestrator:org:{}/tasks", self.tenant.account);
        let admin = &self.tenant.keys["admin"];
        let requests = [
            of(admin, "POST", &path, &json!({"title": "t", "plan_gate": "required"})),
            of(admin, "POST", &path, &json!({"title": "u"})),
            of(admin, "GET", &format!("{path}?limit=1"), &Value::Null),
        ];
        self.requests(requests.into()).await;
    }
}
