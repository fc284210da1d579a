-- Timers: what happens once, at a time. A timer that waits is fired in the transaction that does what it is for, or it is cleared.
create table timer (
    account_id      text not null references account,
    id              uuid not null,
    -- check_later, question_lapse
    kind            text not null,
    -- what it is of: no second timer of the kind waits for it
    key             text not null,
    due_at          timestamptz not null,
    task_id         text,
    -- whose item it becomes
    session_id      uuid,
    agent_id        uuid,
    note            text not null default '',
    -- what its kind needs
    payload         jsonb not null default '{}',
    -- the timer was set in a turn that a timer began, that one too: how many, before it
    chain           integer not null default 0,
    -- waiting, fired or cleared
    state           text not null default 'waiting',
    created_at      timestamptz not null default now(),
    -- the item that it became
    notification_id text,
    ended_at        timestamptz,
    -- why it was cleared, or why it could not fire the last time
    reason          text,
    primary key (account_id, id)
);
create unique index timer_key on timer (account_id, kind, key) where state = 'waiting';
-- Their condition on the time keeps them from what looks for a key.
create index timer_due on timer (due_at) where state = 'waiting' and due_at < 'infinity';
create index timer_due_of_account on timer (account_id, due_at, id) where state = 'waiting' and due_at < 'infinity';
create index timer_of_task on timer (account_id, task_id) where state = 'waiting' and task_id is not null;
create index timer_of_session on timer (account_id, session_id) where state = 'waiting' and session_id is not null;
create index timer_of_agent on timer (account_id, agent_id) where state = 'waiting' and agent_id is not null;
create index timer_item on timer (account_id, notification_id) where notification_id is not null;
create index timer_ended on timer (account_id, ended_at) where ended_at is not null;
alter table timer enable row level security;
alter table timer force row level security;
create policy tenant on timer
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select, insert, update, delete on timer to signalbox_orchestrator;
grant select, insert on timer to signalbox_tool_gateway;
-- The end of a task clears its timers; so does the end of a turn, with those of its questions.
grant update (state, ended_at, reason) on timer to signalbox_tool_gateway, signalbox_delivery;
grant select on timer to signalbox_delivery;

-- The accounts that have due timers. If as many timers are due as are read, one account may have them all: then the accounts
-- with timers are walked too, a page from `after_account` on.
create policy sweep on timer for select to signalbox_sweeper using (true);
grant select (account_id, due_at, state) on timer to signalbox_sweeper;
create function timer_due(after_account text, row_limit integer) returns table (account_id text, is_due boolean, is_walked boolean)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive oldest as materialized (
        select t.account_id from public.timer t where t.state = 'waiting' and t.due_at < 'infinity' and t.due_at <= now() order by t.due_at limit row_limit
    ), walk (account_id, number) as (
        select (select t.account_id from public.timer t where t.state = 'waiting' and t.due_at < 'infinity' and t.account_id > after_account
                order by t.account_id limit 1), 1
        where (select count(*) from oldest) >= row_limit
        union all
        select (select t.account_id from public.timer t where t.state = 'waiting' and t.due_at < 'infinity' and t.account_id > w.account_id
                order by t.account_id limit 1), w.number + 1
        from walk w where w.account_id is not null and w.number < row_limit
    )
    select o.account_id, true, false from (select distinct o.account_id from oldest o) o
    union all
    select w.account_id,
           (select min(t.due_at) from public.timer t where t.account_id = w.account_id and t.state = 'waiting' and t.due_at < 'infinity') <= now(), true
    from walk w where w.account_id is not null
    order by 3, 1
$$;
alter function timer_due(text, integer) owner to signalbox_sweeper;
revoke all on function timer_due(text, integer) from public;
grant execute on function timer_due(text, integer) to signalbox_orchestrator;

-- When the timer was due that is due first.
create function timer_first() returns table (due_at timestamptz)
    language sql stable security definer set search_path = public, pg_temp as $$
    select t.due_at from public.timer t where t.state = 'waiting' and t.due_at < 'infinity' order by t.due_at limit 1
$$;
alter function timer_first() owner to signalbox_sweeper;
revoke all on function timer_first() from public;
grant execute on function timer_first() to signalbox_orchestrator;

-- A handover gives what waits to another agent.
grant update (agent_id) on notification to signalbox_orchestrator;

-- The next sessions with a queue, and whether one of their first items is older than this: the first ones are the oldest, but for
-- steers and edits. No index by age, which every notification would pay for.
create function item_overdue(after_account text, after_session uuid, age_s integer, row_limit integer)
    returns table (account_id text, session_id uuid, is_overdue boolean)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive head (account_id, session_id, number) as (
        (select n.account_id, n.session_id, 1 from public.notification n
         where n.state = 'queued' and (n.account_id, n.session_id) > (after_account, after_session)
         order by n.account_id, n.session_id, n.position limit 1)
        union all
        select f.account_id, f.session_id, h.number + 1
        from head h
        cross join lateral (
            select n.account_id, n.session_id from public.notification n
            where n.state = 'queued' and (n.account_id, n.session_id) > (h.account_id, h.session_id)
            order by n.account_id, n.session_id, n.position limit 1) f
        where h.number < row_limit
    )
    select h.account_id, h.session_id,
           (select min(f.created_at) from (
                select n.created_at from public.notification n
                where n.account_id = h.account_id and n.session_id = h.session_id and n.state = 'queued'
                order by n.position limit 20) f) < now() - age_s * interval '1 second'
    from head h order by h.number
$$;
alter function item_overdue(text, uuid, integer, integer) owner to signalbox_sweeper;
revoke all on function item_overdue(text, uuid, integer, integer) from public;
grant execute on function item_overdue(text, uuid, integer, integer) to signalbox_delivery;
