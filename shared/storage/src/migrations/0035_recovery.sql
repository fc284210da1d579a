-- What is done about work that does not move on. The same facts are the same row: its attempts go on counting.
create table recovery (
    account_id      text not null references account,
    id              uuid not null,
    task_id         text not null,
    agent_id        uuid,
    cause           text not null,
    -- SHA-256 of the facts that would have to change
    fingerprint     bytea not null,
    -- open, person or closed
    state           text not null,
    attempts        integer not null default 1,
    -- for a person
    detail          text not null,
    -- the item that its agent got
    notification_id text,
    -- why it was closed
    reason          text,
    since           timestamptz not null,
    created_at      timestamptz not null default now(),
    ended_at        timestamptz,
    foreign key (account_id, task_id) references task
);
create unique index recovery_facts on recovery (account_id, task_id, agent_id, cause, fingerprint) nulls not distinct;
-- those that somebody has to do something about
create index recovery_open on recovery (account_id, id) where state <> 'closed';
create index recovery_ended on recovery (account_id, ended_at) where ended_at is not null;
create index recovery_newest on recovery (account_id, created_at, id);
alter table recovery add primary key (account_id, id);
alter table recovery enable row level security;
alter table recovery force row level security;
create policy tenant on recovery
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select, insert, update on recovery to signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
grant delete on recovery to signalbox_orchestrator;

-- Tasks that an agent may have to move on: the sweep walks them, a share of every account at a time.
create index task_worked on task (account_id, id) where status in ('assigned', 'pending', 'in_progress');
create policy sweep on task for select to signalbox_sweeper using (true);
grant select (account_id, id, status) on task to signalbox_sweeper;
create policy sweep on recovery for select to signalbox_sweeper using (true);
grant select (account_id, id, state) on recovery to signalbox_sweeper;

-- A share of every account's rows, from where the last round ended in the account: accounts in their order, so many a call. The last of a
-- whole share is where the next round of the account continues. Of tasks that an agent may have to move on: those that have nothing to
-- do in their own sessions.
create function task_neglected(after_account text, accounts text[], places text[], accounts_max integer, share integer)
    returns table (account_id text, place text, is_last boolean, found text)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive asked (account_id, number) as (
        (select k.account_id, 1 from public.task k
         where k.status in ('assigned', 'pending', 'in_progress') and k.account_id > after_account
         order by k.account_id, k.id limit 1)
        union all
        select f.account_id, s.number + 1
        from asked s
        cross join lateral (
            select k.account_id from public.task k
            where k.status in ('assigned', 'pending', 'in_progress') and k.account_id > s.account_id
            order by k.account_id, k.id limit 1) f
        where s.number < accounts_max
    )
    select s.account_id, k.id, k.number = share, case when i.is_idle then k.id end
    from asked s
    left join unnest(accounts, places) as c (account_id, place) on c.account_id = s.account_id
    cross join lateral (
        select f.id, row_number() over (order by f.id) as number from (
            select k.id from public.task k
            where k.status in ('assigned', 'pending', 'in_progress') and k.account_id = s.account_id and k.id > coalesce(c.place, '')
            order by k.account_id, k.id limit share) f) k
    cross join lateral (
        select count(*) = 0 as is_idle from (
            select from public.session o
            where o.account_id = s.account_id and o.task_id = k.id and o.kind = 'task' and o.closed_at is null
              and (o.phase <> 'idle' or o.queued > 0) limit 1) o) i
    order by s.account_id, k.id
$$;
alter function task_neglected(text, text[], text[], integer, integer) owner to signalbox_sweeper;
revoke all on function task_neglected(text, text[], text[], integer, integer) from public;
grant execute on function task_neglected(text, text[], text[], integer, integer) to signalbox_orchestrator;

-- The same of recoveries that are not closed.
create function recovery_unclosed(after_account text, accounts text[], places text[], accounts_max integer, share integer)
    returns table (account_id text, place text, is_last boolean, found text)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive asked (account_id, number) as (
        (select r.account_id, 1 from public.recovery r
         where r.state <> 'closed' and r.account_id > after_account order by r.account_id, r.id limit 1)
        union all
        select f.account_id, s.number + 1
        from asked s
        cross join lateral (
            select r.account_id from public.recovery r
            where r.state <> 'closed' and r.account_id > s.account_id order by r.account_id, r.id limit 1) f
        where s.number < accounts_max
    )
    select s.account_id, r.id::text, r.number = share, r.id::text
    from asked s
    left join unnest(accounts, places) as c (account_id, place) on c.account_id = s.account_id
    cross join lateral (
        select f.id, row_number() over (order by f.id) as number from (
            select r.id from public.recovery r
            where r.state <> 'closed' and r.account_id = s.account_id and r.id > coalesce(c.place::uuid, '00000000-0000-0000-0000-000000000000')
            order by r.account_id, r.id limit share) f) r
    order by s.account_id, r.id
$$;
alter function recovery_unclosed(text, text[], text[], integer, integer) owner to signalbox_sweeper;
revoke all on function recovery_unclosed(text, text[], text[], integer, integer) from public;
grant execute on function recovery_unclosed(text, text[], text[], integer, integer) to signalbox_orchestrator;

-- The same of reviews that wait for a verdict; the plans between them, by the order of their index, count and are not found.
grant select (account_id, id, task_id, kind, state) on question to signalbox_sweeper;
create function review_open(after_account text, accounts text[], places text[], accounts_max integer, share integer)
    returns table (account_id text, place text, is_last boolean, found text)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive asked (account_id, number) as (
        (select q.account_id, 1 from public.question q
         where q.kind in ('plan', 'review') and q.state = 'open' and q.account_id > after_account
         order by q.account_id, q.task_id, q.kind limit 1)
        union all
        select f.account_id, s.number + 1
        from asked s
        cross join lateral (
            select q.account_id from public.question q
            where q.kind in ('plan', 'review') and q.state = 'open' and q.account_id > s.account_id
            order by q.account_id, q.task_id, q.kind limit 1) f
        where s.number < accounts_max
    )
    select s.account_id, q.task_id || ' ' || q.kind, q.number = share, case q.kind when 'review' then q.id::text end
    from asked s
    left join unnest(accounts, places) as c (account_id, place) on c.account_id = s.account_id
    cross join lateral (
        select f.task_id, f.kind, f.id, row_number() over (order by f.task_id, f.kind) as number from (
            select q.task_id, q.kind, q.id from public.question q
            where q.kind in ('plan', 'review') and q.state = 'open' and q.account_id = s.account_id
              and (q.task_id, q.kind) > (coalesce(split_part(c.place, ' ', 1), ''), coalesce(split_part(c.place, ' ', 2), ''))
            order by q.account_id, q.task_id, q.kind limit share) f) q
    order by s.account_id, q.task_id, q.kind
$$;
alter function review_open(text, text[], text[], integer, integer) owner to signalbox_sweeper;
revoke all on function review_open(text, text[], text[], integer, integer) from public;
grant execute on function review_open(text, text[], text[], integer, integer) to signalbox_orchestrator;
