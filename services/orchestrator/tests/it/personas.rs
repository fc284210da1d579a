//! Personas: who sees and changes them, their versions, the default one.

use serde_json::{Value, json};
use testkit::rows;

use crate::{
    members::member,
    world::{Answer, Tenant, World},
};

fn file(filename: &str, content: &str) -> Value {
    json!({"filename": filename, "content": content})
}

async fn made(world: &World, tenant: &Tenant, token: &str, new: Value) -> Value {
    let made = world.post(token, &tenant.path("/personas"), new).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.body
}

fn persona(slug: &str) -> Value {
    json!({"slug": slug, "name": slug, "files": [file("STYLE.md", "Be brief.")]})
}

fn slugs(list: &Answer) -> Vec<&str> {
    let items = list.body["items"].as_array().unwrap();
    items.iter().map(|item| item["slug"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_persona_is_its_makers_until_it_is_shared() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let bob = member(&world, &tenant, "bob", "member").await;
    let persona = made(&world, &tenant, &ann, persona("reviewer")).await;
    assert_eq!(
        json!([
            persona["visibility"],
            persona["created_by"],
            persona["version"]["number"],
            persona["is_default"]
        ]),
        json!(["private", "ann", 1, false])
    );
    let path = tenant.path("/personas/reviewer");
    let sees = async |token: &str| {
        let read = world.get(token, &path).await.status == 200;
        let listed = slugs(&world.get(token, &tenant.path("/personas")).await) == ["reviewer"];
        let versions = world.get(token, &format!("{path}/versions")).await.status == 200;
        assert_eq!((read, read), (listed, versions));
        read
    };
    for (token, expected) in [
        (&ann, true),
        (&tenant.admin, true),
        (&bob, false),
        (&tenant.service, false),
    ] {
        assert_eq!(sees(token).await, expected);
    }
    // What one does not see is not there, for changes, too.
    let shared = || json!({"visibility": "shared"});
    let files = || json!({"files": [file("A.md", "x")]});
    assert_eq!(world.put(&bob, &path, shared()).await.status, 404);
    assert_eq!(world.put(&bob, &format!("{path}/files"), files()).await.status, 404);
    assert_eq!(world.delete(&bob, &path).await.status, 404);
    assert_eq!(world.put(&ann, &path, shared()).await.status, 200);
    assert!(sees(&bob).await && sees(&tenant.service).await);
    // It is used by all, and changed by its maker and by admins.
    world
        .put(&bob, &path, shared())
        .await
        .is_problem(403, "forbidden", "maker");
    world
        .put(&bob, &format!("{path}/files"), files())
        .await
        .is_problem(403, "forbidden", "maker");
    assert_eq!(world.put(&tenant.service, &path, shared()).await.status, 403);
    let named = world.put(&tenant.admin, &path, json!({"name": "Reviewer"})).await;
    assert_eq!(
        (&named.body["name"], &named.body["created_by"]),
        (&json!("Reviewer"), &json!("ann"))
    );
    // Another account has none of it.
    let other = world.tenant("other").await;
    assert_eq!(
        world.get(&other.admin, &other.path("/personas/reviewer")).await.status,
        404
    );
    let id = persona["id"].as_str().unwrap();
    assert_eq!(
        world
            .get(&other.admin, &other.path(&format!("/personas/{id}")))
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn files_that_change_are_the_next_version_and_equal_ones_are_none() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let new = json!({"slug": "p", "name": "P", "files": [{"filename": "B.md", "content": "b"}, {"filename": "A.md", "content": "a", "sortOrder": 7}]});
    let first = made(&world, &tenant, &tenant.admin, new).await;
    let names = |persona: &Value| -> Vec<String> {
        let files = persona["files"].as_array().unwrap();
        files
            .iter()
            .map(|file| file["filename"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&first), ["B.md", "A.md"]);
    let path = tenant.path("/personas/p/files");
    let write = async |body: Value| world.put(&tenant.admin, &path, body).await;
    let same = json!([{"filename": "A.md", "content": "a", "sort_order": 7}, {"filename": "B.md", "content": "b"}]);
    let again = write(json!({"files": same, "base_version": 1})).await;
    assert_eq!(
        (again.status.as_u16(), &again.body["version"]),
        (200, &first["version"])
    );
    let second = write(json!({"files": [file("A.md", "other")], "baseVersion": 1})).await;
    assert_eq!(second.body["version"]["number"], 2);
    assert_ne!(second.body["version"]["hash"], first["version"]["hash"]);
    write(json!({"files": [file("A.md", "late")], "base_version": 1}))
        .await
        .is_problem(409, "version_conflict", "2 and not 1");

    let versions = world.get(&tenant.member, &tenant.path("/personas/p/versions")).await;
    assert_eq!(versions.status, 404, "private");
    let versions = world
        .get(&tenant.admin, &tenant.path("/personas/p/versions?limit=1"))
        .await;
    assert_eq!(versions.body["items"][0]["number"], 2);
    assert!(versions.body["items"][0].get("files").is_none() && versions.body["next_cursor"].is_string());
    let old = world.get(&tenant.admin, &tenant.path("/personas/p/versions/1")).await;
    assert_eq!(
        (names(&old.body), &old.body["hash"]),
        (names(&first), &first["version"]["hash"])
    );
    assert_eq!(
        world
            .get(&tenant.admin, &tenant.path("/personas/p/versions/3"))
            .await
            .status,
        404
    );
    // The newest fifty stay.
    for n in 3..=52 {
        assert_eq!(
            write(json!({"files": [file("A.md", &n.to_string())]})).await.body["version"]["number"],
            n
        );
    }
    let kept = "select min(number) || ' ' || max(number) || ' ' || count(*) from persona_version";
    assert_eq!(world.test.texts(kept).await, ["3 52 50"]);
}

#[tokio::test]
async fn an_account_has_one_default_persona_which_stays_shared() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let default = |slug: &str| {
        let mut new = persona(slug);
        new["is_default"] = json!(true);
        new["visibility"] = json!("shared");
        new
    };
    let refused = world.post(&ann, &tenant.path("/personas"), default("one")).await;
    refused.is_problem(403, "forbidden", "admin");
    let mut private = default("one");
    private["visibility"] = json!("private");
    let refused = world.post(&tenant.admin, &tenant.path("/personas"), private).await;
    refused.is_problem(400, "invalid_field", "shared");
    made(&world, &tenant, &tenant.admin, default("one")).await;
    made(&world, &tenant, &tenant.admin, default("two")).await;
    let defaults = "select slug from persona where is_default";
    assert_eq!(world.test.texts(defaults).await, ["two"]);
    let one = tenant.path("/personas/one");
    let two = tenant.path("/personas/two");
    let set = world.put(&tenant.admin, &one, json!({"isDefault": true})).await;
    assert_eq!(set.body["is_default"], true);
    assert_eq!(world.test.texts(defaults).await, ["one"]);
    let hidden = world.put(&tenant.admin, &one, json!({"visibility": "private"})).await;
    hidden.is_problem(409, "persona_in_use", "default");
    world
        .delete(&tenant.admin, &one)
        .await
        .is_problem(409, "persona_in_use", "default");
    // It is the default no longer, can be removed, and its slug is free.
    let unset = json!({"is_default": false, "visibility": "private"});
    assert_eq!(world.put(&tenant.admin, &one, unset).await.status, 200);
    assert_eq!(world.delete(&tenant.admin, &one).await.status, 204);
    assert_eq!(world.get(&tenant.admin, &one).await.status, 404);
    made(&world, &tenant, &tenant.admin, persona("one")).await;
    let taken = world
        .post(&tenant.admin, &tenant.path("/personas"), persona("two"))
        .await;
    taken.is_problem(409, "slug_taken", "another persona");
    let taken = world.put(&tenant.admin, &two, json!({"slug": "one"})).await;
    taken.is_problem(409, "slug_taken", "another persona");
}

#[tokio::test]
async fn two_that_become_the_default_at_one_time_come_one_after_the_other() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    for slug in ["a", "b", "c", "d"] {
        let mut new = persona(slug);
        new["visibility"] = json!("shared");
        made(&world, &tenant, &tenant.admin, new).await;
    }
    let set = async |slug: &str| {
        let path = tenant.path(&format!("/personas/{slug}"));
        world
            .put(&tenant.admin, &path, json!({"is_default": true}))
            .await
            .status
    };
    let (a, b, c, d) = tokio::join!(set("a"), set("b"), set("c"), set("d"));
    assert_eq!([a, b, c, d].map(|status| status.as_u16()), [200; 4]);
    assert_eq!(
        world.test.count("select count(*) from persona where is_default").await,
        1
    );
}

#[tokio::test]
async fn bad_files_are_refused_with_file_and_limit() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let refused = async |files: Value, says: &str| {
        let mut new = persona("p");
        new["files"] = files;
        let answer = world.post(&tenant.admin, &tenant.path("/personas"), new).await;
        answer.is_problem(400, "invalid_field", says);
    };
    refused(json!([]), "1 to 16 files").await;
    refused(json!([file("../A.md", "")]), "file 1: a filename is").await;
    refused(json!([file("/etc/A.md", "")]), "file 1: a filename is").await;
    refused(json!([file("A.md", ""), file("a.MD", "")]), "file 2: a filename is").await;
    refused(json!([file("A.md", ""), file("a.md", "")]), "file a.md: another file").await;
    refused(
        json!([file("A.md", &"x".repeat(32 * 1024 + 1))]),
        "file A.md: 32769 bytes",
    )
    .await;
    let many: Vec<Value> = (0..17).map(|n| file(&format!("{n}.md"), "")).collect();
    refused(json!(many), "not 17").await;
    refused(json!([file("A.md", "a\rb")]), "U+000D").await;
    let unseen = file("A.md", &"\u{ad}".repeat(16 * 1024 - 1));
    refused(json!([unseen]), "cannot be seen as escapes").await;
    refused(
        json!([{"filename": "A.md", "content": "", "sort_order": 100}]),
        "0 to 99",
    )
    .await;
    refused(
        json!([{"filename": "A.md", "content": "", "sort_order": 1, "sortOrder": 1}]),
        "duplicate",
    )
    .await;
    let unknown = json!({"slug": "p", "name": "p", "agent": "nobody", "files": [file("A.md", "")]});
    let unknown = world.post(&tenant.admin, &tenant.path("/personas"), unknown).await;
    unknown.is_problem(400, "unknown_agent", "nobody");
}

#[tokio::test]
async fn an_account_has_so_many_personas() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let first = made(&world, &tenant, &tenant.admin, persona("first")).await;
    world
        .execute(
            "insert into persona select p.account_id, gen_random_uuid(), 'p' || n, name, description, icon, visibility, is_default,
                 memory_enabled, agent_id, version_id, created_by, created_at, updated_at, null
             from persona p, generate_series(2, 500) n",
        )
        .await;
    let refused = world
        .post(&tenant.admin, &tenant.path("/personas"), persona("one-more"))
        .await;
    refused.is_problem(409, "persona_limit", "500");
    let path = tenant.path(&format!("/personas/{}", first["id"].as_str().unwrap()));
    assert_eq!(world.delete(&tenant.admin, &path).await.status, 204);
    // One maker leaves room for the others.
    let refused = world
        .post(&tenant.admin, &tenant.path("/personas"), persona("one-more"))
        .await;
    refused.is_problem(409, "persona_limit", "you have made 100");
    let ann = member(&world, &tenant, "ann", "member").await;
    made(&world, &tenant, &ann, persona("one-more")).await;
}

