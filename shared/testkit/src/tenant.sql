-- One account's rows, of every kind and in every state, written as the superuser. Sessions with work wait for tools and
-- have no wake-up time, so no replica claims them.
-- Digits and letters alternate in ids, so that one pattern is valid for unused ids of every kind (names.rs).
create or replace function pg_temp.uid(name text) returns uuid language sql as $$
    select string_agg(case when n % 2 = 0 then translate(digit, 'abcdef', '012345')
                           else translate(digit, '0123456789', 'abcdefabcd') end, '' order by n)::uuid
    from string_to_table(md5('{account}/' || name), null) with ordinality as digits (digit, n) $$;

insert into account (id, name, coordinator_task, briefing)
values ('{account}', '{secret}', 'chat', '{secret}');

insert into agent (account_id, id, slug, name, role, removed_at) values
    ('{account}', pg_temp.uid('coder'), 'coder', '{secret}', '{secret}', null),
    ('{account}', pg_temp.uid('reviewer'), '{account}-reviewer', '{secret}', '{secret}', null),
    ('{account}', pg_temp.uid('gone'), '{account}-gone', '{secret}', '{secret}', now());

insert into member (account_id, user_id, name, email, role, login_id) values
    ('{account}', 'ann', '{secret}', '{secret}@example.com', 'admin', pg_temp.uid('login/ann')),
    ('{account}', '{account}-bob', '{secret}', null, 'member', null);
insert into login_session (digest, id, login_id, method, expires_at, ends_at) values
    (sha256(convert_to('{account}-ann', 'UTF8')), pg_temp.uid('login_session/ann'), pg_temp.uid('login/ann'), 'link', now() + interval '1 day',
     now() + interval '1 day');

insert into persona (account_id, id, slug, name, description, visibility, is_default, memory_enabled, version_id, created_by, created_at,
                     updated_at)
select '{account}', pg_temp.uid('persona/' || slug), slug, '{secret}', '{secret}', visibility, false, false,
       pg_temp.uid('persona_version/' || slug), maker, now(), now()
from (values ('style', 'shared', 'ann'), ('own', 'private', '{account}-bob'), ('hidden', 'private', 'ann')) as p (slug, visibility, maker);
insert into persona_version (account_id, id, persona_id, number, slug, files, hash, created_by, created_at)
-- Numbers that other accounts do not have.
select account_id, version_id, id, 1 + (hashtext(account_id) & 65535), slug, '[{"filename": "STYLE.md", "sort_order": 0, "content": "{secret}"}]', '', created_by, now()
from persona where account_id = '{account}';

-- Of a person, of the account, and of sessions with a repository.
insert into memory (account_id, id, owner, repository, key, category, content, relevance, touched_at, fades_at, created_at)
select '{account}', pg_temp.uid('memory/' || m.name), m.owner, m.repository, '{secret} ' || m.name, 'general', '{secret}', 1, now(), '2999-01-01', now()
from (values ('own', 'user:{account}-bob', ''), ('all', 'account', ''), ('other', 'account', ''), ('repo', 'user:ann', '{secret}'))
    as m (name, owner, repository);

-- To a person, from a person; in a person's archive; to a conversation, which no turn has.
insert into mail (account_id, id, from_user, from_name, to_user, to_session, to_address, content, message_type, why, reply_to, thread_id,
                  created_at, surface_at, archived_at)
select '{account}', pg_temp.uid('mail/' || m.name), 'ann', '{secret}', m.person, case when m.person is null then 'orchestrator:{account}:ann:v1' end,
       '{secret}', '{secret}', 'message', 'addressed', null, pg_temp.uid('mail/' || m.name), now(), now(), m.archived
from (values ('shown', '{account}-bob', null), ('other', '{account}-bob', null), ('kept', '{account}-bob', now()), ('own', 'ann', null),
             ('waits', null, null)) as m (name, person, archived);
insert into notification_preference (account_id, user_id, message_type, slack, email, digest)
select account_id, user_id, 'message', false, true, 'none' from member where account_id = '{account}';

