//! Inserts rows in tests without the services: columns that a test does not set have defaults. No other test code
//! inserts sessions, notifications or turns (`tests/it/architecture.rs`), so that a new column costs one line here.

use std::{collections::BTreeMap, fmt};

use sqlx::PgPool;

/// A column and its default, as SQL. `{column}` stands for that column's value in the row.
type Column = (&'static str, &'static str);

/// Of a table, and of a table with a `from` that begins like this.
const DEFAULTS: &[(&str, &str, &[Column])] = &[
    ("account", "", &[("name", "''")]),
    (
        "agent",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("slug", "'coder'"),
            ("name", "{slug}"),
        ],
    ),
    (
        "task",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "lower({display_id})"),
            ("display_id", "'PROJ-7'"),
            ("title", "{display_id}"),
            ("status", "'in_progress'"),
        ],
    ),
    (
        "message",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("task_id", "'proj-7'"),
            ("author_kind", "'user'"),
            ("author_id", "'u-1'"),
            ("author_name", "'A person'"),
            ("body", "'b'"),
        ],
    ),
    (
        "session",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            (
                "kind",
                "case when {task_id} is not null then 'task' when {agent_id} is not null then 'system' else 'orchestrator' end",
            ),
            ("task_id", "null"),
            ("agent_id", "null"),
            ("user_id", "null"),
            ("generation", "1"),
            (
                "key",
                "concat_ws(':', coalesce('task:' || {task_id}, case when {agent_id} is not null then 'system'
                                         when {user_id} is not null then 'orchestrator' else 'orchestrator:org' end),
                           'agent:' || {agent_id}, {account_id}, {user_id}, 'v' || {generation})",
            ),
            ("closed_at", "null"),
            ("close_reason", "case when {closed_at} is not null then 'task_done' end"),
        ],
    ),
    (
        "session",
        "agent a",
        &[("account_id", "a.account_id"), ("agent_id", "a.id")],
    ),
    // Of a turn of this session.
    (
        "branch",
        "session s",
        &[
            ("account_id", "s.account_id"),
            ("id", "gen_random_uuid()"),
            ("group_id", "{id}"),
            ("ordinal", "1"),
            ("task_id", "s.task_id"),
            ("parent_session_id", "s.id"),
            ("parent_turn_id", "coalesce(s.active_turn_id, s.id)"),
            ("session_id", "gen_random_uuid()"),
            ("agent_id", "s.agent_id"),
            ("depth", "1"),
            ("request", "'r'"),
            ("context", "'snapshot'"),
            ("join_mode", "'all'"),
            (
                "base",
                "jsonb_build_object('title', 't', 'description', '', 'status', 'in_progress', 'updated_at', now(), 'number', 1,
                                    'rounds', 0, 'notes', 0, 'hops', 0, 'sha256', '')",
            ),
            ("base_messages", "'{}'"),
            ("base_activities", "'{}'"),
            ("deadline_at", "now() + interval '1 hour'"),
            ("state", "'live'"),
            ("ended_at", "case when {state} <> 'live' then now() end"),
        ],
    ),
    // Without a session.
    (
        "replay",
        "turn t",
        &[("account_id", "t.account_id"), ("source_turn_id", "t.id")],
    ),
    (
        "replay",
        "",
        &[
            ("id", "gen_random_uuid()"),
            ("session_id", "gen_random_uuid()"),
            ("spec", "'{}'"),
            ("created_by_kind", "'user'"),
            ("created_by_id", "'u-1'"),
            ("created_by_name", "'Ann'"),
        ],
    ),
    // Without a session it was refused.
    (
        "notification",
        "",
        &[
            ("account_id", "'acme'"),
            ("kind", "'test'"),
            ("body", "'b'"),
            ("sender_kind", "'user'"),
            ("sender_id", "'u-1'"),
            ("sender_name", "'A person'"),
            ("content_hash", "''"),
            ("state", "'refused'"),
        ],
    ),
    (
        "notification",
        "session s",
        &[
            ("account_id", "s.account_id"),
            ("task_id", "s.task_id"),
            ("agent_id", "s.agent_id"),
            ("session_id", "s.id"),
            ("position", "1"),
            ("state", "'queued'"),
        ],
    ),
    (
        "turn",
        "session s",
        &[
            ("account_id", "s.account_id"),
            ("id", "gen_random_uuid()"),
            ("session_id", "s.id"),
            ("task_id", "s.task_id"),
            // An orchestrator's session has none.
            ("agent_id", "coalesce(s.agent_id, s.id)"),
            ("generation", "s.generation"),
            ("number", "1"),
            ("fence", "1"),
            ("state", "'finished'"),
            ("notification_ids", "'{}'"),
            ("provider", "'default'"),
            ("profile_version", "'1'"),
            ("profile_hash", "'h'"),
            ("input", "'i'"),
            ("manifest", "'{}'"),
            (
                "finished_at",
                "case when {state} not in ('started', 'calling', 'awaiting_tools') then now() end",
            ),
        ],
    ),
    (
        "tool_call",
        "",
        &[
            ("id", "gen_random_uuid()"),
            ("call_id", "'c-' || {ordinal}"),
            ("ordinal", "1"),
            ("name", "'task_history'"),
            ("arguments", "'{}'"),
            ("state", "'finished'"),
            (
                "finished_at",
                "case when {state} not in ('requested', 'running') then now() end",
            ),
        ],
    ),
    (
        "tool_call",
        "turn t",
        &[
            ("account_id", "t.account_id"),
            ("session_id", "t.session_id"),
            ("turn_id", "t.id"),
            ("generation", "t.generation"),
            ("fence", "t.fence"),
            ("agent_id", "t.agent_id"),
        ],
    ),
    // Outside of any turn.
    (
        "tool_call",
        "session s",
        &[
            ("account_id", "s.account_id"),
            ("session_id", "s.id"),
            ("generation", "s.generation"),
            ("fence", "s.fence"),
            ("agent_id", "s.agent_id"),
        ],
    ),
    (
        "outbox",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("service", "'resolver'"),
            ("subject", "'s'"),
            ("headers", "'{}'"),
            ("payload", "''"),
        ],
    ),
    (
        "api_key",
        "",
        &[
            ("account_id", "'acme'"),
            ("name", "'k'"),
            ("role", "'member'"),
            ("digest", "''"),
        ],
    ),
    (
        "persona",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("slug", "{id}"),
            ("name", "'P'"),
            ("description", "''"),
            ("visibility", "'shared'"),
            ("is_default", "false"),
            ("memory_enabled", "false"),
            ("version_id", "gen_random_uuid()"),
            ("created_by", "'ann'"),
            ("created_at", "now()"),
            ("updated_at", "now()"),
        ],
    ),
    (
        "persona_version",
        "persona p",
        &[
            ("account_id", "p.account_id"),
            ("id", "p.version_id"),
            ("persona_id", "p.id"),
            ("number", "1"),
            ("slug", "p.slug"),
            ("files", "'[{\"filename\": \"A.md\", \"sort_order\": 0, \"content\": \"x\"}]'"),
            ("hash", "''"),
            ("created_by", "p.created_by"),
            ("created_at", "now()"),
        ],
    ),
    (
        "member",
        "",
        &[
            ("account_id", "'acme'"),
            ("user_id", "'ann'"),
            ("name", "{user_id}"),
            ("role", "'member'"),
        ],
    ),
    (
        "mail",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("from_user", "'ann'"),
            ("from_name", "{from_user}"),
            ("to_user", "'bob'"),
            ("to_address", "''"),
            ("content", "'Look at the build.'"),
            ("message_type", "'message'"),
            ("why", "'addressed'"),
            ("thread_id", "{id}"),
            ("created_at", "now()"),
            ("surface_at", "{created_at}"),
        ],
    ),
    (
        "memory",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("owner", "'user:ann'"),
            ("key", "{id}"),
            ("category", "'general'"),
            ("content", "'text'"),
            ("relevance", "1"),
            ("touched_at", "now()"),
            ("fades_at", "now() + interval '229 days'"),
            ("created_at", "now()"),
        ],
    ),
    (
        "outbound_delivery",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("kind", "'email'"),
            ("destination_id", "'bob'"),
            ("type", "'message'"),
            ("about_id", "gen_random_uuid()"),
            ("state", "'waiting'"),
            ("next_at", "now()"),
        ],
    ),
    (
        "idempotency",
        "",
        &[
            ("account_id", "'acme'"),
            ("request_hash", "''"),
            ("status", "202"),
            ("body", "'{}'"),
        ],
    ),
    (
        "accepted_notification",
        "",
        &[("account_id", "'acme'"), ("kind", "'test'"), ("content_hash", "''")],
    ),
    (
        "hold",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("scope_kind", "'account'"),
            ("scope_id", "'acme'"),
            ("by_kind", "'user'"),
            ("by_id", "gen_random_uuid()"),
            ("by_name", "'Ann'"),
            ("running", "'finish'"),
        ],
    ),
    (
        "artifact_content",
        "",
        &[
            ("account_id", "'acme'"),
            ("content", "'text'"),
            ("sha256", "sha256(({content})::bytea)"),
        ],
    ),
    (
        "artifact",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("task_id", "'proj-7'"),
            ("name", "'a.txt'"),
            ("media_type", "'text/plain'"),
            ("bytes", "4"),
            ("sha256", "sha256('text')"),
            ("source", "'upload'"),
            ("created_by_kind", "'user'"),
            ("created_by_id", "'ann'"),
            ("created_by_name", "'Ann'"),
        ],
    ),
    (
        "tool_policy",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("scope_kind", "'account'"),
            ("scope_id", "'acme'"),
            ("tool", "'*'"),
            ("by_kind", "'user'"),
            ("by_id", "'ann'"),
            ("by_name", "'Ann'"),
        ],
    ),
    (
        "recovery",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("task_id", "'proj-7'"),
            ("agent_id", "null"),
            ("cause", "'stranded'"),
            ("fingerprint", "''"),
            ("state", "'person'"),
            ("detail", "'d'"),
            ("since", "now()"),
        ],
    ),
    (
        "task_context",
        "task t",
        &[
            ("account_id", "t.account_id"),
            ("task_id", "t.id"),
            ("version", "1"),
            ("body", "'What is built.'"),
            ("characters", "length({body})"),
            ("cut_characters", "0"),
            ("author_kind", "'user'"),
            ("author_id", "'u-1'"),
            ("author_name", "'A person'"),
        ],
    ),
    (
        "timer",
        "session s",
        &[
            ("account_id", "s.account_id"),
            ("id", "gen_random_uuid()"),
            ("kind", "'check_later'"),
            ("key", "gen_random_uuid()"),
            ("due_at", "now()"),
            ("task_id", "s.task_id"),
            ("session_id", "s.id"),
            ("agent_id", "s.agent_id"),
            ("note", "'Look at the build.'"),
            (
                "payload",
                "jsonb_build_object('agent', s.agent_id, 'hops', 1, 'of_task', s.task_id is not null)",
            ),
        ],
    ),
    (
        "question",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("kind", "'question'"),
            ("title", "'Which one?'"),
            ("body", "'Which one?'"),
            ("audience", "'{role:member}'"),
            ("state", "'open'"),
            ("ended_at", "case when {state} <> 'open' then now() end"),
            ("plan_revision", "case when {kind} = 'plan' then 1 end"),
        ],
    ),
    (
        "question",
        "session s",
        &[
            ("account_id", "s.account_id"),
            ("task_id", "s.task_id"),
            ("session_id", "s.id"),
            ("session_kind", "s.kind"),
            ("generation", "s.generation"),
            ("agent_id", "s.agent_id"),
        ],
    ),
    (
        "dead_letter",
        "",
        &[
            ("account_id", "'acme'"),
            ("id", "gen_random_uuid()"),
            ("service", "'resolver'"),
            ("subject", "'s'"),
            ("reason", "'unknown_agent'"),
            ("detail", "'No such agent.'"),
            ("payload", "'p'"),
        ],
    ),
];

