-- Four walls that were not there, and what months and millions need (docs/adr/0042-walls-within-and-age.md).
--
-- Building an index takes its time where a table is large.
set local statement_timeout = 0;

-- ---------------------------------------------------------------------------------------------------------------
-- What a function of ours names is what we meant: it resolves names in this schema, and in its caller's temporary objects last.
-- That nobody may make anything in this schema, or temporary objects at all, is seen to after each migration
-- (migrations/mod.rs), since neither is part of a dump. Functions that no version asks any more go.
drop function session_neglected(integer);
drop function session_neglected(text, uuid, integer);
drop function session_expired(timestamptz, integer);

create or replace function account_directory(after_id text, row_limit integer)
    returns table (id text, name text, created_at timestamptz)
    language sql stable security definer set search_path = public, pg_temp as $$
    select a.id, a.name, a.created_at from public.account a where a.id > coalesce(after_id, '') order by a.id limit row_limit
$$;
create or replace function notification_refused(older_than timestamptz, row_limit integer)
    returns table (account_id text, notification_id text)
    language sql stable security definer set search_path = public, pg_temp as $$
    select n.account_id, n.id from public.notification n
    where n.state = 'refused' and n.created_at < older_than
    order by n.created_at
    limit row_limit
$$;
create or replace function session_neglected(after_account text, passed_accounts text[], passed_sessions uuid[], row_limit integer)
    returns table (account_id text, session_id uuid, in_turn boolean, page integer)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive walk (account_id, number) as (
        select least(
            (select n.account_id from public.notification n where n.state = 'queued' and n.account_id > after_account
             order by n.account_id limit 1),
            (select t.account_id from public.turn t where t.finished_at is null and t.account_id > after_account
             order by t.account_id limit 1)), 1
        union all
        select least(
            (select n.account_id from public.notification n where n.state = 'queued' and n.account_id > w.account_id
             order by n.account_id limit 1),
            (select t.account_id from public.turn t where t.finished_at is null and t.account_id > w.account_id
             order by t.account_id limit 1)), w.number + 1
        from walk w where w.account_id is not null and w.number < row_limit
    ), share (account_id, page) as (
        select w.account_id, greatest(1, row_limit / count(*) over ())::integer from walk w where w.account_id is not null
    )
    select h.account_id, f.id, coalesce(f.in_turn, false), h.page
    from share h
    cross join lateral (
        select coalesce((select p.session_id from unnest(passed_accounts, passed_sessions) as p (account_id, session_id)
                         where p.account_id = h.account_id limit 1),
                        '00000000-0000-0000-0000-000000000000') as session_id) passed
    left join lateral (
        (select s.id, false as in_turn from public.turn t
         cross join lateral (
            select s.id from public.session s
            where s.account_id = h.account_id and s.id = t.session_id and s.phase = 'running'
              and not exists (select from public.replica r where r.id = s.lease_owner and r.lease_until > now())
            offset 0) s
         where t.account_id = h.account_id and t.finished_at is null
         limit h.page)
        union all
        (select w.id, true from (
            -- one after the other: a session may have thousands queued
            (with recursive queue (session_id) as (
                (select n.session_id from public.notification n
                 where n.account_id = h.account_id and n.state = 'queued' and n.session_id > passed.session_id
                 order by n.session_id limit 1)
                union all
                select (select n.session_id from public.notification n
                        where n.account_id = h.account_id and n.state = 'queued' and n.session_id > q.session_id
                        order by n.session_id limit 1)
                from queue q where q.session_id is not null
             )
             select s.id from queue q
             cross join lateral (
                select s.id from public.session s
                where s.account_id = h.account_id and s.id = q.session_id and s.queued > 0 and s.closed_at is null
                  and (s.phase = 'idle' or (s.phase in ('waiting', 'backoff') and s.wake_at <= now()))
                offset 0) s
             limit h.page)
            union
            (select s.id from (
                select t.session_id from public.turn t
                where t.account_id = h.account_id and t.finished_at is null and t.session_id > passed.session_id
                order by t.session_id) t
             cross join lateral (
                select s.id from public.session s
                where s.account_id = h.account_id and s.id = t.session_id and s.phase in ('waiting', 'backoff')
                  and s.wake_at <= now() and s.active_turn_id is not null
                offset 0) s
             limit h.page)
         ) w order by w.id limit h.page)
    ) f on true
    order by h.account_id, f.in_turn, f.id
