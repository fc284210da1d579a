-- Questions: what a person, an agent or a rule is asked and answers once. Plans that await approval are questions.
create table question (
    account_id      text not null references account,
    id              uuid not null,
    -- question, plan, review or tool
    kind            text not null,
    -- open, answered, withdrawn, lapsed or cancelled
    state           text not null default 'open',
    -- as it is compared
    task_id         text,
    -- who asks: its session with its kind, and the agent, turn and tool call
    session_id      uuid,
    session_kind    text,
    generation      integer,
    agent_id        uuid,
    turn_id         uuid,
    tool_call       uuid,
    title           text not null,
    body            text not null,
    -- [{id, label}]
    options         jsonb not null default '[]',
    multiple        boolean not null default false,
    free_text       boolean not null default true,
    -- who is asked
    audience        text[] not null,
    created_at      timestamptz not null default now(),
    lapse_at        timestamptz,
    -- of kind tool: the call as it was recorded
    tool            text,
    arguments       text,
    arguments_hash  bytea,
    schema_hash     bytea,
    -- of kind plan: from 1, within its task
    plan_revision   integer,
    -- of kind review: the stage, and until when the work was done that is reviewed
    stage           text,
    work_until      timestamptz,
    verdict         text,
    -- {options, text}
    answer          jsonb,
    -- who answered or withdrew it
    ended_by_kind   text,
    ended_by_id     text,
    ended_by_name   text,
    ended_by_via    text,
    ended_at        timestamptz,
    reason          text,
    -- the item that told the asker
    notification_id text,
    primary key (account_id, id)
);
create unique index question_call on question (account_id, tool_call) where tool_call is not null;
create unique index question_plan on question (account_id, task_id, plan_revision) where plan_revision is not null;
-- One open plan and one open review of a task.
create unique index question_decision on question (account_id, task_id, kind) where kind in ('plan', 'review') and state = 'open';
create index question_notification on question (account_id, notification_id) where notification_id is not null;
-- Open ones: of a task, of a session, of an agent, of a turn.
create index question_of_task on question (account_id, task_id) where state = 'open' and task_id is not null;
create index question_of_session on question (account_id, session_id) where state = 'open' and session_id is not null;
create index question_of_agent on question (account_id, agent_id) where state = 'open' and agent_id is not null;
create index question_waiting on question (created_at) where ended_at is null;
create index question_ended on question (account_id, ended_at) where ended_at is not null;
alter table question enable row level security;
alter table question force row level security;
create policy tenant on question
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select on question to signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
grant insert on question to signalbox_tool_gateway, signalbox_orchestrator;
grant update (state, verdict, answer, ended_by_kind, ended_by_id, ended_by_name, ended_by_via, ended_at, reason, notification_id)
    on question to signalbox_tool_gateway, signalbox_orchestrator;
grant delete on question to signalbox_orchestrator;
-- A question is opened without its answer.
create policy opened_tool_gateway on question as restrictive for insert to signalbox_tool_gateway
    with check (state = 'open' and verdict is null and answer is null and ended_by_kind is null);
-- An agent answers what it is asked. What people are asked, and calls, are decided by the orchestrator.
create policy own_tool_gateway on question as restrictive for update to signalbox_tool_gateway
    using (true) with check (verdict is null and answer is null and ended_by_kind is distinct from 'user' or ended_by_kind = 'agent' and kind <> 'tool');

-- How many questions are open, at most so many, and since when the oldest.
create policy sweep on question for select to signalbox_sweeper using (true);
grant select (ended_at, created_at) on question to signalbox_sweeper;
create function question_waiting(row_limit integer) returns table (questions bigint, oldest timestamptz)
    language sql stable security definer set search_path = public, pg_temp as $$
    select count(*), min(q.created_at)
    from (select q.created_at from public.question q where q.ended_at is null order by q.created_at limit row_limit) q
$$;
alter function question_waiting(integer) owner to signalbox_sweeper;
revoke all on function question_waiting(integer) from public;
grant execute on function question_waiting(integer) to signalbox_orchestrator;

-- Whether the newest plan since the task was last opened is approved.
alter table task add column plan_approved boolean not null default false;
-- Whether a plan was submitted since then: tools stay shut until one is approved.
alter table task add column plan_submitted boolean not null default false;

-- An answer for a conversation without an open generation is sent to the resolver.
grant select, insert on accepted_notification to signalbox_tool_gateway;
