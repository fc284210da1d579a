-- The ground: accounts and what they own, the queue, the turns, and what the services keep for themselves.
--
-- Rules that hold for every table (checked by tests/it/walls.rs, which reads the catalogue):
--   * the account is the first column of every primary key, unique index and foreign key (architecture, invariant 8);
--   * row-level security is on, forced, and compares with the accounts that the transaction declared;
--   * words are text with a CHECK; moments are timestamptz by the database's clock;
--   * the primary key is made after the other indexes: while a table is too small for a difference, the planner takes
--     the youngest index that fits, and keeps to it in prepared statements while the table grows.
-- Tables without an account (replica, resolver_partition) hold no tenant's data and are listed in that test.

create table account (
    id                 text primary key check (id ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name               text not null,
    -- the task whose thread is the coordinator's chat (S6)
    coordinator_task   text,
    briefing           text not null default '',
    session_scope      text not null default 'task' check (session_scope in ('task', 'agent')),
    instruction_layout text not null default 'layered' check (instruction_layout in ('layered', 'inline')),
    auto_create_tasks  boolean not null default true,
    -- null: the operator's limit
    turns_in_flight_max integer check (turns_in_flight_max > 0),
    created_at         timestamptz not null default now()
);

create table api_key (
    account_id text not null references account,
    id         text not null,
    name       text not null,
    role       text not null check (role in ('admin', 'member', 'service', 'gateway')),
    -- SHA-256 of the whole key; the secret in it has 256 random bits, so no slow hash is needed
    digest     bytea not null,
    created_at timestamptz not null default now(),
    revoked_at timestamptz,
    primary key (account_id, id)
);

create table agent (
    account_id text not null references account,
    id         uuid not null,
    slug       text not null check (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name       text not null,
    -- what the agent is for, in its own words: part of its instructions
    role       text not null default '',
    provider   text not null default 'default',
    created_at timestamptz not null default now(),
    removed_at timestamptz
);
create unique index agent_slug on agent (account_id, slug) where removed_at is null;
alter table agent add primary key (account_id, id);

create table task (
    account_id  text not null references account,
    -- lower case: the id as compared
    id          text not null check (id ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    -- the id as its client spelled it
    display_id  text not null,
    title       text not null,
    description text not null default '',
    status      text not null check (status in ('inbox', 'assigned', 'pending', 'in_progress', 'review', 'blocked',
                                                'awaiting_approval', 'done', 'failed', 'cancelled', 'archived')),
    created_at  timestamptz not null default now(),
    updated_at  timestamptz not null default now()
);
create index task_newest on task (account_id, created_at, id);
alter table task add primary key (account_id, id);

create table task_assignee (
    account_id text not null,
    task_id    text not null,
    agent_id   uuid not null,
    primary key (account_id, task_id, agent_id),
    foreign key (account_id, task_id) references task,
    foreign key (account_id, agent_id) references agent
);

create table message (
    account_id  text not null,
    id          uuid not null,
    task_id     text not null,
    author_kind text not null check (author_kind in ('user', 'agent', 'service')),
    author_id   text not null,
    author_name text not null,
    body        text not null,
    -- the turn whose reply it is, or whose tool call posted it
    turn_id     uuid,
    created_at  timestamptz not null default now(),
    foreign key (account_id, task_id) references task
);
create index message_thread on message (account_id, task_id, created_at, id);
alter table message add primary key (account_id, id);

create table activity (
    account_id text not null,
    id         uuid not null,
    task_id    text not null,
    kind       text not null,
    actor_kind text not null check (actor_kind in ('user', 'agent', 'service')),
    actor_id   text not null,
    actor_name text not null,
    detail     jsonb not null default '{}',
    created_at timestamptz not null default now(),
    foreign key (account_id, task_id) references task
);
create index activity_newest on activity (account_id, task_id, created_at desc, id desc);
alter table activity add primary key (account_id, id);

create table session (
    account_id      text not null references account,
    id              uuid not null,
    kind            text not null check (kind in ('task', 'system', 'orchestrator')),
    task_id         text,
    agent_id        uuid,
    user_id         text,
    generation      integer not null check (generation > 0),
    key             text not null,
    opened_at       timestamptz not null default now(),
    closed_at       timestamptz,
    close_reason    text,
    -- what may happen next (domain::SessionPhase)
    phase           text not null default 'idle' check (phase in ('idle', 'running', 'waiting', 'backoff')),
    -- the lease: whose, and the number that only grows
    fence           bigint not null default 0,
    lease_owner     uuid,
    -- backoff: when to try again; waiting: when to look after the tools
    wake_at         timestamptz,
    active_turn_id  uuid,
    -- how many notifications wait, and the place of the newest
    queued          integer not null default 0 check (queued >= 0),
    queue_tail      bigint not null default 0,
    turn_count      bigint not null default 0,
    provider_thread text,
    -- the last turn's outcome is unknown: the next one is told so
    interrupted     boolean not null default false,
    -- the provider was seen to run another session than the key says
    mismatch        text,
    foreign key (account_id, task_id) references task,
    foreign key (account_id, agent_id) references agent,
    check ((closed_at is null) = (close_reason is null)),
    check ((phase = 'running') = (lease_owner is not null))
);
create unique index session_key_unique on session (account_id, key);
-- S1: one active session, and no generation twice
create unique index session_active_task on session (account_id, task_id, agent_id)
    where closed_at is null and kind = 'task';
create unique index session_active_system on session (account_id, agent_id)
    where closed_at is null and kind = 'system';
create unique index session_active_orchestrator on session (account_id, user_id) nulls not distinct
    where closed_at is null and kind = 'orchestrator';
create unique index session_generation on session (account_id, kind, task_id, agent_id, user_id, generation)
    nulls not distinct;
-- sweeps: only sessions that something should happen to
create index session_attention on session (account_id, phase) where phase <> 'idle' or queued > 0;
create index session_closed on session (account_id, closed_at) where closed_at is not null;
create index session_newest on session (account_id, opened_at, id);
alter table session add primary key (account_id, id);

create table notification (
    account_id   text not null references account,
    id           text not null,
    -- task, agent, session and position stand once it is accepted; a refused one has what could be told of it
    task_id      text,
    agent_id     uuid,
    session_id   uuid,
    position     bigint,
    kind         text not null,
    title        text,
    body         text not null,
    message_id   uuid,
    sender_kind  text not null check (sender_kind in ('user', 'agent', 'service')),
    sender_id    text not null,
    sender_name  text not null,
    queue_mode   text not null default 'followup' check (queue_mode in ('followup', 'collect', 'steer', 'inject')),
    metadata     jsonb not null default '{}',
    -- SHA-256 of what the publisher sent: the same id with other content is refused
    content_hash bytea not null,
    state        text not null check (state in ('queued', 'running', 'delivered', 'failed', 'refused', 'cancelled')),
    reason       text,
    turn_id      uuid,
    attempts     integer not null default 0,
    cause        text,
    hops         integer not null default 0,
    traceparent  text,
    tracestate   text,
    created_at   timestamptz not null default now(),
    foreign key (account_id, task_id) references task,
    foreign key (account_id, agent_id) references agent,
    foreign key (account_id, session_id) references session
);
-- a session's queue, in order
create index notification_queue on notification (account_id, session_id, position) where state = 'queued';
create index notification_newest on notification (account_id, created_at, id);
alter table notification add primary key (account_id, id);

create table instruction_text (
    account_id text not null references account,
    -- SHA-256, hex: the profile hash on every turn
    hash       text not null,
    version    text not null,
    body       text not null,
    primary key (account_id, hash)
);

create table turn (
    account_id       text not null,
    id               uuid not null,
    session_id       uuid not null,
    task_id          text,
    agent_id         uuid not null,
    generation       integer not null,
    number           bigint not null,
    -- the fence of the claim that wrote it last
    fence            bigint not null,
    state            text not null check (state in ('started', 'calling', 'awaiting_tools', 'finished', 'failed',
                                                    'aborted', 'unknown')),
    notification_ids text[] not null,
    provider         text not null,
    profile_version  text not null,
    profile_hash     text not null,
    input            text not null,
    manifest         jsonb not null,
    -- one entry a provider call that answered: its text and the calls it asked for (B3 re-runs from it)
    journal          jsonb not null default '[]',
    -- number of the provider call that is due or under way (in its idempotency key), its failures so far, and how many
    -- calls of the turn were answered
    attempt          integer not null default 1,
    failures         integer not null default 0,
    rounds           integer not null default 0,
    -- tool calls asked for so far, and since when their results are awaited
    calls_requested  integer not null default 0,
    waiting_since    timestamptz,
    -- when the connection of a call without an answer was lost
    lost_at          timestamptz,
    response_id      text,
    reply            text,
    usage            jsonb,
    error            text,
    error_class      text,
    task_history_called boolean not null default false,
    no_reply         boolean not null default false,
    late             boolean not null default false,
    cause            text,
    hops             integer not null default 0,
    traceparent      text,
    tracestate       text,
    started_at       timestamptz not null default now(),
    sent_at          timestamptz,
    finished_at      timestamptz,
    foreign key (account_id, session_id) references session,
    foreign key (account_id, profile_hash) references instruction_text
);
create unique index turn_number on turn (account_id, session_id, number);
alter table turn add primary key (account_id, id);

create table tool_call (
    account_id  text not null,
    -- follows from (session, turn, call), so that a second arrival is the same row
    id          uuid not null,
    session_id  uuid not null,
    -- absent for a call over HTTP outside any turn
    turn_id     uuid,
    generation  integer not null,
    fence       bigint not null,
    call_id     text not null,
    ordinal     integer not null,
    agent_id    uuid not null,
    name        text not null,
    arguments   text not null,
    state       text not null check (state in ('requested', 'running', 'finished', 'failed', 'refused', 'unknown')),
    result      text,
    -- the generation was closed or the fence had moved when it finished: recorded, changed nothing
    late        boolean not null default false,
    started_at  timestamptz not null default now(),
    finished_at timestamptz,
    foreign key (account_id, session_id) references session
);
create index tool_call_turn on tool_call (account_id, turn_id, ordinal);
alter table tool_call add primary key (account_id, id);

-- What could not be processed. Account `-` holds what belongs to no account that exists: the operator's to read.
create table dead_letter (
    account_id  text not null,
    id          uuid not null,
    service     text not null,
    subject     text not null,
    reason      text not null,
    detail      text not null,
    payload     text not null,
    headers     jsonb not null default '{}',
    attempts    integer not null default 0,
    created_at  timestamptz not null default now(),
    redriven_at timestamptz,
    -- how often it was redriven: numbers the messages that went out
    redrives    integer not null default 0
);
create index dead_letter_newest on dead_letter (account_id, created_at, id);
alter table dead_letter add primary key (account_id, id);

-- Messages whose transaction committed and that may not have been published yet. Published ones are deleted.
create table outbox (
    account_id text not null,
    id         uuid not null,
    service    text not null,
    subject    text not null,
    headers    jsonb not null,
    payload    bytea not null,
    created_at timestamptz not null default now(),
    -- a sweep has taken it and is publishing
    claimed_at timestamptz
);
create index outbox_oldest on outbox (service, created_at);
alter table outbox add primary key (account_id, id);

-- Answers to POSTs that carried an Idempotency-Key.
create table idempotency (
    account_id   text not null,
    key          text not null,
    request_hash bytea not null,
    status       integer,
    body         jsonb,
    created_at   timestamptz not null default now(),
    primary key (account_id, key)
);

-- Notifications that the API accepted and published. Until the resolver has written one of them down, this row is all
-- there is to say "queued" from; it is kept for a time, and has no part in what becomes of the notification.
create table accepted_notification (
    account_id   text not null references account,
    id           text not null,
    -- as the publisher spelled them
    task         text,
    agent        text,
    kind         text not null,
    -- SHA-256 of what was published: the same id with other content is refused at once
    content_hash bytea not null,
    created_at   timestamptz not null default now(),
    primary key (account_id, id)
);

-- A process that is alive. Leases are held in its name: one row renewed a second carries a thousand leases.
create table replica (
    id          uuid primary key,
    service     text not null,
    lease_until timestamptz not null
);

-- The resolver's place in the notification stream, one row a partition, moved in the transaction of the batch.
create table resolver_partition (
    partition      integer primary key,
    owner          uuid,
    fence          bigint not null default 0,
    sequence       bigint not null default 0,
    -- when the message at that place was published: tells a stream whose lost tail was written anew
    published      timestamptz,
    -- which stream the sequence counts in: a wiped and recreated stream counts from 1 again
    stream_created timestamptz
);

-- ---------------------------------------------------------------------------------------------------------------
-- Roles. Services run as these (SET ROLE after connecting); each may touch what it owns and read what it needs.

do $$
declare name text;
begin
    foreach name in array array['signalbox_resolver', 'signalbox_delivery', 'signalbox_tool_gateway',
                                'signalbox_orchestrator', 'signalbox_sweeper'] loop
        begin
            -- Looked for first: where somebody else makes the roles, the owner of the tables need not be able to.
            if to_regrole(quote_ident(name)) is null then
                execute format('create role %I nologin', name);
            end if;
        exception when duplicate_object or unique_violation then null; -- roles belong to the cluster, not the database
        end;
        begin
            execute format('grant %I to current_user', name);
        exception when others then
            raise notice 'cannot grant % to %: %', name, current_user, sqlerrm;
        end;
    end loop;
end $$;

do $$
begin
    execute format('grant usage on schema %I to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator, signalbox_sweeper', current_schema());
end $$;

grant select on account, agent, task, task_assignee, message, session, notification
    to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
grant select on activity, turn, tool_call, instruction_text
    to signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
grant select, insert, update, delete on outbox, replica
    to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
grant select, insert on dead_letter
    to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;

grant insert on task, activity, session, notification to signalbox_resolver;
-- to open a session it holds the agent's row for share (S11), and a row lock needs the right to update some column
grant update (created_at) on agent to signalbox_resolver;
grant update on session, notification to signalbox_resolver;
grant delete on session, notification, turn, tool_call to signalbox_resolver;  -- S12
grant select on turn, tool_call to signalbox_resolver;                          -- S12
grant select, insert, update on resolver_partition to signalbox_resolver;

grant update on session, notification to signalbox_delivery;
grant insert, update on turn to signalbox_delivery;
grant insert on instruction_text to signalbox_delivery;

grant insert, update on tool_call to signalbox_tool_gateway;
grant insert on message, activity, session to signalbox_tool_gateway;           -- lifecycle
grant update on task, session, notification to signalbox_tool_gateway;          -- lifecycle
grant select on api_key to signalbox_tool_gateway;

grant insert, update on account, api_key, agent, task, message to signalbox_orchestrator;
grant select on api_key to signalbox_orchestrator;
grant select, insert, update, delete on task_assignee, idempotency to signalbox_orchestrator;
grant select, insert, delete on accepted_notification to signalbox_orchestrator;
grant insert on activity, session to signalbox_orchestrator;                    -- lifecycle
grant update on session, notification, dead_letter to signalbox_orchestrator;   -- lifecycle, redrive

-- ---------------------------------------------------------------------------------------------------------------
-- Row-level security: the second wall. A transaction declares the accounts it works for in `signalbox.accounts`;
-- nothing declared means no rows. The sub-select makes it one evaluation a statement. The comparison is one that no index
-- can serve, on purpose: every query names its account itself, and given the choice the planner walks through all that an
-- account has rather than look up each of a batch.

do $$
declare name text;
begin
    foreach name in array array['api_key', 'agent', 'task', 'task_assignee', 'message', 'activity', 'session',
                                'notification', 'instruction_text', 'turn', 'tool_call', 'dead_letter', 'outbox',
                                'idempotency', 'accepted_notification', 'account'] loop
        execute format('alter table %I enable row level security', name);
        execute format('alter table %I force row level security', name);
        execute format(
            'create policy tenant on %I using (array_position((select string_to_array(current_setting(''signalbox.accounts'', true), '','')), %2$I) is not null) '
            'with check (array_position((select string_to_array(current_setting(''signalbox.accounts'', true), '','')), %2$I) is not null)',
            name, case when name = 'account' then 'id' else 'account_id' end);
    end loop;
end $$;

-- The relay of each service publishes its own rows, of all accounts, and nobody else's.
create policy relay_resolver on outbox to signalbox_resolver using (service = 'resolver') with check (service = 'resolver');
create policy relay_delivery on outbox to signalbox_delivery using (service = 'delivery') with check (service = 'delivery');
create policy relay_tool_gateway on outbox to signalbox_tool_gateway
    using (service = 'tool-gateway') with check (service = 'tool-gateway');
create policy relay_orchestrator on outbox to signalbox_orchestrator
    using (service = 'orchestrator') with check (service = 'orchestrator');

-- ---------------------------------------------------------------------------------------------------------------
-- Sweeps look across accounts, and see ids, places and moments only: the sweeper role is granted those columns and
-- nothing else, and owns the functions through which services ask.

grant select (id, name, created_at) on account to signalbox_sweeper;
grant select (account_id, id, task_id, phase, queued, wake_at, lease_owner, closed_at, generation, kind, agent_id, user_id,
              active_turn_id) on session to signalbox_sweeper;
grant select on replica to signalbox_sweeper;
create policy sweep on account for select to signalbox_sweeper using (true);
create policy sweep on session for select to signalbox_sweeper using (true);

-- The accounts there are, for the operator.
create function account_directory(after_id text, row_limit integer)
    returns table (id text, name text, created_at timestamptz)
    language sql stable security definer set search_path from current as $$
    select a.id, a.name, a.created_at from account a where a.id > coalesce(after_id, '') order by a.id limit row_limit
$$;

-- Sessions that something should happen to and nobody is seeing to: queued work without a lease, a retry that is due,
-- tools that have been awaited too long, a lease whose holder is gone.
create function session_neglected(row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path from current as $$
    select s.account_id, s.id from session s
    where (s.phase = 'idle' and s.queued > 0 and s.closed_at is null)
       or (s.phase in ('backoff', 'waiting') and s.wake_at <= now())
       or (s.phase = 'running'
           and not exists (select from replica r where r.id = s.lease_owner and r.lease_until > now()))
    limit row_limit
$$;

-- Closed sessions whose time is over (S12). The newest generation of each stays: it carries the number.
create function session_expired(older_than timestamptz, row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path from current as $$
    select s.account_id, s.id from session s
    where s.closed_at < older_than and s.active_turn_id is null
      and exists (select from session n
                  where n.account_id = s.account_id and n.kind = s.kind
                    and n.task_id is not distinct from s.task_id and n.agent_id is not distinct from s.agent_id
                    and n.user_id is not distinct from s.user_id and n.generation > s.generation)
    limit row_limit
$$;

alter function account_directory(text, integer) owner to signalbox_sweeper;
alter function session_neglected(integer) owner to signalbox_sweeper;
alter function session_expired(timestamptz, integer) owner to signalbox_sweeper;
revoke all on function account_directory(text, integer), session_neglected(integer), session_expired(timestamptz, integer) from public;
grant execute on function account_directory(text, integer) to signalbox_orchestrator;
grant execute on function session_neglected(integer) to signalbox_delivery;
grant execute on function session_expired(timestamptz, integer) to signalbox_resolver;
