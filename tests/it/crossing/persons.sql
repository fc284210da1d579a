-- What is a person's own in an account that has its rows (testkit, tenant.sql): of `ann`. Its texts have a secret of their own. Digits and
-- letters alternate in ids, as there.
create or replace function pg_temp.uid(name text) returns uuid language sql as $$
    select string_agg(case when n % 2 = 0 then translate(digit, 'abcdef', '012345')
                           else translate(digit, '0123456789', 'abcdefabcd') end, '' order by n)::uuid
    from string_to_table(md5('{account}/own/' || name), null) with ordinality as digits (digit, n) $$;

insert into agent (account_id, id, slug, name, role, removed_at, kind)
values ('{account}', pg_temp.uid('agent'), pg_temp.uid('agent')::text, 'Orchestrator', '', now(), 'orchestrator');
insert into orchestrator_identity (account_id, user_id, name, handle, instructions) values
    ('{account}', 'ann', 'Agent', 'ann', '{secret}'), ('{account}', '{account}-bob', 'Agent', 'bob', '');

insert into session (account_id, id, kind, agent_id, user_id, generation, key, closed_at, close_reason, queue_tail, turn_count, fence)
select '{account}', pg_temp.uid('session/' || n), 'orchestrator', pg_temp.uid('agent'), 'ann', n, 'orchestrator:{account}:ann:v' || n,
       case when n = 1 then now() end, case when n = 1 then 'reset' end, 9, 1, 1
from generate_series(1, 2) n;
-- In which it answers bob, who sees none of it, either.
insert into session (account_id, id, kind, agent_id, user_id, guest_user_id, generation, key, queue_tail, turn_count, fence)
values ('{account}', pg_temp.uid('session/3'), 'guest', pg_temp.uid('agent'), 'ann', '{account}-bob', 1,
        'orchestrator:{account}:ann:guest:{account}-bob:v1', 9, 1, 1);
insert into turn (account_id, id, session_id, agent_id, user_id, generation, number, fence, state, notification_ids, provider,
                  profile_version, profile_hash, input, manifest, journal, reply, calls_requested, finished_at)
select '{account}', pg_temp.uid('turn/' || n), pg_temp.uid('session/' || n), pg_temp.uid('agent'), 'ann', n, 1, 1, 'finished',
       array[pg_temp.uid('notification/' || n)::text], 'default', '1', 'same-hash', '{secret}', '{"parts": [], "text": "{secret}"}', '[]',
       '{secret}', 1, now()
from generate_series(1, 3) n;
insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name, arguments, state, result,
                       finished_at)
select '{account}', pg_temp.uid('call/' || n), pg_temp.uid('session/' || n), pg_temp.uid('turn/' || n), n, 1, 'own-call-' || n, 1,
       pg_temp.uid('agent'), 'list_sessions', '{"text": "{secret}"}', 'finished', '{"text": "{secret}"}', now()
from generate_series(1, 3) n;
insert into notification (account_id, id, agent_id, user_id, session_id, position, kind, title, body, sender_kind, sender_id, sender_name,
                          metadata, content_hash, state, turn_id, attempts)
select '{account}', pg_temp.uid('notification/' || n)::text, pg_temp.uid('agent'), 'ann', pg_temp.uid('session/' || n), 1, 'prompt', '{secret}',
       '{secret}', 'user', 'ann', '{secret}', '{"text": "{secret}"}', sha256('own'), 'delivered', pg_temp.uid('turn/' || n), 1
from generate_series(1, 3) n;
insert into dead_letter (account_id, id, service, subject, reason, detail, payload, headers, for_user)
select '{account}', pg_temp.uid('letter/' || n), 'resolver', 'signalbox.notification.{account}.-', 'queue_full', '{secret}',
       '{"session": "orchestrator:ann", "body": "{secret}"}', '{"ce-source": "{secret}"}', 'ann'
from generate_series(1, 2) n;
insert into question (account_id, id, kind, state, session_id, session_kind, generation, agent_id, turn_id, title, body, options, audience,
                      orchestrator)
select '{account}', pg_temp.uid('question/' || n), 'question', 'open', pg_temp.uid('session/2'), 'orchestrator', 2, pg_temp.uid('agent'),
       pg_temp.uid('turn/2'), '{secret}', '{secret}', '[]', '{role:member}', 'user:ann'
from generate_series(1, 2) n;
insert into timer (account_id, id, kind, key, due_at, session_id, agent_id, note, payload, state, orchestrator)
select '{account}', pg_temp.uid('timer/' || n), 'check_later', 'own-' || n, '2999-01-01', pg_temp.uid('session/2'), pg_temp.uid('agent'),
       '{secret}', '{"text": "{secret}"}', 'waiting', 'user:ann'
from generate_series(1, 2) n;
insert into memory (account_id, id, owner, repository, key, category, content, relevance, touched_at, fades_at, created_at)
select '{account}', pg_temp.uid('memory/' || n), 'user:ann', case when n = 2 then 'acme/own' else '' end, 'own-' || n, 'general', '{secret}', 1, now(),
       '2999-01-01', now()
from generate_series(1, 2) n;