/// One insert; `Display` prints it as SQL, for a script.
#[derive(Clone)]
pub struct Rows {
    table: &'static str,
    before: String,
    from: String,
    set: Vec<(&'static str, String)>,
}

/// A row of a table, or many with [`Rows::from`].
pub fn rows(table: &'static str) -> Rows {
    Rows {
        table,
        before: String::new(),
        from: String::new(),
        set: Vec::new(),
    }
}

/// A notification at the end of a session's queue, included in its counter.
pub fn enqueued(account: impl fmt::Display, session: impl fmt::Display) -> Rows {
    let session = format!("session s where s.account_id = '{account}' and s.id = '{session}'");
    let (_, of_it) = session.split_once(" where ").expect("written above");
    Rows {
        before: format!("update session s set queued = queued + 1, queue_tail = queue_tail + 1 where {of_it}; "),
        ..rows("notification").set("position", "s.queue_tail").from(&session)
    }
}

impl Rows {
    /// A row for each row of a `from` clause, whose columns [`Rows::set`] may use. A clause that begins with `session
    /// s` (for notifications, turns and timers), `turn t` (calls) or `agent a` (sessions) also sets the columns that follow
    /// from it.
    pub fn from(mut self, from: impl Into<String>) -> Rows {
        self.from = from.into();
        self
    }