$$;
create or replace function notification_waiting(after_account text, after_session uuid, row_limit integer)
    returns table (account_id text, session_id uuid, created_at timestamptz)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive head (account_id, session_id, created_at, number) as (
        (select n.account_id, n.session_id, n.created_at, 1 from public.notification n
         where n.state = 'queued' and (n.account_id, n.session_id) > (after_account, after_session)
         order by n.account_id, n.session_id, n.position limit 1)
        union all
        select f.account_id, f.session_id, f.created_at, h.number + 1
        from head h
        cross join lateral (
            select n.account_id, n.session_id, n.created_at from public.notification n
            where n.state = 'queued' and (n.account_id, n.session_id) > (h.account_id, h.session_id)
            order by n.account_id, n.session_id, n.position limit 1) f
        where h.number < row_limit
    )
    select h.account_id, h.session_id, h.created_at from head h order by h.number
$$;

-- ---------------------------------------------------------------------------------------------------------------
-- What services share is divided between them: each writes in its own name, and of others' messages sees those that it reads
-- (ADR 23). Its subjects are those that its user on the broker may publish, but for live text, which goes through no outbox:
-- shared/messaging/src/users.rs, held together by tests/it/subjects.rs. Tokens are compared one by one: a pattern would cost more than the rest of the insert.
create policy own_resolver on outbox as restrictive to signalbox_resolver
    using (service = 'resolver' or split_part(subject, '.', 2) = 'notification')
    with check (service = 'resolver' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('task.created', 'notification.refused', 'session.opened', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);
create policy own_delivery on outbox as restrictive to signalbox_delivery
    using (service = 'delivery')
    with check (service = 'delivery' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('turn.started', 'turn.finished', 'notification.cancelled', 'notification.failed', 'provider.session_mismatched', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'tool' then split_part(subject, '.', 3) in ('requested')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);
create policy own_tool_gateway on outbox as restrictive to signalbox_tool_gateway
    using (service = 'tool-gateway')
    with check (service = 'tool-gateway' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('task.status_changed', 'message.posted', 'notification.cancelled', 'session.opened', 'session.closed', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'tool' then split_part(subject, '.', 3) in ('finished')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved', 'closed')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);
create policy own_orchestrator on outbox as restrictive to signalbox_orchestrator
    using (service = 'orchestrator'
           or split_part(subject, '.', 2) = 'event' and subject like '%.turn.finished')
    with check (service = 'orchestrator' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('turn.finished', 'task.created', 'task.status_changed', 'message.posted', 'notification.cancelled', 'session.opened', 'session.closed', 'agent.removed', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'tool' then split_part(subject, '.', 3) in ('requested', 'finished')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved', 'closed')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);

-- The orchestrator shows all letters and sends them again; what it may note on one is that.
create policy own_resolver on dead_letter as restrictive to signalbox_resolver
    using (service = 'resolver') with check (service = 'resolver');
create policy own_delivery on dead_letter as restrictive to signalbox_delivery
    using (service = 'delivery') with check (service = 'delivery');
create policy own_tool_gateway on dead_letter as restrictive to signalbox_tool_gateway
    using (service = 'tool-gateway') with check (service = 'tool-gateway');
create policy own_orchestrator on dead_letter as restrictive for insert to signalbox_orchestrator
    with check (service = 'orchestrator');
revoke update on dead_letter from signalbox_orchestrator;
grant update (redriven_at, redrives) on dead_letter to signalbox_orchestrator;

-- A replica is of no account; whose it is goes by its service alone.
alter table replica enable row level security;
alter table replica force row level security;
create policy everybody on replica using (true) with check (true);
create policy own_resolver on replica as restrictive to signalbox_resolver
    using (service = 'resolver') with check (service = 'resolver');
create policy own_delivery on replica as restrictive to signalbox_delivery
    using (service = 'delivery') with check (service = 'delivery');
create policy own_tool_gateway on replica as restrictive to signalbox_tool_gateway
    using (service = 'tool-gateway') with check (service = 'tool-gateway');
create policy own_orchestrator on replica as restrictive to signalbox_orchestrator
    using (service = 'orchestrator') with check (service = 'orchestrator');

-- ---------------------------------------------------------------------------------------------------------------
-- What is removed after a time is found by an index, however much there is, and in pieces.

-- When a closed session was emptied of all that hung on it. Until then it is in the index by which the sweep finds it; set
-- once, so that nothing is added to what a turn writes (0012).
alter table session add column emptied_at timestamptz;
update session set emptied_at = closed_at where closed_at is not null and queue_tail = 0;
create index session_unemptied on session (closed_at, account_id, id) where closed_at is not null and emptied_at is null;
grant select (emptied_at) on session to signalbox_sweeper;

-- What hangs on a session. A notification enters its index when it ends, once. It was held to its session by a reference,
-- which was looked up for each that came in; without an index for all that a session ever had, removing a session read all
-- notifications of its account. The one who puts one into a session holds the session's row, open, and what is removed was
-- closed long ago.
alter table notification drop constraint notification_account_id_session_id_fkey;
create index notification_ended on notification (account_id, session_id) where state in ('delivered', 'failed', 'cancelled');
create index tool_call_session on tool_call (account_id, session_id);

-- Closed sessions whose time is over and that are not emptied, from one of them on.
create function session_outlived(older_than timestamptz, after_moment timestamptz, after_account text, after_session uuid,
                                 row_limit integer)
    returns table (account_id text, session_id uuid, closed_at timestamptz)
    language sql stable security definer set search_path = public, pg_temp as $$
    select s.account_id, s.id, s.closed_at from public.session s
    where s.closed_at is not null and s.emptied_at is null and s.closed_at < older_than
      and (s.closed_at, s.account_id, s.id) > (after_moment, after_account, after_session)
      and s.active_turn_id is null
    order by s.closed_at, s.account_id, s.id
    limit row_limit
$$;
alter function session_outlived(timestamptz, timestamptz, text, uuid, integer) owner to signalbox_sweeper;
revoke all on function session_outlived(timestamptz, timestamptz, text, uuid, integer) from public;
grant execute on function session_outlived(timestamptz, timestamptz, text, uuid, integer) to signalbox_resolver;
-- Refused notifications whose time is over, from one of them on.
create function notification_refused(older_than timestamptz, after_moment timestamptz, after_account text, after_id text,
                                     row_limit integer)
    returns table (account_id text, notification_id text, created_at timestamptz)
    language sql stable security definer set search_path = public, pg_temp as $$
    select n.account_id, n.id, n.created_at from public.notification n
    where n.state = 'refused' and n.created_at < older_than and n.created_at >= after_moment
      and (n.created_at, n.account_id, n.id) > (after_moment, after_account, after_id)
    order by n.created_at, n.account_id, n.id
    limit row_limit
$$;
alter function notification_refused(timestamptz, timestamptz, text, text, integer) owner to signalbox_sweeper;
revoke all on function notification_refused(timestamptz, timestamptz, text, text, integer) from public;
grant execute on function notification_refused(timestamptz, timestamptz, text, text, integer) to signalbox_resolver;
-- As the version before asks, until its last resolver is replaced.
create or replace function session_outlived(older_than timestamptz, row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
    select s.account_id, s.id from public.session s
    where s.closed_at is not null and s.emptied_at is null and s.closed_at < older_than
      and s.active_turn_id is null and s.queue_tail > 0
    order by s.closed_at
    limit row_limit
$$;

create index accepted_notification_oldest on accepted_notification (account_id, created_at);
create index idempotency_oldest on idempotency (account_id, created_at);
-- Replicas share what is to be forgotten by row locks, and a row lock needs the right to update some column.
grant update (created_at) on accepted_notification to signalbox_orchestrator;
