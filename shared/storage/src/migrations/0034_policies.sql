-- Tool policies: which tools agents see, and whether a call runs, is asked about or is refused. Read only where the account has
-- any (account.tool_policies).
create table tool_policy (
    account_id  text not null references account,
    id          uuid not null,
    -- account, agent, task, task_agent (an agent on a task) or session, and its id as compared
    scope_kind  text not null,
    scope_id    text not null,
    -- a tool's name, *, or the beginning of names and *
    tool        text not null,
    visible     boolean,
    -- allow, ask or deny
    verdict     text,
    -- who is asked; none: every member
    audience    text[],
    -- of the tool that was allowed: it holds for no other schema
    schema_hash bytea,
    revision    integer not null default 1,
    by_kind     text not null,
    by_id       text not null,
    by_name     text not null,
    created_at  timestamptz not null default now(),
    updated_at  timestamptz not null default now(),
    primary key (account_id, id)
);
create unique index tool_policy_scope on tool_policy (account_id, scope_kind, scope_id, tool);
alter table tool_policy enable row level security;
alter table tool_policy force row level security;
create policy tenant on tool_policy
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select on tool_policy to signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
grant insert, update, delete on tool_policy to signalbox_orchestrator;

-- The end of a turn withdraws the approvals that it waits for.
grant update (state, verdict, answer, ended_by_kind, ended_by_id, ended_by_name, ended_by_via, ended_at, reason)
    on question to signalbox_delivery;
create policy own_delivery on question as restrictive for update to signalbox_delivery
    using (kind = 'tool' and state = 'open') with check (state in ('withdrawn', 'cancelled') and verdict is null and answer is null
        and ended_by_kind is distinct from 'user');

-- Review stages of tasks: they pass one after the other before a task is done. A move to done looks for them only where the task has
-- some.
alter table task add column stages integer not null default 0;
create table task_stage (
    account_id text not null references account,
    task_id    text not null,
    -- from 1
    ordinal    integer not null,
    name       text not null,
    -- who reviews
    audience   text[] not null,
    passed_at  timestamptz,
    -- the review that passed it
    question   uuid,
    primary key (account_id, task_id, ordinal)
);
create unique index task_stage_name on task_stage (account_id, task_id, name);
alter table task_stage enable row level security;
alter table task_stage force row level security;
create policy tenant on task_stage
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select, update on task_stage to signalbox_orchestrator;
grant select, update (passed_at, question) on task_stage to signalbox_tool_gateway;
create policy reviewed_tool_gateway on task_stage as restrictive for update to signalbox_tool_gateway
    using (true) with check (passed_at is null or exists (
        select from question q
        where q.account_id = task_stage.account_id and q.id = task_stage.question and q.task_id = task_stage.task_id
          and q.kind = 'review' and q.stage = task_stage.name and q.verdict = 'approved'));
-- Which plans and reviews a task needs is for people.
revoke update on task from signalbox_tool_gateway;
grant update (status, status_before, updated_at, plan_approved, plan_submitted, blocked_owner, blocked_action) on task to signalbox_tool_gateway;
revoke insert on task from signalbox_resolver;
grant insert (account_id, id, display_id, title, description, status, created_at, updated_at) on task to signalbox_resolver;
grant insert, delete on task_stage to signalbox_orchestrator;
grant update (work_until) on question to signalbox_tool_gateway, signalbox_orchestrator;
