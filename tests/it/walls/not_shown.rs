//! Conditions of statements about people that no row of the walk shows to matter: neither account has a row that only the
//! condition leaves out. Row-level security was seen to hold without each of them, and the statement's conditions to hold without
//! row-level security. A condition leaves this list when the walk has such a row. An entry that no statement has fails the test.

/// By the beginning of a statement.
pub(crate) const NOT_SHOWN: &[(&str, &[&str])] = &[
    (
        "delete from mail where ctid = any (array( select ctid from mail where account_id = $1 and case when",
        &["account_id = $1"],
    ),
    (
        "delete from memory m where m.account_id = $1 and m.owner = $2 and m.repository > '' and m.id = any (",
        &["m.account_id = $1", "o.account_id = $1"],
    ),
    (
        "delete from memory where account_id = $1 and id = $2 and owner = $3",
        &["account_id = $1"],
    ),
    (
        "delete from memory where ctid = any (array( select ctid from memory where account_id = $1 and fades_",
        &["account_id = $1"],
    ),
    (
        "delete from outbound_delivery where ctid = any (array( select ctid from outbound_delivery where acco",
        &["account_id = $1"],
    ),
    (
        "delete from persona_version v using (select $1 as account_id, o.id from unnest($2::uuid[]) as o (id)",
        &["s.account_id = $1"],
    ),
    (
        "insert into dead_letter (account_id, id, service, subject, reason, detail, payload, headers, attempt",
        &["s.account_id = $1"],
    ),
    (
        "insert into orchestrator_identity (account_id, user_id, name, handle) select $1, nullif($2, ''), $3,",
        &["a.account_id = $1"],
    ),
    (
        "insert into session (account_id, id, kind, task_id, agent_id, user_id, guest_user_id, generation, ke",
        &[
            "d.account_id = s.account_id",
            "d.account_id = w.account_id",
            "k.account_id = s.account_id",
            "k.account_id = w.account_id",
            "p.account_id = s.account_id",
            "p.account_id = w.account_id",
        ],
    ),
    (
        "insert into task_context (account_id, task_id, version, body, characters, cut_characters, author_kin",
        &["c.account_id = $1", "o.account_id = $1"],
    ),
    (
        "select 'account' as fact, a.id as account_id, a.session_scope as name, a.auto_create_tasks::text as",
        &["s.account_id = w.account_id"],
    ),
    (
        "select 'guest' as fact, w.account_id, w.user_id as name, w.guest_id as value, g.id, null::bytea as h",
        &["m.account_id = i.account_id"],
    ),
    (
        "select (select count(*) from ( select from mail m where m.account_id = $1 and m.sender = $2 and m.cr",
        &["m.account_id = $1"],
    ),
    (
        "select (select count(*) from unnest($3::text[]) as w (status) cross join lateral ( select t.account_",
        &["c.account_id = $1", "s.account_id = t.account_id"],
    ),
    (
        "select a.session_scope, coalesce( (select g.id from agent g where g.account_id = a.id and g.id = a.d",
        &["g.account_id = a.id"],
    ),
    (
        "select b.parent_turn_id, b.id, b.label, b.state, b.session_id, b.joined_item, (select a.slug from ag",
        &["a.account_id = b.account_id", "b.account_id = $1", "c.account_id = $1"],
    ),
    (
        "select board, title from task where account_id = $1 and id = $2 and board is not null",
        &["account_id = $1"],
    ),
    (
        "select c.turn_id, c.name, c.state, c.started_at, q.id as question_id, q.title as question_title, q.s",
        &["q.account_id = c.account_id"],
    ),
    (
        "select c.what, c.turn_id, c.session_id, c.call_id, c.name, c.state, c.result_bytes, c.is_refusal, ca",
        &["k.account_id = $1"],
    ),
    (
        "select count(*) filter (where m.message_type = 'message') as message, count(*) filter (where m.messa",
        &["s.account_id = $1"],
    ),
    (
        "select d.task_id, d.blocked_by_task_id from (select $1::text as account_id, f.id, b.id as blocked_by",
        &["d.account_id = f.account_id"],
    ),
    (
        "select k.id as task, k.display_id, k.status, k.blocked_owner, k.blocked_action, a.liveness, a.sessio",
        &[
            "b.account_id = k.account_id",
            "d.account_id = k.account_id",
            "q.account_id = k.account_id",
            "r.account_id = k.account_id",
            "w.account_id = k.account_id",
        ],
    ),
    (
        "select k.name, k.role, k.digest, k.agent_id, k.user_id, m.name as member_name, m.role as member_role",
        &["m.account_id = k.account_id"],
    ),
    (
        "select m.account_id, m.id, m.from_user, m.from_session, m.from_service, m.from_name, m.to_user, m.to",
        &[
            "a.account_id = m.account_id",
            "d.account_id = m.account_id",
            "n.account_id = m.account_id",
            "t.account_id = n.account_id",
        ],
    ),
    (
        "select m.id from (select $1 as account_id, id from unnest($2::uuid[]) as w (id) offset 0) w join mai",
        &["m.account_id = any (array[w.account_id])"],
    ),
    (
        "select m.id, m.from_name, coalesce('@user:' || m.from_user, m.from_session) as from_address, m.messa",
        &["m.account_id = $1"],
    ),
    (
        "select message_type, true as deliver_web, slack as deliver_slack, email as deliver_email, digest, di",
        &["account_id = $1"],
    ),
    (
        "select n.id from ( select n.id, n.kind from notification n where n.account_id = $1 and n.session_id",
        &["n.account_id = $1"],
    ),
    (
        "select n.id, coalesce(t.display_id, n.task_id) as task, n.agent_id, a.slug as agent, n.kind, n.state",
        &[
            "a.account_id = n.account_id",
            "n.account_id = $1",
            "s.account_id = n.account_id",
            "t.account_id = n.account_id",
        ],
    ),
    (
        "select n.id, k.display_id as task, n.agent_id, n.kind, n.title, n.body, n.message_id, n.sender_kind,",
        &["k.account_id = any (array[n.account_id])", "n.account_id = $1"],
    ),
    (
        "select n.id, n.sender_name, n.sender_kind, n.sender_via, left(n.body, $3) as body, length(n.body) > ",
        &["n.account_id = $1"],
    ),
    (
        "select n.position, s.generation, v.slug as persona_slug, v.number::bigint as persona_number, s.perso",
        &["v.account_id = s.account_id"],
    ),
    (
        "select p.id, p.slug, p.name, p.description, p.visibility, p.is_default, p.agent_id from ( (select p.",
        &["p.account_id = $1"],
    ),
    (
        "select page.* from ( select page.*, count(*) over () as page_rows, sum(coalesce(coalesce(octet_lengt",
        &["account_id = $1", "s.account_id = looked_at.account_id"],
    ),
    (
        "select page.* from ( select page.*, count(*) over () as page_rows, sum(coalesce(octet_length(title)",
        &["account_id = $1"],
    ),
    (
        "select page.*, (select i.handle from (select page.account_id, case when page.from_session like 'orch",
        &[
            "a.account_id = page.account_id",
            "d.account_id = page.account_id",
            "i.account_id = k.account_id",
            "m.account_id = $1",
            "n.account_id = page.account_id",
            "p.account_id = page.account_id",
        ],
    ),
    (
        "select page.*, coalesce(t.display_id, page.task_id) as task, a.slug as agent_slug, t.board as owner,",
        &[
            "t.account_id = looked_at.account_id",
            "v.account_id = looked_at.account_id",
            "v.account_id = page.account_id",
        ],
    ),
    (
        "select s.id as session_id, s.key as session_key, s.guest_user_id, s.phase, s.queued, greatest(s.open",
        &["s.account_id = $1", "u.account_id = s.account_id"],
    ),
    (
        "select s.id as session_id, s.key as session_key, t.display_id, t.title, t.status as task_status, s.a",
        &[
            "o.account_id = t.account_id",
            "s.account_id = $1",
            "s.account_id = t.account_id",
            "s.account_id = ta.account_id",
            "ta.account_id = t.account_id",
        ],
    ),
    (
        "select s.id from ( select $1::text as account_id, $2::uuid as id union select q.account_id, q.sessio",
        &["q.account_id = $1"],
    ),
    (
        "select s.id from session s where s.account_id = $1 and s.key >= $2 and s.key <= $2 order by s.key li",
        &["s.account_id = $1"],
    ),
    (
        "select s.id, s.key, s.phase, s.queued, extract(epoch from now() - greatest(s.opened_at, i.woken_at,",
        &[
            "i.account_id = s.account_id",
            "s.account_id = $1",
            "t.account_id = s.account_id",
        ],
    ),
    (
        "select t.account_id, t.id, t.session_id, k.display_id, t.agent_id, g.name as agent_name, t.number, t",
        &[
            "ca.account_id = a.id",
            "cg.account_id = ca.account_id",
            "i.account_id = any (array[t.account_id])",
            "k.account_id = any (array[t.account_id])",
            "n.account_id = t.account_id",
        ],
    ),
    (
        "select t.display_id from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offs",
        &["d.account_id = t.account_id", "t.account_id = f.account_id"],
    ),
    (
        "select t.display_id, p.display_id as parent, t.title, left(t.description, 300) as description, t.sta",
        &[
            "b.account_id = d.account_id",
            "p.account_id = t.account_id",
            "t.account_id = $1",
            "w.account_id = t.account_id",
        ],
    ),
    (
        "select t.display_id, t.title, t.status, t.board, w.display_id as worker_task, t.worker_agent_id as w",
        &[
            "q.account_id = t.account_id",
            "r.account_id = t.account_id",
            "w.account_id = t.account_id",
        ],
    ),
    (
        "select t.id as task_id, p.display_id as parent_task, w.display_id as worker_task, t.worker_agent_id",
        &[
            "b.account_id = d.account_id",
            "p.account_id = t.account_id",
            "w.account_id = t.account_id",
        ],
    ),
    (
        "select thread_id from mail where account_id = $1 and id = $2 and to_session = $3 and (from_user = $4",
        &["account_id = $1"],
    ),
    (
        "select true from ( (select from question q where q.account_id = $1 and q.task_id = $2 and q.state =",
        &["d.account_id = $1"],
    ),
    (
        "select true from session s where s.account_id = $1 and s.gate_ref = $2 limit 1",
        &["s.account_id = $1"],
    ),
    (
        "select v.id from persona_version v where v.account_id = $1 and v.persona_id = $2 and v.number <= $3",
        &["s.account_id = $1"],
    ),
    (
        "select w.account_id, w.id from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as w (account_",
        &["n.account_id = w.account_id"],
    ),
    (
        "select w.n, (select s.generation from ( (select s.generation from session s where s.account_id = w.a",
        &["s.account_id = w.account_id"],
    ),
    (
        "select w.n, (select s.generation from session s where s.account_id = w.account_id and s.user_id = w.",
        &["s.account_id = w.account_id"],
    ),
    (
        "select w.place, case when w.kind = 'answer' then ( select q.id from question q where q.account_id =",
        &["m.account_id = w.account_id"],
    ),
    (
        "select w.place, s.key, s.kind as session_kind, case s.kind when 'guest' then ( select i.reachable fr",
        &[
            "b.account_id = s.account_id",
            "c.account_id = s.account_id",
            "i.account_id = s.account_id",
            "r.account_id = s.account_id",
            "t.account_id = s.account_id",
            "tt.account_id = s.account_id",
        ],
    ),
    (
        "select x.what, x.id, x.number, x.task_id, x.session_id, x.agent_id, x.kind, x.title, case when x.is_",
        &[
            "c.account_id = $1",
            "m.account_id = n.account_id",
            "ms.account_id = n.account_id",
            "n.account_id = $1",
            "q.account_id = n.account_id",
            "t.account_id = $1",
        ],
    ),
    (
        "update mail m set outcome = case n.state when 'delivered' then 'in_turn' else 'bounced' end, reason",
        &["n.account_id = $1", "t.account_id = $1", "u.account_id = $1"],
    ),
    (
        "update mail set settled_at = null, again_at = now() where account_id = $1 and id = $2 and to_session",
        &["account_id = $1"],
    ),
    (
        "update member set link_digest = $3, link_expires_at = $4, link_used_at = null, link_mailed = $5, lin",
        &["account_id = $1"],
    ),
    (
        "update task set board = $3 where account_id = $1 and id = $2",
        &["account_id = $1"],
    ),
    (
        "update task set board = $3, persona_by = case when persona_id is null then $5 else persona_by end, p",
        &["a.id = $1", "account_id = $1"],
    ),
    (
        "update task set parent_task_id = $3, updated_at = $4 where account_id = $1 and id = $2",
        &["account_id = $1"],
    ),
    (
        "update timer t set state = 'cleared', ended_at = now(), reason = $2 where t.account_id = $1 and t.st",
        &["k.account_id = t.account_id", "t.account_id = $1"],
    ),
    (
        "with due as ( select d.destination_id from outbound_delivery d where d.account_id = $1 and d.state =",
        &["d.account_id = $1"],
    ),
    (
        "with ended as (update question q set state = $3, verdict = $4, answer = $5, ended_by_kind = $6, ende",
        &["k.account_id = any (array[q.account_id])", "q.account_id = $1"],
    ),
    (
        "with found as materialized ( select w.n, t.account_id, t.id from unnest($1::text[], $2::uuid[], $3::",
        &["t.account_id = w.account_id"],
    ),
    (
        "with late as ( select ctid, id from outbound_delivery where account_id = $1 and next_at < now() - $2",
        &["account_id = $1", "i.account_id = $1"],
    ),
    (
        "with owner as ( select m.user_id from ( select t.board, substr(t.board, 6) as user_id from ( select ",
        &["m.account_id = $1", "t.account_id = $1"],
    ),
    (
        "with recursive reached (task_id, blocked_by_task_id) as ( select d.task_id, d.blocked_by_task_id fro",
        &["d.account_id = $1"],
    ),
    (
        "with taken as ( update notification n set state = 'cancelled', reason = $4 from (select $1 as accoun",
        &["o.account_id = $1"],
    ),
    (
        "with taken as ( update notification n set state = case when $4::uuid is null then 'delivered' else '",
        &[
            "n.account_id = any (array[w.account_id])",
            "o.account_id = $1",
            "s.account_id = $1",
            "t.account_id = $1",
        ],
    ),
];