-- Mail that a person was told of, with an attempt; none is due.
insert into outbound_delivery (account_id, id, kind, destination_id, type, about_id, state, attempts, reason, ended_at, kept_until)
select '{account}', pg_temp.uid('delivery/' || m.name), 'email', m.person, 'message', pg_temp.uid('mail/' || m.name), 'dead', 1, '{secret}', now(), '2999-01-01'
from (values ('shown', '{account}-bob'), ('other', '{account}-bob'), ('own', 'ann')) as m (name, person);
insert into outbound_attempt (account_id, delivery_id, number, at, ms, class)
select account_id, id, 1, now(), 1, 'refused' from outbound_delivery where account_id = '{account}';

insert into task (account_id, id, display_id, title, description, status)
select '{account}', lower(name), name, '{secret}', '{secret}', status
from (values ('LIVE-1', 'in_progress'), ('{ACCOUNT}-1', 'in_progress'), ('{ACCOUNT}-2', 'done'), ('CHAT', 'in_progress'),
             ('{ACCOUNT}-3', 'inbox'), ('{ACCOUNT}-4', 'awaiting_approval')) as t (name, status);

insert into task_assignee (account_id, task_id, agent_id) values
    ('{account}', 'live-1', pg_temp.uid('coder')),
    ('{account}', '{account}-1', pg_temp.uid('reviewer')),
    ('{account}', 'chat', pg_temp.uid('coder'));

-- What they waited for is done.
insert into task_dependency (account_id, task_id, blocked_by_task_id, created_at, satisfied_at) values
    ('{account}', 'live-1', '{account}-2', now(), now()),
    ('{account}', '{account}-3', '{account}-2', now(), now());

insert into message (account_id, id, task_id, author_kind, author_id, author_name, body)
select '{account}', pg_temp.uid('message/' || t.id || n), t.id, 'user', '{secret}', '{secret}', '{secret}'
from task t, generate_series(1, 3) n where t.account_id = '{account}';

insert into activity (account_id, id, task_id, kind, actor_kind, actor_id, actor_name, detail)
select '{account}', pg_temp.uid('activity/' || t.id || n), t.id, 'task.created', 'user', '{secret}', '{secret}',
       '{"text": "{secret}"}'
from task t, generate_series(1, 2) n where t.account_id = '{account}';

insert into session (account_id, id, kind, task_id, agent_id, user_id, generation, key, phase, active_turn_id, closed_at,
                     close_reason, queued, queue_tail, turn_count, fence, persona_version_id, persona_why)
select '{account}', pg_temp.uid('session/' || s.name), s.kind, s.task, pg_temp.uid(s.agent), s.person, s.generation,
       replace(s.key, '@', pg_temp.uid(s.agent)::text), s.phase,
       case when s.phase = 'waiting' then pg_temp.uid('turn/' || s.name) end,
       case when s.closed then now() end, case when s.closed then 'task_done' end, s.queued, 9, 1, 1,
       case when s.closed then pg_temp.uid('persona_version/style') end, case when s.closed then 'user' end
from (values
    ('live', 'task', 'live-1', 'coder', null, 1, 'task:live-1:agent:@:{account}:v1', 'idle', false, 0),
    ('old', 'task', '{account}-1', 'coder', null, 1, 'task:{account}-1:agent:@:{account}:v1', 'idle', true, 0),
    ('busy', 'task', '{account}-1', 'coder', null, 2, 'task:{account}-1:agent:@:{account}:v2', 'waiting', false, 1),
    ('done', 'task', '{account}-2', 'coder', null, 1, 'task:{account}-2:agent:@:{account}:v1', 'idle', true, 0),
    ('review', 'task', '{account}-1', 'reviewer', null, 1, 'task:{account}-1:agent:@:{account}:v1', 'idle', false, 0),
    ('chat', 'task', 'chat', 'coder', null, 1, 'task:chat:agent:@:{account}:v1', 'idle', false, 0),
    ('beat', 'system', null, 'coder', null, 1, 'system:agent:@:{account}:v1', 'idle', false, 0)
) as s (name, kind, task, agent, person, generation, key, phase, closed, queued);

insert into instruction_text (account_id, hash, version, body) values
    ('{account}', 'same-hash', '1', '{secret}'),
    ('{account}', '{account}-hash', '1', '{secret}');

insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state, notification_ids, provider,
                  profile_version, profile_hash, input, manifest, journal, reply, error, calls_requested, finished_at)
