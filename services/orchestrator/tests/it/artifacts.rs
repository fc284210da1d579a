//! Artifacts: kept once for an account, whatever crosses; within its room; served as files that nothing runs.

use axum::http::{Method, StatusCode};
use domain::{AccountId, Actor, ArtifactId, ArtifactSource, TaskId};
use futures::future::join_all;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use storage::{
    Accounts, Database, Role, Setting,
    lifecycle::artifact_store::{File, NewArtifact, artifact_remove, artifact_store},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::world::{Answer, Tenant, World};

const CONTENTS: &str =
    "select concat_ws(' ', encode(sha256, 'hex'), octet_length(content)) from artifact_content order by 1";
const ROOM: &str = "select concat_ws(' ', a.artifact_bytes, coalesce(sum(octet_length(c.content)), 0))
    from account a left join artifact_content c on c.account_id = a.id group by a.id order by a.id";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\nand some more";

async fn working() -> (World, Tenant) {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    (world, tenant)
}

impl World {
    async fn upload(&self, tenant: &Tenant, name: &str, content: &[u8]) -> Answer {
        self.uploading(tenant, name).raw(content).send().await
    }

    fn uploading(&self, tenant: &Tenant, name: &str) -> crate::world::Call<'_> {
        let path = tenant.path(&format!("/tasks/Proj-7/artifacts?name={name}"));
        self.call(Method::POST, &path)
            .token(&tenant.member)
            .header("content-type", "text/html")
    }

    async fn stored(&self, tenant: &Tenant, name: &str, content: &[u8]) -> String {
        let stored = self.upload(tenant, name, content).await;
        assert_eq!(stored.status, StatusCode::CREATED, "{stored:?}");
        stored.body["id"].as_str().unwrap().to_owned()
    }

    async fn artifact(&self, tenant: &Tenant, id: &str, more: &str) -> Answer {
        self.get(&tenant.member, &tenant.path(&format!("/artifacts/{id}{more}")))
            .await
    }

    async fn remove(&self, tenant: &Tenant, id: &str) -> Answer {
        self.delete(&tenant.member, &tenant.path(&format!("/artifacts/{id}")))
            .await
    }
}