/// Whoever reads a task's prompts reads its persona: so nobody gets one there that is not shared, nor their own.
#[tokio::test]
async fn a_persona_that_becomes_private_is_in_no_new_generation_of_others() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let bob = member(&world, &tenant, "bob", "member").await;
    let mut new = persona("reviewer");
    new["visibility"] = json!("shared");
    made(&world, &tenant, &ann, new).await;
    world.agent(&tenant, "coder").await;
    let task = async |token: &str, id: &str| {
        let new = json!({"id": id, "title": id, "assignees": ["coder"], "persona": "reviewer"});
        world.post(token, &tenant.path("/tasks"), new).await
    };
    assert_eq!(task(&bob, "T-1").await.body["persona"], "reviewer");
    let path = tenant.path("/personas/reviewer");
    assert_eq!(
        world.put(&ann, &path, json!({"visibility": "private"})).await.status,
        200
    );
    for token in [&bob, &tenant.admin] {
        task(token, "T-2").await.is_problem(400, "unknown_persona", "reviewer");
    }
    assert_eq!(task(&ann, "T-3").await.body["persona"], "reviewer", "her own");
    let seen = world.get(&ann, &tenant.path("/tasks")).await;
    let named = |task: &Value| format!("{} {}", task["id"].as_str().unwrap(), task["persona"]);
    let mut named: Vec<String> = seen.body["items"].as_array().unwrap().iter().map(named).collect();
    named.sort();
    assert_eq!(named, ["T-1 null", "T-3 \"reviewer\""]);
}

