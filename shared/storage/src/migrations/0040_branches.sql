-- Branches: parts of a turn's work that other sessions do at the same time, from what their parent knew then. A live branch has an
-- open session of its own, and so has its parent.
create table branch (
    account_id        text not null references account,
    id                uuid not null,
    -- the call that made it, and its place among the branches of that call, from 1
    group_id          uuid not null,
    ordinal           integer not null,
    task_id           text not null,
    parent_session_id uuid not null,
    parent_turn_id    uuid not null,
    -- whose origin_id it is
    session_id        uuid not null,
    agent_id          uuid not null,
    -- 1: its parent is no branch
    depth             integer not null check (depth > 0),
    label             text,
    request           text not null,
    -- snapshot or fork
    context           text not null check (context in ('snapshot', 'fork')),
    -- all or each
    join_mode         text not null check (join_mode in ('all', 'each')),
    -- what its parent knew (storage::session::branch_spawn::Base): with the newest messages and activities of the task, newest first
    base              jsonb not null,
    base_messages     uuid[] not null,
    base_activities   uuid[] not null,
    deadline_at       timestamptz not null,
    state             text not null default 'live' check (state in ('live', 'finished', 'failed', 'cancelled', 'expired')),
    -- why it was cancelled, or its error
    detail            text,
    result            text,
    -- of the result's end, which was cut off
    result_cut_bytes  integer not null default 0,
    -- the item of its parent that brings the result
    joined_item       text,
    created_at        timestamptz not null default now(),
    ended_at          timestamptz,
    foreign key (account_id, task_id) references task,
    foreign key (account_id, agent_id) references agent,
    check ((state = 'live') = (ended_at is null))
);
create index branch_of_task on branch (account_id, task_id, created_at, id);
create index branch_of_parent on branch (account_id, parent_session_id, created_at, id);
create unique index branch_group on branch (account_id, group_id, ordinal);
-- Of indexes that cost the same, the planner takes the newest: the primary key, and before it those that few statements can use.
alter table branch add primary key (account_id, id);
create index branch_item on branch (account_id, joined_item) where joined_item is not null;
create index branch_live on branch (account_id, parent_session_id, id) where state = 'live';
alter table branch enable row level security;
alter table branch force row level security;
create policy tenant on branch
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select, insert on branch to signalbox_tool_gateway;
grant select on branch to signalbox_delivery, signalbox_orchestrator;
-- Its prompts show the version of the task's context that its parent knew.
grant select on task_context to signalbox_delivery;
-- It ends once, in the transaction that closes its session.
grant update (state, detail, result, result_cut_bytes, joined_item, ended_at) on branch
    to signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
-- It is kept as long as its session.
grant select, delete on branch to signalbox_resolver;
-- Whoever opens a session holds the agent's row for share (S11), and a row lock needs the right to update some column.
grant update (created_at) on agent to signalbox_tool_gateway;

-- Two more events, before the last of the lists of those that send them; and the hint of a stop from delivery: the record that ends a
-- session ends the turns of its branches.
do $$
declare
    one record;
begin
    for one in select p.polname, p.polrelid::regclass as relation, pg_get_expr(p.polwithcheck, p.polrelid) as rule
               from pg_policy p
               where p.polrelid in ('public.outbox'::regclass, 'public.dead_letter'::regclass)
                 and p.polname in ('own_delivery', 'own_tool_gateway', 'own_orchestrator')
    loop
        execute format('alter policy %I on %s with check (%s)', one.polname, one.relation, replace(replace(one.rule,
            ',message.died}', case one.polname when 'own_tool_gateway' then ',branch.spawned' else '' end || ',branch.ended,message.died}'),
            'session.resolved,session.closed,tool.requested', 'session.resolved,session.closed,session.stop_requested,tool.requested'));
    end loop;
end $$;
