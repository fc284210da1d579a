-- What agents say of a task for whoever joins its work, in versions: the newest counts.
create table task_context (
    account_id     text not null references account,
    task_id        text not null,
    -- 1, 2, …
    version        integer not null,
    body           text not null,
    -- of the body
    characters     integer not null,
    -- of what was written after it, and was cut off
    cut_characters integer not null,
    author_kind    text not null,
    author_id      text not null,
    author_name    text not null,
    -- the turn whose agent wrote it
    turn_id        uuid,
    created_at     timestamptz not null default now(),
    primary key (account_id, task_id, version),
    foreign key (account_id, task_id) references task
);
alter table task_context enable row level security;
alter table task_context force row level security;
create policy tenant on task_context
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
-- A version is never changed. The oldest ones are removed.
grant select, insert, delete on task_context to signalbox_tool_gateway, signalbox_orchestrator;
create policy own_tool_gateway on task_context as restrictive for insert to signalbox_tool_gateway with check (author_kind = 'agent');

-- Whether calls that hand its work on need it.
alter table task add column task_context text not null default 'required' check (task_context in ('required', 'optional'));

-- One more event of two services, before the last of their lists.
do $$
declare
    one record;
begin
    for one in select p.polname, p.polrelid::regclass as relation, pg_get_expr(p.polwithcheck, p.polrelid) as rule
               from pg_policy p
               where p.polrelid in ('public.outbox'::regclass, 'public.dead_letter'::regclass)
                 and p.polname in ('own_tool_gateway', 'own_orchestrator')
    loop
        execute format('alter policy %I on %s with check (%s)', one.polname, one.relation,
                       replace(one.rule, ',message.died}', ',task_context.written,message.died}'));
    end loop;
end $$;