#[tokio::test]
async fn two_versions_that_are_written_at_one_time_come_one_after_the_other() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    made(&world, &tenant, &tenant.admin, persona("p")).await;
    let path = tenant.path("/personas/p/files");
    let write = async |content: &str, base: Value| {
        let files = json!({"files": [file("A.md", content)], "base_version": base});
        world.put(&tenant.admin, &path, files).await
    };
    let (a, b, c) = tokio::join!(
        write("a", Value::Null),
        write("b", Value::Null),
        write("c", Value::Null)
    );
    let mut numbers = [a, b, c].map(|answer| answer.body["version"]["number"].as_i64());
    numbers.sort_unstable();
    assert_eq!(numbers, [Some(2), Some(3), Some(4)]);
    let (a, b) = tokio::join!(write("d", json!(4)), write("e", json!(4)));
    let mut statuses = [a, b].map(|answer| answer.status.as_u16());
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
}

/// Old versions that sessions have keep no younger one.
#[tokio::test]
async fn a_version_that_is_old_and_in_no_session_goes() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    made(&world, &tenant, &tenant.admin, persona("p")).await;
    world.agent(&tenant, "coder").await;
    let many = "insert into persona_version (account_id, id, persona_id, number, slug, files, hash, created_by, created_at)
        select v.account_id, gen_random_uuid(), v.persona_id, n, v.slug, v.files, sha256(n::text::bytea), v.created_by, v.created_at
        from persona_version v, generate_series(2, 130) n where v.number = 1";
    world.execute(many).await;
    world
        .execute("update persona p set version_id = v.id from persona_version v where v.persona_id = p.id and v.number = 130")
        .await;
    rows("session")
        .from("agent a, persona_version v where v.number <= 70")
        .set("persona_version_id", "v.id")
        .set("generation", "v.number")
        .set("closed_at", "now()")
        .with("persona_why", "user")
        .insert(&world.test.owner)
        .await;
    let files = json!({"files": [file("A.md", "131")]});
    let written = world.put(&tenant.admin, &tenant.path("/personas/p/files"), files).await;
    assert_eq!(written.body["version"]["number"], 131);
    let left = "select concat_ws(' ', count(*), count(*) filter (where number <= 70), min(number) filter (where number > 70)) from persona_version";
    assert_eq!(world.test.texts(left).await, ["120 70 82"]);
}

#[tokio::test]
async fn what_is_left_of_removed_personas_goes_when_others_are_made() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    for n in 0..4 {
        let slug = format!("p-{n}");
        made(&world, &tenant, &tenant.admin, persona(&slug)).await;
        let path = tenant.path(&format!("/personas/{slug}"));
        assert_eq!(world.delete(&tenant.admin, &path).await.status, 204);
    }
    // A session has the version of one of them.
    world.agent(&tenant, "coder").await;
    world
        .execute(
            "update persona set removed_at = removed_at - interval '1 hour' - interval '1 day' * (slug = 'p-3')::int",
        )
        .await;
    rows("session")
        .from("agent a, persona p where p.slug = 'p-3'")
        .set("persona_version_id", "p.version_id")
        .with("persona_why", "user")
        .insert(&world.test.owner)
        .await;
    made(&world, &tenant, &tenant.admin, persona("next")).await;
    made(&world, &tenant, &tenant.admin, persona("last")).await;
    let left = "select p.slug || ' ' || count(v.id) from persona p left join persona_version v on v.persona_id = p.id group by p.slug order by 1";
    assert_eq!(world.test.texts(left).await, ["last 1", "next 1", "p-3 1"]);
}
