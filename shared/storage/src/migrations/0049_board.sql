-- The board: tasks below others, the session that works on a task of a board, its result, and which tasks wait for which.
alter table task add column parent_task_id text,
    -- the conversation that works on it, if that is another one than its own
    add column worker_task_id text,
    add column worker_agent_id uuid,
    add column result text,
    add foreign key (account_id, parent_task_id) references task,
    add foreign key (account_id, worker_task_id) references task,
    add foreign key (account_id, worker_agent_id) references agent,
    add check (parent_task_id <> id),
    add check (num_nulls(worker_task_id, worker_agent_id) <> 1);
create index task_parent on task (account_id, parent_task_id) where parent_task_id is not null;
create index task_worker on task (account_id, worker_task_id, worker_agent_id, created_at, id) where worker_task_id is not null;
-- A board, whatever the status, in the order of its list.
create index task_board_newest on task (account_id, board, created_at, id) where board is not null;
create index task_board on task (account_id, board, status, created_at) where board is not null;

create table task_dependency (
    account_id         text not null references account,
    task_id            text not null,
    blocked_by_task_id text not null,
    created_at         timestamptz not null,
    -- when the blocker was done: what becomes of it later changes nothing
    satisfied_at       timestamptz,
    -- when it was cancelled, failed or archived, and whoever waits for it was told
    ended_at           timestamptz,
    foreign key (account_id, task_id) references task,
    foreign key (account_id, blocked_by_task_id) references task,
    check (task_id <> blocked_by_task_id)
);
create index task_dependency_blocker on task_dependency (account_id, blocked_by_task_id);
alter table task_dependency add primary key (account_id, task_id, blocked_by_task_id);

alter table task_dependency enable row level security;
alter table task_dependency force row level security;
create policy tenant on task_dependency
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select, insert, delete, update (satisfied_at, ended_at) on task_dependency to signalbox_orchestrator, signalbox_tool_gateway;
grant update (parent_task_id, worker_task_id, worker_agent_id, result) on task to signalbox_tool_gateway;

-- One more event of the orchestrator and of the tool-gateway.
do $$
declare
    one record;
begin
    for one in select p.polname, p.polrelid::regclass as relation, pg_get_expr(p.polwithcheck, p.polrelid) as rule
               from pg_policy p
               where p.polrelid in ('public.outbox'::regclass, 'public.dead_letter'::regclass)
                 and p.polname in ('own_orchestrator', 'own_tool_gateway')
    loop
        execute format('alter policy %I on %s with check (%s)', one.polname, one.relation,
            replace(one.rule, ',task.changed,', ',task.changed,task.unblocked,'));
    end loop;
end $$;
