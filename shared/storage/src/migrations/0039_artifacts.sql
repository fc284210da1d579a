-- Artifacts: files of tasks. An account has the same bytes once, whatever names them.
create table artifact_content (
    account_id text not null references account,
    sha256     bytea not null check (octet_length(sha256) = 32),
    content    bytea not null check (octet_length(content) between 1 and 15000000),
    primary key (account_id, sha256)
);
-- Most of it is compressed already.
alter table artifact_content alter column content set storage external;

create table artifact (
    account_id      text not null references account,
    id              uuid not null,
    task_id         text not null,
    name            text not null,
    -- as read from the content
    media_type      text not null,
    bytes           integer not null,
    sha256          bytea not null,
    -- upload, fetch or model
    source          text not null,
    -- of a fetch its address, of a model the tool call
    source_ref      text,
    created_by_kind text not null,
    created_by_id   text not null,
    created_by_name text not null,
    created_by_via  text,
    created_at      timestamptz not null default now(),
    foreign key (account_id, task_id) references task,
    -- the content is there while an artifact names it
    foreign key (account_id, sha256) references artifact_content
);
create index artifact_of_task on artifact (account_id, task_id, created_at, id);
create index artifact_named on artifact (account_id, sha256, created_at);
-- the youngest index: of equals, the planner takes it
alter table artifact add primary key (account_id, id);

-- The bytes of an account's contents. Written under the lock of its artifacts only.
alter table account add column artifact_bytes bigint not null default 0;

alter table artifact_content enable row level security;
alter table artifact_content force row level security;
create policy tenant on artifact_content
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
alter table artifact enable row level security;
alter table artifact force row level security;
create policy tenant on artifact
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
-- Neither is ever changed.
grant select, insert on artifact_content, artifact to signalbox_tool_gateway, signalbox_orchestrator;
grant delete on artifact_content, artifact to signalbox_orchestrator;
grant update (artifact_bytes) on account to signalbox_tool_gateway;
create policy own_tool_gateway on artifact as restrictive for insert to signalbox_tool_gateway with check (created_by_kind = 'agent');

-- Events, before the last of each service's list.
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
                       replace(one.rule, ',message.died}', case one.polname when 'own_orchestrator' then ',artifact.created,artifact.removed,message.died}'
                                                                            else ',artifact.created,message.died}' end));
    end loop;
end $$;