select s.account_id, pg_temp.uid('turn/' || replace(s.name, 'session/', '')), s.id, s.task_id, s.agent_id, s.generation, 1, 1,
       case when s.phase = 'waiting' then 'awaiting_tools' else s.state end, '{n-1}', 'default', '1',
       case when s.name = 'live' then 'same-hash' else '{account}-hash' end, '{secret}', '{"parts": [], "text": "{secret}"}',
       '[]', '{secret}', case when s.state = 'failed' then '{secret}' end, 1,
       case when s.phase = 'waiting' then null else now() end
from (select s.*, n.name, n.state from session s
      join (values ('live', 'finished'), ('old', 'failed'), ('busy', 'finished'), ('done', 'aborted'), ('review', 'unknown'),
                   ('chat', 'finished'), ('beat', 'finished')) as n (name, state)
        on s.id = pg_temp.uid('session/' || n.name)
      where s.account_id = '{account}') s;

insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name, arguments,
                       state, result, finished_at)
select t.account_id, pg_temp.uid('call/' || t.id), t.session_id, t.id, t.generation, 1, '{account}-call-' || s.generation || left(s.key, 9),
       1, t.agent_id, 'task_history', '{"text": "{secret}"}', 'finished', '{"text": "{secret}"}', now()
from turn t join session s on s.account_id = t.account_id and s.id = t.session_id where t.account_id = '{account}';

insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, title, body, message_id, sender_kind,
                          sender_id, sender_name, metadata, content_hash, state, reason, turn_id, attempts)
select '{account}', n.id, s.task_id, s.agent_id, s.id, n.position, 'notification', '{secret}', '{secret}',
       pg_temp.uid('message/{account}-11'), 'user', '{secret}', '{secret}', '{"text": "{secret}"}', sha256('{account}'), n.state,
       case when n.state in ('failed', 'refused', 'cancelled') then '{secret}' end,
       case when n.state in ('delivered', 'running') then pg_temp.uid('turn/' || n.session) end, 1
from (values
    ('n-1', 'live', 1, 'delivered'),
    ('{account}-delivered', 'old', 1, 'delivered'),
    ('{account}-running', 'busy', 1, 'running'),
    ('{account}-queued', 'busy', 2, 'queued'),
    ('{account}-failed', 'old', 2, 'failed'),
    ('{account}-cancelled', 'done', 1, 'cancelled')
) as n (id, session, position, state)
join session s on s.account_id = '{account}' and s.id = pg_temp.uid('session/' || n.session);
insert into notification (account_id, id, kind, body, sender_kind, sender_id, sender_name, content_hash, state, reason)
values ('{account}', '{account}-refused', 'notification', '{secret}', 'user', '{secret}', '{secret}', '', 'refused', 'unknown_agent');

insert into dead_letter (account_id, id, service, subject, reason, detail, payload, headers)
select '{account}', pg_temp.uid('letter/' || n), 'resolver', 'signalbox.notification.{account}.{ACCOUNT}-1', 'unknown_agent',
       '{secret}', '{"body": "{secret}"}', '{"ce-source": "{secret}"}'
from generate_series(1, 3) n;

insert into idempotency (account_id, key, request_hash, status, body)
select '{account}', name, sha256('x'), 201, '{"title": "{secret}"}'
from (values ('{account}-request-1'), ('{account}-request-2')) as k (name);

insert into accepted_notification (account_id, id, task, agent, kind, content_hash)
values ('{account}', '{account}-accepted', '{ACCOUNT}-1', 'coder', 'notification', '');

-- Two are active, on a session that has ended: one until its time.
insert into hold (account_id, id, scope_kind, scope_id, reason, by_kind, by_id, by_name, running, until, released_at, released_by)
select '{account}', pg_temp.uid('hold/' || h.name), 'session', pg_temp.uid('session/done')::text, '{secret}', 'user', h.name, '{secret}',
       'stop', case when h.name = 'timed' then '2999-01-01'::timestamptz end, case when h.ended then now() end, case when h.ended then '{secret}' end
from (values ('active', false), ('timed', false), ('old', true), ('older', true)) as h (name, ended);
update account set holds = 2 where id = '{account}';