#[tokio::test]
async fn a_file_is_kept_shown_and_removed() {
    let (world, tenant) = working().await;
    let made = world
        .upload(&tenant, "plan%20%C3%A9.html", b"<script>alert(1)</script>")
        .await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let id = made.body["id"].as_str().unwrap().to_owned();
    let mut expected = json!({
        "id": id, "task": "PROJ-7", "name": "plan \u{e9}.html", "media_type": "text/plain", "bytes": 25,
        "sha256": hex::encode(Sha256::digest(b"<script>alert(1)</script>")), "source": "upload", "source_ref": null,
    });
    expected["created_by"] = made.body["created_by"].clone();
    expected["created_at"] = made.body["created_at"].clone();
    assert_eq!(made.body, expected);
    assert_eq!(made.body["created_by"]["name"], "a member");
    assert_eq!(
        world.artifact(&tenant, &id, "").await.body["sha256"],
        expected["sha256"]
    );
    let list = world.get(&tenant.member, &tenant.path("/tasks/PROJ-7/artifacts")).await;
    assert_eq!(list.body["items"], json!([world.artifact(&tenant, &id, "").await.body]));

    let content = world.artifact(&tenant, &id, "/content").await;
    assert_eq!(content.body, json!("<script>alert(1)</script>"));
    let header = |name: &str| content.headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(
        header("content-disposition"),
        "attachment; filename*=UTF-8''plan%20%C3%A9.html"
    );
    assert_eq!(
        header("content-security-policy"),
        "sandbox; default-src 'none'; frame-ancestors 'none'"
    );
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(header("cache-control"), "no-store");
    assert_eq!(header("content-length"), "25");

    assert_eq!(world.remove(&tenant, &id).await.status, StatusCode::NO_CONTENT);
    for more in ["", "/content"] {
        assert_eq!(world.artifact(&tenant, &id, more).await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(world.remove(&tenant, &id).await.status, StatusCode::NOT_FOUND);
    let told: Vec<(String, Value)> = world
        .sent_on("signalbox.event.acme.PROJ-7.artifact.")
        .await
        .into_iter()
        .map(|sent| {
            (
                sent.subject.rsplit_once('.').unwrap().1.to_owned(),
                sent.payload["data"]["artifact_id"].clone(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [("created".to_owned(), json!(id)), ("removed".to_owned(), json!(id))]
    );
    assert_eq!(world.test.texts(ROOM).await, ["0 0"]);
}

#[tokio::test]
async fn what_is_no_file_is_refused() {
    let (world, tenant) = working().await;
    let path = |rest: &str| tenant.path(&format!("/tasks/{rest}"));
    let send = async |token: &str, path: &str, content: &[u8]| {
        world.call(Method::POST, path).token(token).raw(content).send().await
    };
    let member = &tenant.member;
    send(member, &path("PROJ-7/artifacts"), PNG)
        .await
        .is_problem(422, "invalid_field", "name");
    send(member, &path("PROJ-7/artifacts?name="), PNG)
        .await
        .is_problem(422, "invalid_field", "name");
    send(member, &path("PROJ-7/artifacts?name=a%0D%0Ab"), PNG)
        .await
        .is_problem(400, "invalid_field", "control");
    send(member, &path("PROJ-7/artifacts?name=a&type=b"), PNG)
        .await
        .is_problem(400, "invalid_field", "unknown field");
    send(member, &path("PROJ-7/artifacts?name=a"), b"")
        .await
        .is_problem(422, "invalid_field", "empty");
    send(member, &path("PROJ-7/artifacts?name=a"), b"\x7fELF\0\x01")
        .await
        .is_problem(415, "unsupported_media_type", "PNG");
    send(member, &path("PROJ-8/artifacts?name=a"), PNG)
        .await
        .is_problem(404, "not_found", "");
    let publisher = send(&tenant.publisher, &path("PROJ-7/artifacts?name=a"), PNG).await;
    publisher.is_problem(403, "forbidden", "publisher");
    assert_eq!(world.test.texts(CONTENTS).await, [""; 0]);
    assert_eq!(world.test.texts(ROOM).await, ["0 0"]);
}

/// The limit of this route is its own; the others keep theirs.
#[tokio::test]
async fn a_body_is_as_large_as_an_artifact_may_be() {
    let world = World::with(|settings| {
        settings.artifact_bytes_max = runtime::settings::ArtifactBytes::new(2_000_000);
    })
    .await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    let text = |bytes: usize| vec![b'x'; bytes];
    assert_eq!(
        world.upload(&tenant, "a", &text(2_000_000)).await.status,
        StatusCode::CREATED
    );
    let larger = world.upload(&tenant, "a", &text(2_000_001)).await;
    assert_eq!(larger.status, StatusCode::PAYLOAD_TOO_LARGE, "{larger:?}");
    let message = world
        .call(Method::POST, &tenant.path("/tasks/PROJ-7/messages"))
        .token(&tenant.member);
    let message = message.json(&json!({"body": "x".repeat(1_100_000)})).send().await;
    assert_eq!(message.status, StatusCode::PAYLOAD_TOO_LARGE, "{message:?}");
    assert_eq!(world.test.texts(ROOM).await, ["2000000 2000000"]);
}

#[tokio::test]
async fn another_accounts_artifact_is_not_there() {
    let (world, tenant) = working().await;
    let other = world.tenant("other").await;
    world.task(&other, "PROJ-7", &[]).await;
    let id = world.stored(&tenant, "a", PNG).await;
    let nobodys = Uuid::now_v7().to_string();
    let plain = |answer: Answer| {
        let mut body = answer.body;
        body.as_object_mut().unwrap().remove("instance");
        // The answer names the path that was asked for.
        let body = body.to_string();
        (answer.status, body.replace(&id, "ID").replace(&nobodys, "ID"))
    };
    for more in ["", "/content"] {
        let theirs = plain(world.artifact(&other, &id, more).await);
        assert_eq!(theirs.0, StatusCode::NOT_FOUND);
        assert_eq!(theirs, plain(world.artifact(&other, &nobodys, more).await));
    }
    assert_eq!(
        plain(world.remove(&other, &id).await),
        plain(world.remove(&other, &nobodys).await)
    );
    // The same bytes are another account's own.
    let theirs = world.stored(&other, "a", PNG).await;
    assert_eq!(world.remove(&tenant, &id).await.status, StatusCode::NO_CONTENT);
    assert_eq!(world.artifact(&other, &theirs, "/content").await.status, StatusCode::OK);
    assert_eq!(world.test.texts(ROOM).await, ["0 0", "21 21"]);
}

#[tokio::test]
async fn the_same_bytes_are_kept_once_however_often_they_come_at_once() {
    let (world, tenant) = working().await;
    let names: Vec<String> = (0..6).map(|n| format!("n-{n}")).collect();
    let uploads = join_all(names.iter().map(|name| world.upload(&tenant, name, PNG))).await;
    let mut ids: Vec<String> = uploads
        .iter()
        .map(|made| {
            assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
            made.body["id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(world.test.texts(CONTENTS).await.len(), 1);
    assert_eq!(world.test.texts(ROOM).await, ["21 21"]);
    let last = ids.pop().unwrap();
    let removed = join_all(ids.iter().map(|id| world.remove(&tenant, id))).await;
    assert!(
        removed.iter().all(|one| one.status == StatusCode::NO_CONTENT),
        "{removed:?}"
    );
    assert_eq!(world.artifact(&tenant, &last, "/content").await.status, StatusCode::OK);
    assert_eq!(world.test.texts(ROOM).await, ["21 21"]);
}

#[tokio::test]
async fn a_repeated_upload_is_one() {
    let (world, tenant) = working().await;
    let send = async |name: &str, content: &[u8]| {
        let call = world.uploading(&tenant, name).header("idempotency-key", "k-1");
        call.raw(content).send().await
    };
    let first = send("a", PNG).await;
    let again = send("a", PNG).await;
    assert_eq!((again.status, &again.body), (StatusCode::CREATED, &first.body));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    send("b", PNG).await.is_problem(422, "idempotency_key_reused", "");
    send("a", b"text").await.is_problem(422, "idempotency_key_reused", "");
    assert_eq!(world.test.count("select count(*) from artifact").await, 1);
    assert_eq!(world.test.texts(ROOM).await, ["21 21"]);
}

#[tokio::test]
async fn an_account_has_its_room_and_no_more() {
    let world = World::with(|settings| {
        settings.artifact_account_bytes_max = runtime::settings::Bytes::new(1_000);
    })
    .await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    // Of ten uploads at one time, three find room.
    let contents: Vec<Vec<u8>> = (0..10).map(|n| vec![b'a' + n; 300]).collect();
    let uploads = join_all(contents.iter().map(|content| world.upload(&tenant, "a", content))).await;
    let (kept, refused): (Vec<_>, Vec<_>) = uploads.into_iter().partition(|made| made.status == StatusCode::CREATED);
    assert_eq!(kept.len(), 3, "{refused:?}");
    for refused in refused {
        refused.is_problem(409, "artifact_quota", "1200 bytes, of 1000");
    }
    assert_eq!(world.test.texts(ROOM).await, ["900 900"]);
    // What is there takes no more room.
    let there = kept[0].body["sha256"].as_str().unwrap().to_owned();
    let same = contents
        .iter()
        .find(|content| hex::encode(Sha256::digest(content)) == there)
        .unwrap();
    world.stored(&tenant, "b", same).await;
    world.stored(&tenant, "c", &[b'z'; 100]).await;
    // Room that is given back can be used.
    let id = kept[1].body["id"].as_str().unwrap();
    assert_eq!(world.remove(&tenant, id).await.status, StatusCode::NO_CONTENT);
    world.stored(&tenant, "d", &[b'y'; 300]).await;
    assert_eq!(world.test.texts(ROOM).await, ["1000 1000"]);
}

/// Statements of two transactions, step by step.
struct Side {
    database: Database,
    account: AccountId,
}

impl Side {
    async fn begin(&self) -> storage::Tx {
        self.database.begin(&Accounts::one(&self.account)).await.unwrap()
    }

    async fn store(&self, tx: &storage::Tx, file: &File) -> ArtifactId {
        let (root, task) = (contracts::Root::default(), TaskId::parse("PROJ-7").unwrap());
        let id = ArtifactId(Uuid::now_v7());
        let new = NewArtifact {
            account: &self.account,
            task: &task,
            id,
            name: "n",
            file,
            source: ArtifactSource::Upload,
            source_ref: None,
            by: &Actor::system(),
        };
        let room = runtime::settings::Bytes::new(1_000);
        artifact_store(tx, &new, room, &setting(&root)).await.unwrap().unwrap();
        id
    }

    async fn remove(&self, tx: &storage::Tx, id: ArtifactId) {
        let root = contracts::Root::default();
        let removed = artifact_remove(tx, &self.account, id, &Actor::system(), &setting(&root)).await;
        removed.unwrap().unwrap();
    }
}

fn setting(root: &contracts::Root) -> Setting<'_> {
    Setting {
        root,
        source: "/signalbox/test",
        origin: contracts::outgoing::Origin::default(),
        now: OffsetDateTime::UNIX_EPOCH,
    }
}

/// The content of the last artifact that names it goes while another is stored with the same bytes: whichever is first, the new one
/// has its content, and a crash of either changes nothing.
#[tokio::test]
async fn the_last_removal_and_a_new_upload_cross() {
    let (world, tenant) = working().await;
    let side = Side {
        database: world.test.connect(Role::Orchestrator).await,
        account: AccountId::parse(&tenant.id).unwrap(),
    };
    let file = File::of(PNG.to_vec()).await.unwrap();
    let (with_content, one) = (
        "select count(*) from artifact a join artifact_content c using (account_id, sha256)",
        1,
    );
    for (removal_first, first_commits) in [(true, true), (false, true), (true, false), (false, false)] {
        let tx = side.begin().await;
        let old = side.store(&tx, &file).await;
        tx.commit().await.unwrap();
        let (first, second) = (side.begin().await, side.begin().await);
        if removal_first {
            side.remove(&first, old).await;
        } else {
            side.store(&first, &file).await;
        }
        // The second waits for the first.
        let ended = async {
            if first_commits {
                first.commit().await.unwrap();
            } else {
                first.rollback().await.unwrap();
            }
        };
        let crossing = Box::pin(async {
            if removal_first {
                side.store(&second, &file).await;
            } else {
                side.remove(&second, old).await;
            }
            second.commit().await.unwrap();
        });
        let pause = Box::pin(tokio::time::sleep(std::time::Duration::from_millis(100)));
        let futures::future::Either::Right((_, crossing)) = futures::future::select(crossing, pause).await else {
            panic!("it did not wait");
        };
        tokio::join!(ended, crossing);
        let named = match (removal_first, first_commits) {
            (_, true) => one,
            // The removal was taken back: both are there. The upload was: none is left.
            (true, false) => 2,
            (false, false) => 0,
        };
        let about = format!("{removal_first} {first_commits}");
        assert_eq!(
            world.test.count("select count(*) from artifact").await,
            named,
            "{about}"
        );
        assert_eq!(world.test.count(with_content).await, named, "{about}");
        let kept = if named > 0 { "21 21" } else { "0 0" };
        assert_eq!(world.test.texts(ROOM).await, [kept], "{about}");
        world.execute("delete from artifact").await;
        world.execute("delete from artifact_content").await;
        world.execute("update account set artifact_bytes = 0").await;
    }
}