    /// A column's value, the same in each row.
    pub fn with(self, column: &'static str, value: impl fmt::Display) -> Rows {
        let value = value.to_string().replace('\'', "''");
        self.set(column, format!("'{value}'"))
    }

    /// A column's value as SQL.
    pub fn set(mut self, column: &'static str, sql: impl Into<String>) -> Rows {
        self.set.push((column, sql.into()));
        self
    }

    /// Runs the insert.
    pub async fn insert(self, owner: &PgPool) {
        let sql = self.to_string();
        let inserted = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.clone())).execute(owner).await;
        inserted.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// The value of each column: the last one set applies.
    fn columns(&self) -> BTreeMap<&'static str, &str> {
        let defaults = DEFAULTS
            .iter()
            .filter(|(table, from, _)| *table == self.table && self.from.starts_with(from));
        let defaults = defaults.flat_map(|(_, _, columns)| columns.iter().copied());
        defaults
            .chain(self.set.iter().map(|(column, sql)| (*column, sql.as_str())))
            .collect()
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns();
        // A turn refers to its instructions.
        if columns.get("profile_hash") == Some(&"'h'") {
            let texts = "insert into instruction_text (account_id, hash, version, body) select id, 'h', '1', 'Be brief.' from account";
            write!(f, "{texts} on conflict do nothing; ")?;
        }
        let names: Vec<&str> = columns.keys().copied().collect();
        let values: Vec<String> = columns.values().map(|sql| filled(sql, &columns)).collect();
        let from = if self.from.is_empty() { "" } else { " from " };
        write!(
            f,
            "{}insert into {} ({}) select {}{from}{}",
            self.before,
            self.table,
            names.join(", "),
            values.join(", "),
            self.from
        )
    }
}

/// The value with the other columns' values in place of their names.
fn filled(sql: &str, columns: &BTreeMap<&'static str, &str>) -> String {
    let mut filled = sql.to_owned();
    for (column, other) in columns {
        let place = format!("{{{column}}}");
        if filled.contains(&place) {
            filled = filled.replace(&place, &self::filled(other, columns));
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_has_a_default_and_may_follow_from_what_is() {
        let task = rows("task")
            .with("display_id", "It's-7")
            .set("status", "t.status")
            .from("task t");
        assert_eq!(
            task.to_string(),
            "insert into task (account_id, display_id, id, status, title) \
             select 'acme', 'It''s-7', lower('It''s-7'), t.status, 'It''s-7' from task t"
        );
    }
}