-- On a session that has ended: they decide nothing.
insert into tool_policy (account_id, id, scope_kind, scope_id, tool, verdict, by_kind, by_id, by_name)
select '{account}', pg_temp.uid('tool_policy/' || t.tool), 'session', pg_temp.uid('session/done')::text, t.tool, 'ask', 'user', '{secret}', '{secret}'
from (values ('{secret}'), ('task_*')) as t (tool);
update account set tool_policies = 2 where id = '{account}';

-- A task that was reviewed.
insert into task_stage (account_id, task_id, ordinal, name, audience, passed_at)
values ('{account}', 'live-1', 1, '{secret}', '{role:member}', now());
-- One that a person has to see to, of a task that has other facts by now; and one that was closed.
insert into recovery (account_id, id, task_id, cause, fingerprint, state, detail, reason, since, ended_at)
select '{account}', pg_temp.uid('recovery/' || r.name), 'live-1', r.cause, '', r.state, '{secret}', r.reason, now(), r.ended_at
from (values ('open', 'given_up', 'person', null, null), ('over', 'stranded', 'closed', '{secret}', now())) as r (name, cause, state, reason, ended_at);
-- Two are open: of a session that has ended, and a plan that awaits approval.
insert into question (account_id, id, kind, state, task_id, session_id, session_kind, generation, agent_id, turn_id, title, body, options,
                      audience, plan_revision, answer, ended_by_kind, ended_by_id, ended_by_name, ended_at, reason, notification_id)
select '{account}', pg_temp.uid('question/' || q.name), q.kind, case when q.ended then 'answered' else 'open' end, s.task_id, s.id, s.kind,
       s.generation, s.agent_id, pg_temp.uid('turn/' || q.session), '{secret}', '{secret}', '[{"id": "{secret}", "label": "{secret}"}]',
       '{role:member}', case when q.kind = 'plan' then 1 end, case when q.ended then '{"options": [], "text": "{secret}"}'::jsonb end,
       case when q.ended then 'user' end, case when q.ended then '{secret}' end, case when q.ended then '{secret}' end,
       case when q.ended then now() end, case when q.ended then '{secret}' end, case when q.ended then '{account}-delivered' end
from (values ('open', 'question', 'done', false), ('plan', 'plan', 'busy', false), ('old', 'question', 'old', true),
             ('older', 'question', 'old', true)) as q (name, kind, session, ended)
join session s on s.account_id = '{account}' and s.id = pg_temp.uid('session/' || q.session);

-- Two wait, of a session that has ended, for a time that does not come.
insert into timer (account_id, id, kind, key, due_at, task_id, session_id, agent_id, note, payload, state, notification_id, ended_at, reason)
select '{account}', pg_temp.uid('timer/' || t.name), 'check_later', '{account}-' || t.name, '2999-01-01', s.task_id, s.id, s.agent_id,
       '{secret}', '{"text": "{secret}"}', case when t.ended then 'fired' else 'waiting' end,
       case when t.ended then '{account}-delivered' end, case when t.ended then now() end, case when t.ended then '{secret}' end
from (values ('waits', false), ('other', false), ('old', true), ('older', true)) as t (name, ended)
join session s on s.account_id = '{account}' and s.id = pg_temp.uid('session/done');

-- As many versions as are kept, of a task that both accounts have; and one.
insert into task_context (account_id, task_id, version, body, characters, cut_characters, author_kind, author_id, author_name)
select '{account}', t.task, n, '{secret}', length('{secret}'), 1, 'user', '{secret}', '{secret}'
from (values ('live-1', 50), ('{account}-1', 1)) as t (task, versions), generate_series(1, t.versions) n;

-- Three branches of a session have ended, each with a turn.
insert into session (account_id, id, kind, task_id, agent_id, generation, key, closed_at, close_reason, origin_id, parent_session_id,
                     queue_tail, turn_count, fence)
select '{account}', pg_temp.uid('session/' || b), 'branch', 'live-1', pg_temp.uid('coder'), 1,
       'branch:' || pg_temp.uid('branch/' || b) || ':agent:' || pg_temp.uid('coder') || ':{account}:v1', now(), 'folded',
       pg_temp.uid('branch/' || b), pg_temp.uid('session/live'), 1, 1, 1
from (values ('one'), ('two'), ('three')) as n (b);
insert into branch (account_id, id, group_id, ordinal, task_id, parent_session_id, parent_turn_id, session_id, agent_id, depth, label, request,
                    context, join_mode, base, base_messages, base_activities, deadline_at, state, detail, result, joined_item, ended_at)
select '{account}', pg_temp.uid('branch/' || b), pg_temp.uid('group/' || b), 1, 'live-1', pg_temp.uid('session/live'), pg_temp.uid('turn/live'),
       pg_temp.uid('session/' || b), pg_temp.uid('coder'), 1, '{secret}', '{secret}', 'snapshot', 'all',
       jsonb_build_object('title', '{secret}', 'description', '{secret}', 'status', 'in_progress', 'updated_at', now(), 'number', 1, 'rounds', 0,
                          'notes', 0, 'hops', 0, 'sha256', '{account}'),
       array[pg_temp.uid('message/live-11')], array[pg_temp.uid('activity/live-11')], '2999-01-01', 'finished', '{secret}', '{secret}',
       'n-1', now()
from (values ('one'), ('two'), ('three')) as n (b);
insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state, notification_ids, provider,
                  profile_version, profile_hash, input, manifest, journal, reply, calls_requested, finished_at)
select '{account}', pg_temp.uid('turn/' || b), pg_temp.uid('session/' || b), 'live-1', pg_temp.uid('coder'), 1, 1, 1, 'finished', '{n-1}', 'default',
       '1', 'same-hash', '{secret}', '{"parts": [], "text": "{secret}"}', '[]', '{secret}', 0, now()
from (values ('one'), ('two'), ('three')) as n (b);

-- Three replays of a turn have ended.
insert into session (account_id, id, kind, task_id, agent_id, generation, key, closed_at, close_reason, origin_id, queue_tail, turn_count, fence)
select '{account}', pg_temp.uid('session/replay/' || r), 'replay', 'live-1', pg_temp.uid('coder'), 1,
       'replay:' || pg_temp.uid('replay/' || r) || ':{account}:v1', now(), 'replayed', pg_temp.uid('replay/' || r), 1, 1, 1
from (values ('one'), ('two'), ('three')) as n (r);
insert into replay (account_id, id, source_turn_id, session_id, spec, created_by_kind, created_by_id, created_by_name)
select '{account}', pg_temp.uid('replay/' || r), pg_temp.uid('turn/one'), pg_temp.uid('session/replay/' || r),
       '{"profile": {"role": "{secret}"}}', 'user', '{secret}', '{secret}'
from (values ('one'), ('two'), ('three')) as n (r);
insert into turn (account_id, id, session_id, task_id, agent_id, generation, number, fence, state, notification_ids, provider,
                  profile_version, profile_hash, input, manifest, journal, reply, calls_requested, finished_at)
select '{account}', pg_temp.uid('turn/replay/' || r), pg_temp.uid('session/replay/' || r), 'live-1', pg_temp.uid('coder'), 1, 1, 1, 'finished',
       '{n-1}', 'default', '1', 'same-hash', '{secret}', '{"parts": [], "text": "{secret}"}', '[]', '{secret}', 0, now()
from (values ('one'), ('two'), ('three')) as n (r);

-- Two files, and two names of one.
insert into artifact_content (account_id, sha256, content)
select '{account}', sha256(c::bytea), c::bytea from (values ('{secret} 1'), ('{secret} 2')) as f (c);
insert into artifact (account_id, id, task_id, name, media_type, bytes, sha256, source, source_ref, created_by_kind, created_by_id, created_by_name)
select '{account}', pg_temp.uid('artifact/' || a.name), a.task, '{secret}', 'text/plain', octet_length(a.content), sha256(a.content::bytea),
       'upload', '{secret}', 'user', '{secret}', '{secret}'
from (values ('one', 'live-1', '{secret} 1'), ('two', 'live-1', '{secret} 2'), ('same', '{account}-1', '{secret} 2')) as a (name, task, content);
update account a set artifact_bytes = (select sum(octet_length(c.content)) from artifact_content c where c.account_id = a.id) where a.id = '{account}';

update account set event_consumers = array['{account}-c'] where id = '{account}';
