-- The database's schema: every migration in order, as a new database runs them.
-- Generated from shared/storage/src/migrations by `signalbox schemas`.

-- == 0001_ground --------------------------------------------------------------

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

-- == 0002_neglected_sessions --------------------------------------------------

-- The search for sessions that nobody is seeing to goes round, a page at a time: whatever stays neglected for a while (an
-- account at its limit, say) hides nobody behind it. A session that waits for its next attempt, with no turn and nothing
-- queued, has nothing to be woken for.
create function session_neglected(after_account text, after_session uuid, row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path from current as $$
    select s.account_id, s.id from session s
    where (s.account_id, s.id) > (after_account, after_session)
      and ((s.phase = 'idle' and s.queued > 0 and s.closed_at is null)
           or (s.phase in ('backoff', 'waiting') and s.wake_at <= now()
               and (s.active_turn_id is not null or (s.queued > 0 and s.closed_at is null)))
           or (s.phase = 'running'
               and not exists (select from replica r where r.id = s.lease_owner and r.lease_until > now())))
    order by s.account_id, s.id
    limit row_limit
$$;
alter function session_neglected(text, uuid, integer) owner to signalbox_sweeper;
revoke all on function session_neglected(text, uuid, integer) from public;
grant execute on function session_neglected(text, uuid, integer) to signalbox_delivery;

-- == 0003_kept_until_read -----------------------------------------------------

-- Some messages are all that their reader has to go by: notifications, and the news that a turn is finished. A broker that
-- loses its store would lose them, so their rows stay behind the broker's acknowledgement until the reader deletes them,
-- in the transaction in which it takes the message in. The sweep publishes again what the broker no longer has.
alter table outbox
    -- the broker has acknowledged it: when, and where in its stream it lies
    add column stored_at       timestamptz,
    add column stored_sequence bigint,
    -- when a sweep looks next whether it was read
    add column look_at         timestamptz;
-- Each sweep walks through its own rows only: what was never acknowledged is little, what is not yet read can be much.
create index outbox_unsent on outbox (service, created_at) where stored_at is null;
create index outbox_unread on outbox (service, look_at) where stored_at is not null;
drop index outbox_oldest;

-- == 0004_emptied_sessions ----------------------------------------------------

-- The newest closed generation of a session stays, since it carries the number; what hangs on it goes when its time is over,
-- like that of the others (S12). A session is opened for work, so its `queue_tail` is 0 only once it was emptied. Under a
-- name of its own: whoever asks by the old one removes all that it finds.
grant select (queue_tail) on session to signalbox_sweeper;
create function session_outlived(older_than timestamptz, row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path from current as $$
    select s.account_id, s.id from session s
    where s.closed_at < older_than and s.active_turn_id is null
      and (s.queue_tail > 0
           or exists (select from session n
                      where n.account_id = s.account_id and n.kind = s.kind
                        and n.task_id is not distinct from s.task_id and n.agent_id is not distinct from s.agent_id
                        and n.user_id is not distinct from s.user_id and n.generation > s.generation))
    limit row_limit
$$;
alter function session_outlived(timestamptz, integer) owner to signalbox_sweeper;
revoke all on function session_outlived(timestamptz, integer) from public;
grant execute on function session_outlived(timestamptz, integer) to signalbox_resolver;

-- == 0005_kept_for_a_time -----------------------------------------------------

-- What went nowhere is kept for a time: refused notifications by the resolver, dead letters by the orchestrator. The
-- resolver's sweep looks across accounts for the oldest, and sees ids and moments only.
create index notification_refused on notification (created_at) where state = 'refused';
grant select (account_id, id, state, created_at) on notification to signalbox_sweeper;
create policy sweep on notification for select to signalbox_sweeper using (true);
create function notification_refused(older_than timestamptz, row_limit integer)
    returns table (account_id text, notification_id text)
    language sql stable security definer set search_path from current as $$
    select n.account_id, n.id from notification n
    where n.state = 'refused' and n.created_at < older_than
    order by n.created_at
    limit row_limit
$$;
alter function notification_refused(timestamptz, integer) owner to signalbox_sweeper;
revoke all on function notification_refused(timestamptz, integer) from public;
grant execute on function notification_refused(timestamptz, integer) to signalbox_resolver;
grant delete on dead_letter to signalbox_orchestrator;

-- == 0006_keys_expire ---------------------------------------------------------

-- A key may be made for a time; after it, it is worth nothing. It is listed until it is revoked.
alter table api_key add column expires_at timestamptz check (expires_at > created_at);

-- == 0007_turn_tools ----------------------------------------------------------

-- What the calls of a turn may do is on its row, written by whoever began it.
alter table turn
    -- the tools that it was offered; its calls may use no others. Absent on a turn that an older version began
    add column tools         text[],
    -- how long its calls count after they were asked for (waiting_since). Absent as above
    add column tools_wait_ms bigint;

-- == 0008_fair_look -----------------------------------------------------------

-- The search for sessions that nobody is seeing to takes from every account, a page in all: one account with a hundred
-- thousand that wait hides nobody. What a dead holder left comes first, whatever else waits. The rest goes round within
-- its account, behind `passed_sessions`; an account's page is full when as many rows `in_turn` as `page` says were found.
-- An account that was looked at and has nothing is a row without a session: the walk over accounts goes on behind it.
create function session_neglected(after_account text, passed_accounts text[], passed_sessions uuid[], row_limit integer)
    returns table (account_id text, session_id uuid, in_turn boolean, page integer)
    language sql stable security definer set search_path from current as $$
    with recursive walk (account_id, number) as (
        (select s.account_id, 1 from session s
         where (s.phase <> 'idle' or s.queued > 0) and s.account_id > after_account
         order by s.account_id limit 1)
        union all
        select (select s.account_id from session s
                where (s.phase <> 'idle' or s.queued > 0) and s.account_id > w.account_id
                order by s.account_id limit 1), w.number + 1
        from walk w where w.account_id is not null and w.number < row_limit
    ), share (account_id, page) as (
        select w.account_id, greatest(1, row_limit / count(*) over ())::integer from walk w where w.account_id is not null
    )
    select h.account_id, f.id, coalesce(f.in_turn, false), h.page
    from share h
    left join lateral (
        select p.session_id from unnest(passed_accounts, passed_sessions) as p (account_id, session_id)
        where p.account_id = h.account_id limit 1) passed on true
    left join lateral (
        (select s.id, false as in_turn from session s
         where s.account_id = h.account_id and s.phase = 'running'
           and not exists (select from replica r where r.id = s.lease_owner and r.lease_until > now())
         limit h.page)
        union all
        (select w.id, true from (
            (select s.id from session s
             where s.account_id = h.account_id and s.phase = 'idle' and s.queued > 0 and s.closed_at is null
               and s.id > coalesce(passed.session_id, '00000000-0000-0000-0000-000000000000')
             order by s.id limit h.page)
            union all
            (select s.id from session s
             where s.account_id = h.account_id and s.phase = 'waiting' and s.wake_at <= now()
               and (s.active_turn_id is not null or (s.queued > 0 and s.closed_at is null))
               and s.id > coalesce(passed.session_id, '00000000-0000-0000-0000-000000000000')
             order by s.id limit h.page)
            union all
            (select s.id from session s
             where s.account_id = h.account_id and s.phase = 'backoff' and s.wake_at <= now()
               and (s.active_turn_id is not null or (s.queued > 0 and s.closed_at is null))
               and s.id > coalesce(passed.session_id, '00000000-0000-0000-0000-000000000000')
             order by s.id limit h.page)
         ) w order by w.id limit h.page)
    ) f on true
    order by h.account_id, f.in_turn, f.id
$$;
alter function session_neglected(text, text[], uuid[], integer) owner to signalbox_sweeper;
revoke all on function session_neglected(text, text[], uuid[], integer) from public;
grant execute on function session_neglected(text, text[], uuid[], integer) to signalbox_delivery;
-- Read in the order in which the search goes round.
drop index session_attention;
create index session_attention on session (account_id, phase, id) where phase <> 'idle' or queued > 0;

-- == 0009_keys_of_agents ------------------------------------------------------

-- A gateway's key may be for one agent: it opens that agent's sessions and no others.
alter table api_key
    add column agent_id uuid check (agent_id is null or role = 'gateway'),
    add foreign key (account_id, agent_id) references agent;

-- == 0010_seen_steps ----------------------------------------------------------

-- A service sees which steps were run, so that its start can refuse a schema that lacks some. Before this one no role of a
-- service could, and a login that may do nothing but take its role could not tell. The table is the migrations' own; a
-- database that was made from this text without them has none.

do $$
begin
    if to_regclass('seaql_migrations') is not null then
        grant select on seaql_migrations
            to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
    end if;
end $$;

-- == 0011_hot_rows ------------------------------------------------------------

-- What a notification costs on its way: its row was checked against four others, and its turn's texts were compressed by
-- the slower of Postgres' two methods. Measured in docs/adr/0034-work-per-notification.md.

-- An accepted notification is in a session of its account, and that session is held to an account, a task and an agent
-- that there are; its own three columns say the same again. None of these rows is ever deleted, and the composite keys
-- leave no way to name another account's.
alter table notification
    drop constraint notification_account_id_fkey,
    drop constraint notification_account_id_task_id_fkey,
    drop constraint notification_account_id_agent_id_fkey;
-- Written together with what it tells of, which is held to its task.
alter table activity drop constraint activity_account_id_task_id_fkey;

-- Rows above two kilobytes are compressed. A server that was built without this method keeps the other.
do $$ begin
    alter table turn
        alter column input set compression lz4,
        alter column manifest set compression lz4,
        alter column journal set compression lz4,
        alter column reply set compression lz4;
    alter table notification alter column body set compression lz4;
    alter table message alter column body set compression lz4;
exception when feature_not_supported then
    raise notice 'this server has no lz4: %', sqlerrm;
end $$;

-- == 0012_rows_in_place -------------------------------------------------------

-- A session's row is written three times for each notification. As long as an index knew its phase and its count of what
-- waits, each of these writes was also one into all seven indexes of the table: ten times the work, and eight times the
-- log. Nothing that changes with a turn is in an index of this table any more, and pages have room for the new row beside
-- the old one, so that it is written in place.
drop index session_attention;
alter table session set (fillfactor = 50);

-- What somebody has to see to is found from what is there to be seen to: notifications that are queued, which have an
-- index already, and turns that have not ended.
create index turn_open on turn (account_id, session_id) where finished_at is null;
grant select (account_id, session_id, finished_at) on turn to signalbox_sweeper;
create policy sweep on turn for select to signalbox_sweeper using (true);
grant select (session_id) on notification to signalbox_sweeper;

-- As before, but for where it looks: a session that somebody works on, or has worked on, has a turn that has not ended;
-- one that waits for somebody has a notification that is queued.
create or replace function session_neglected(after_account text, passed_accounts text[], passed_sessions uuid[], row_limit integer)
    returns table (account_id text, session_id uuid, in_turn boolean, page integer)
    language sql stable security definer set search_path from current as $$
    with recursive walk (account_id, number) as (
        select least(
            (select n.account_id from notification n where n.state = 'queued' and n.account_id > after_account
             order by n.account_id limit 1),
            (select t.account_id from turn t where t.finished_at is null and t.account_id > after_account
             order by t.account_id limit 1)), 1
        union all
        select least(
            (select n.account_id from notification n where n.state = 'queued' and n.account_id > w.account_id
             order by n.account_id limit 1),
            (select t.account_id from turn t where t.finished_at is null and t.account_id > w.account_id
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
        (select s.id, false as in_turn from turn t
         cross join lateral (
            select s.id from session s
            where s.account_id = h.account_id and s.id = t.session_id and s.phase = 'running'
              and not exists (select from replica r where r.id = s.lease_owner and r.lease_until > now())
            offset 0) s
         where t.account_id = h.account_id and t.finished_at is null
         limit h.page)
        union all
        (select w.id, true from (
            -- one after the other: a session may have thousands queued
            (with recursive queue (session_id) as (
                (select n.session_id from notification n
                 where n.account_id = h.account_id and n.state = 'queued' and n.session_id > passed.session_id
                 order by n.session_id limit 1)
                union all
                select (select n.session_id from notification n
                        where n.account_id = h.account_id and n.state = 'queued' and n.session_id > q.session_id
                        order by n.session_id limit 1)
                from queue q where q.session_id is not null
             )
             select s.id from queue q
             cross join lateral (
                select s.id from session s
                where s.account_id = h.account_id and s.id = q.session_id and s.queued > 0 and s.closed_at is null
                  and (s.phase = 'idle' or (s.phase in ('waiting', 'backoff') and s.wake_at <= now()))
                offset 0) s
             limit h.page)
            union
            (select s.id from (
                select t.session_id from turn t
                where t.account_id = h.account_id and t.finished_at is null and t.session_id > passed.session_id
                order by t.session_id) t
             cross join lateral (
                select s.id from session s
                where s.account_id = h.account_id and s.id = t.session_id and s.phase in ('waiting', 'backoff')
                  and s.wake_at <= now() and s.active_turn_id is not null
                offset 0) s
             limit h.page)
         ) w order by w.id limit h.page)
    ) f on true
    order by h.account_id, f.in_turn, f.id
$$;

-- == 0013_waiting -------------------------------------------------------------

-- How long what waits for its turn has waited, over all accounts: the first of each session's queue, a page of sessions a
-- look. One after the other by the index notification_queue, since a session may have thousands queued.
grant select (position) on notification to signalbox_sweeper;
create function notification_waiting(after_account text, after_session uuid, row_limit integer)
    returns table (account_id text, session_id uuid, created_at timestamptz)
    language sql stable security definer set search_path from current as $$
    with recursive head (account_id, session_id, created_at, number) as (
        (select n.account_id, n.session_id, n.created_at, 1 from notification n
         where n.state = 'queued' and (n.account_id, n.session_id) > (after_account, after_session)
         order by n.account_id, n.session_id, n.position limit 1)
        union all
        select f.account_id, f.session_id, f.created_at, h.number + 1
        from head h
        cross join lateral (
            select n.account_id, n.session_id, n.created_at from notification n
            where n.state = 'queued' and (n.account_id, n.session_id) > (h.account_id, h.session_id)
            order by n.account_id, n.session_id, n.position limit 1) f
        where h.number < row_limit
    )
    select h.account_id, h.session_id, h.created_at from head h order by h.number
$$;
alter function notification_waiting(text, uuid, integer) owner to signalbox_sweeper;
revoke all on function notification_waiting(text, uuid, integer) from public;
grant execute on function notification_waiting(text, uuid, integer) to signalbox_delivery;

-- == 0014_presence_and_keys ---------------------------------------------------

-- The lock by which a process shows that it is there; none: its time alone tells. The server gives it up with the connection
-- that holds it, so that what may be taken over at once is.
alter table replica add column presence bigint;

-- A task is named by its key here as everywhere, so that its assignments are found by an index: statements that had to bring
-- it into that form first read all assignments of the account.
update account set coordinator_task = lower(coordinator_task) where coordinator_task <> lower(coordinator_task);
alter table account add constraint account_coordinator_task_check check (coordinator_task = lower(coordinator_task));

-- == 0015_walls_and_age -------------------------------------------------------

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

-- == 0016_keys_and_lists ------------------------------------------------------

-- A role for whoever publishes and needs nothing else: a CI, a webhook. What became of a notification it may read where it
-- was the one that published it.
alter table api_key drop constraint api_key_role_check;
alter table api_key add constraint api_key_role_check
    check (role in ('admin', 'member', 'service', 'publisher', 'gateway'));
alter table accepted_notification add column published_by text;

-- An Idempotency-Key is whoever's who chose it: two keys of an account may choose the same. Rows that a version before wrote
-- do not say whose they are, and count for all, as they did; they are forgotten within orchestrator.answers_kept_hours.
alter table idempotency add column principal text not null default '';
alter table idempotency drop constraint idempotency_pkey;
alter table idempotency add primary key (account_id, key, principal);

-- The list of keys finds them in its order, however many there are. The primary key is made again behind it: of two indexes that
-- look alike to a planner that has counted nothing, it takes the younger one, and who holds a key is asked at every request.
alter table api_key drop constraint api_key_pkey;
create index api_key_oldest on api_key (account_id, created_at, id);
alter table api_key add primary key (account_id, id);

-- == 0017_who_speaks ----------------------------------------------------------

-- Whose word it is that this is the sender or author: the name of the service that names another, or speaks on behalf of a
-- person. None: they speak for themselves, as all did before.
alter table notification add column sender_via text;
alter table message add column author_via text;

-- == 0018_bounded_look --------------------------------------------------------

-- A look comes by ten times as many sessions of an account as it may find, however many have something waiting or a turn that
-- has not ended: a hundred thousand that all wait for another attempt are gone round in many looks. Where the next look goes
-- on is a row of page 0, whose session is the last that was come by. As before, what a dead holder left comes first; of
-- more open turns than a look comes by, the others are come by in the round.
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
    select h.account_id, f.id, coalesce(f.in_turn, false), case when f.goes_on then 0 else h.page end
    from share h
    cross join lateral (
        select coalesce((select p.session_id from unnest(passed_accounts, passed_sessions) as p (account_id, session_id)
                         where p.account_id = h.account_id limit 1),
                        '00000000-0000-0000-0000-000000000000') as session_id, 10 * h.page as looked_at) passed
    left join lateral (
        (select s.id, false as in_turn, false as goes_on from (
            select t.session_id from public.turn t where t.account_id = h.account_id and t.finished_at is null
            order by t.session_id limit passed.looked_at) t
         cross join lateral (
            select s.id from public.session s
            where s.account_id = h.account_id and s.id = t.session_id and s.phase = 'running'
              and not exists (select from public.replica r where r.id = s.lease_owner and r.lease_until > now())
            offset 0) s
         limit h.page)
        union all
        (with recursive queue (session_id, number) as (
            -- one after the other: a session may have thousands queued
            (select n.session_id, 1 from public.notification n
             where n.account_id = h.account_id and n.state = 'queued' and n.session_id > passed.session_id
             order by n.session_id limit 1)
            union all
            select (select n.session_id from public.notification n
                    where n.account_id = h.account_id and n.state = 'queued' and n.session_id > q.session_id
                    order by n.session_id limit 1), q.number + 1
            from queue q where q.session_id is not null and q.number < passed.looked_at
         ), open as materialized (
            select t.session_id, row_number() over (order by t.session_id) as number from (
                select t.session_id from public.turn t
                where t.account_id = h.account_id and t.finished_at is null and t.session_id > passed.session_id
                order by t.session_id limit passed.looked_at) t
         ), up_to as materialized (
            select least((select q.session_id from queue q where q.number = passed.looked_at),
                         (select o.session_id from open o where o.number = passed.looked_at)) as session_id
         ), found as materialized (
            select s.id from (select q.session_id from queue q where q.session_id is not null
                              union select o.session_id from open o) w
            cross join up_to
            cross join lateral (
                select s.id from public.session s
                where s.account_id = h.account_id and s.id = w.session_id
                  and ((s.queued > 0 and s.closed_at is null and s.phase = 'idle')
                    or (s.phase in ('waiting', 'backoff') and s.wake_at <= now()
                        and (s.active_turn_id is not null or (s.queued > 0 and s.closed_at is null)))
                    or (s.phase = 'running'
                        and not exists (select from public.replica r where r.id = s.lease_owner and r.lease_until > now())))
                offset 0) s
            where up_to.session_id is null or w.session_id <= up_to.session_id
            order by s.id limit h.page
         )
         select f.id, true, false from found f
         union all
         select l.session_id, true, true from (
            select coalesce((select f.id from found f order by f.id offset h.page - 1 limit 1), up_to.session_id) as session_id
            from up_to) l
         where l.session_id is not null)
    ) f on true
    order by h.account_id, f.in_turn, f.id, f.goes_on
$$;

-- == 0019_letters_of_ones_own -------------------------------------------------

-- A dead letter is of a message that its service reads or publishes. The orchestrator signs what it sends again: a letter on any
-- subject made it sign, for a service that was taken over, what that service could not publish. What a service publishes is what
-- its policy on `outbox` says; what it reads is in shared/messaging/src/users.rs, and tests/it/subjects.rs holds both together.
do $$
declare
    own record;
    publishes text;
begin
    for own in select * from (values
        ('resolver', 'case split_part(subject, ''.'', 2)
            when ''notification'' then split_part(subject, ''.'', 4) <> '''' and split_part(subject, ''.'', 5) = ''''
            when ''partition'' then split_part(subject, ''.'', 5) <> '''' and split_part(subject, ''.'', 6) = ''''
            else false end'),
        -- the notifications of a turn that failed, too
        ('delivery', 'case split_part(subject, ''.'', 2)
            when ''session'' then split_part(subject, ''.'', 3) in (''resolved'', ''closed'') and split_part(subject, ''.'', 4) <> ''''
            when ''tool'' then split_part(subject, ''.'', 3) = ''finished'' and split_part(subject, ''.'', 4) <> ''''
            when ''notification'' then split_part(subject, ''.'', 4) <> '''' and split_part(subject, ''.'', 5) = ''''
            else false end'),
        ('tool-gateway', 'split_part(subject, ''.'', 2) = ''tool'' and split_part(subject, ''.'', 3) = ''requested''
            and split_part(subject, ''.'', 4) <> '''''),
        -- it reads what it may send again
        ('orchestrator', 'false')) as v (service, reads)
    loop
        select with_check into strict publishes from pg_policies
        where schemaname = 'public' and tablename = 'outbox' and policyname = 'own_' || replace(own.service, '-', '_');
        execute format('alter policy %I on public.dead_letter with check (service = %L and (%s or (%s)))',
                       'own_' || replace(own.service, '-', '_'), own.service, own.reads, publishes);
    end loop;
end $$;

-- Delivery makes the letter of a failed turn's notification from its row. Who sent it is the resolver's word: whoever has
-- taken delivery over cannot change it, and a letter that says otherwise is not believed when it is sent again.
revoke update on notification from signalbox_delivery;
grant update (state, reason, attempts, turn_id) on notification to signalbox_delivery;
-- The others close sessions, and write what becomes of what waits in them.
revoke update on notification from signalbox_tool_gateway, signalbox_orchestrator;
grant update (session_id, position, state, reason, turn_id) on notification to signalbox_tool_gateway, signalbox_orchestrator;

-- == 0020_refused_apart -------------------------------------------------------

-- The stream of notifications refuses them when it is full, and no other stream does. A sweep takes what else waits beside
-- them, however many notifications wait for longer. What an older version writes counts as something else.
alter table outbox add column is_notification boolean not null default false;
drop index outbox_unsent;
create index outbox_unsent on outbox (service, is_notification, created_at) where stored_at is null;

-- == 0021_calls_one_by_one ----------------------------------------------------

-- Of a turn's tool calls the next one is asked for when the one before is over: the place of the one that was asked for last.
-- Rows of an older version have none, and are asked for again at the time that they were to be.
alter table session add column asked integer not null default 0;

-- == 0022_hot_keys ------------------------------------------------------------

-- Three references were looked up for each row of the hot path. A turn is written by the one who holds its session's row, and
-- joins the text of its instructions by its key; no role may delete a task, and who posts a message has read its task, or a
-- turn on it.
alter table turn
    drop constraint turn_account_id_session_id_fkey,
    drop constraint turn_account_id_profile_hash_fkey;
alter table message drop constraint message_account_id_task_id_fkey;

-- == 0023_items_enter ---------------------------------------------------------

-- Whoever knows a conversation appends to its open session, or sends it a notification where none is open (storage::session,
-- item_enter): every service may do so, and may wake delivery afterwards.
grant insert on notification to signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
grant select, insert on accepted_notification to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway;

-- What a service publishes, as in 0015, with notifications for resolver and delivery, and `session.resolved` for delivery.
alter policy own_resolver on outbox
    with check (service = 'resolver' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('task.created', 'notification.refused', 'session.opened', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);
alter policy own_delivery on outbox
    with check (service = 'delivery' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('turn.started', 'turn.finished', 'notification.cancelled', 'notification.failed', 'provider.session_mismatched', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'tool' then split_part(subject, '.', 3) in ('requested')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);

-- == 0024_sessions_of_agent ---------------------------------------------------

-- Removing an agent closes its open sessions. Without this index the statement that finds them reads all sessions of
-- the account. Its condition is written so that no other statement's condition implies it: with `closed_at is null`,
-- statements planned on a small table would use this index instead of the primary key.
create index session_of_agent on session (account_id, agent_id) where coalesce(closed_at, 'infinity') = 'infinity';

-- == 0025_packed_manifests ----------------------------------------------------

-- A manifest is written with every turn and seldom read: packed, it takes a third of the bytes and no parsing. `manifest`
-- keeps the layout, which an older version needs to carry a turn on; older rows have their parts there.
alter table turn add column manifest_packed bytea;

-- == 0026_replies_in_the_record -----------------------------------------------

-- A delivery posts a turn's reply with the turn's record; the orchestrator posted it from the event of the turn's end.
grant insert on message to signalbox_delivery;
alter policy own_delivery on outbox
    with check (service = 'delivery' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('turn.started', 'turn.finished', 'message.posted', 'notification.cancelled', 'notification.failed', 'provider.session_mismatched', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'tool' then split_part(subject, '.', 3) in ('requested')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);

-- Its dead letters are of what it reads or publishes, as in 0019.
do $$
begin
    execute format('alter policy own_delivery on public.dead_letter with check (service = %L and (%s or (%s)))', 'delivery',
        $reads$case split_part(subject, '.', 2)
            when 'session' then split_part(subject, '.', 3) in ('resolved', 'closed') and split_part(subject, '.', 4) <> ''
            when 'tool' then split_part(subject, '.', 3) = 'finished' and split_part(subject, '.', 4) <> ''
            when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
            else false end$reads$,
        (select with_check from pg_policies
         where schemaname = 'public' and tablename = 'outbox' and policyname = 'own_delivery'));
end $$;

-- A message is an activity of its task: it is read from `message` and no longer written twice. The index leaves out those
-- that were written. The next version drops activity_newest, by which this one's predecessor reads.
create index activity_change on activity (account_id, task_id, created_at desc, id desc) where kind <> 'message.posted';

-- == 0027_messages_share_rows -------------------------------------------------

-- A row of the outbox may hold several messages of an account: its service ends with `.batch`, their subjects stand in its
-- subject, one space between, and its payload holds their headers and payloads. An earlier version does not see such rows.
-- Who may write, publish and see them is as before, for each of the subjects.
do $$
declare one record;
begin
    for one in
        select name, quote_literal(name) || ', ' || quote_literal(name || '.batch') as names, replace(name, '-', '_') as suffix,
               (select with_check from pg_policies
                where schemaname = 'public' and tablename = 'outbox' and policyname = 'own_' || replace(name, '-', '_')) as may_write
        from unnest(array['resolver', 'delivery', 'tool-gateway', 'orchestrator']) as services (name)
    loop
        execute format('alter policy relay_%s on public.outbox using (service in (%s)) with check (service in (%2$s))',
                       one.suffix, one.names);
        -- The old condition reads the columns of the inner rows, which are named as the table's.
        execute format($policy$
            alter policy own_%s on public.outbox with check (not exists (
                select from string_to_table(outbox.subject, ' ') as subjects (subject),
                            regexp_replace(outbox.service, '\.batch$', '') as services (service)
                where (%s) is not true))$policy$, one.suffix, one.may_write);
    end loop;
end $$;
alter policy own_resolver on outbox
    using (service in ('resolver', 'resolver.batch')
           or split_part(subject, '.', 2) = 'notification' and strpos(subject, ' ') = 0);
alter policy own_delivery on outbox using (service in ('delivery', 'delivery.batch'));
alter policy own_tool_gateway on outbox using (service in ('tool-gateway', 'tool-gateway.batch'));
alter policy own_orchestrator on outbox
    using (service in ('orchestrator', 'orchestrator.batch')
           or split_part(subject, '.', 2) = 'event' and subject like '%.turn.finished' and strpos(subject, ' ') = 0);

-- Compressing the payloads of many messages would cost more than the rows that they share.
alter table outbox alter column payload set storage external;

-- == 0028_own_rows_only -------------------------------------------------------

-- A row of the outbox has a subject. Since 0027 subjects are compared one by one, and the service with each: a row without a
-- subject was compared with nothing.
do $$
declare one record;
begin
    for one in
        select quote_literal(name) || ', ' || quote_literal(name || '.batch') as names, p.policyname, p.with_check
        from unnest(array['resolver', 'delivery', 'tool-gateway', 'orchestrator']) as services (name)
        join pg_policies p on p.schemaname = 'public' and p.tablename = 'outbox' and p.policyname = 'own_' || replace(name, '-', '_')
    loop
        execute format('alter policy %s on public.outbox with check (service in (%s) and subject <> %L and %s)',
                       one.policyname, one.names, '', one.with_check);
    end loop;
end $$;

-- In threads, delivery and tool-gateway write for agents only: a turn's reply, and a tool's message.
create policy own_delivery on message as restrictive for insert to signalbox_delivery
    with check (author_kind = 'agent' and author_via is null and turn_id is not null);
create policy own_tool_gateway on message as restrictive for insert to signalbox_tool_gateway
    with check (author_kind = 'agent' and author_via is null);

-- == 0029_control -------------------------------------------------------------

-- Queue modes and brakes. A request to stop a turn is in its session's row until the turn has ended; a session whose queue may
-- not start is parked: in phase backoff, without a turn, with the gate that keeps it.
alter table session
    add column stop_turn_id    uuid,
    add column stop_kind       text,
    -- the name of who asked
    add column stop_by         text,
    add column stop_at         timestamptz,
    -- what happens to the items that wait: hold or continue
    add column stop_then       text,
    -- a turn that was stopped, until the next turn's agent is told
    add column stopped_turn_id uuid,
    add column gate            text,
    -- which hold keeps it
    add column gate_ref        uuid,
    add column gated_since     timestamptz,
    add column gate_looks      integer not null default 0,
    -- how often its waiting items were edited: part of the revision of its queue
    add column queue_edits     bigint not null default 0;

alter table notification
    -- with mode collect: it met a busy session, and may be answered together with others
    add column joins       boolean not null default false,
    -- how often it was edited, from 1
    add column revision    integer not null default 1,
    -- SHA-256 of the edited content; content_hash stays that of the publisher
    add column edited_hash bytea;
-- Items are edited through the API.
grant update (title, body, queue_mode, joins, metadata, revision, edited_hash) on notification to signalbox_orchestrator;
-- A released lease raises the fence of its turn.
grant update (fence) on turn to signalbox_orchestrator;

-- The items that may be given to a turn in progress.
create index notification_inject on notification (account_id, session_id, position) where state = 'queued' and queue_mode = 'inject';
-- What was given to the turn with its tool results: [{round, text, notification_ids}].
alter table turn add column notes jsonb;

-- Holds: what is paused. A claim looks for them only where the account has any.
alter table account add column holds integer not null default 0;
create table hold (
    account_id  text not null references account,
    id          uuid not null,
    -- account, task, agent or session, and its id as compared
    scope_kind  text not null,
    scope_id    text not null,
    reason      text not null default '',
    by_kind     text not null,
    by_id       text not null,
    by_name     text not null,
    -- what becomes of turns in progress: finish or stop
    running     text not null,
    until       timestamptz,
    created_at  timestamptz not null default now(),
    released_at timestamptz,
    -- the name of who released it
    released_by text,
    -- a sweep still looks: for turns to stop, or, once released, for sessions to unpark
    unsettled   boolean not null default false,
    primary key (account_id, id)
);
create unique index hold_active on hold (account_id, scope_kind, scope_id, by_kind, by_id) where released_at is null;
create index hold_unsettled on hold (account_id, id) where unsettled;
create index hold_until on hold (until) where released_at is null and until is not null;
create index hold_ended on hold (account_id, released_at) where released_at is not null;
alter table hold enable row level security;
alter table hold force row level security;
create policy tenant on hold
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select on hold to signalbox_delivery, signalbox_orchestrator;
grant insert, update, delete on hold to signalbox_orchestrator;
-- The sessions that a hold keeps: found when it is released.
create index session_gated on session (account_id, gate_ref, id) where gate_ref is not null;

-- The holds that a sweep has something to do for, a page: those that it still looks after, after a hold; and with the first
-- page those whose time is over, which are not due again.
create policy sweep on hold for select to signalbox_sweeper using (true);
grant select (account_id, id, unsettled, until, released_at) on hold to signalbox_sweeper;
create function hold_due(after_account text, after_hold uuid, row_limit integer)
    returns table (account_id text, hold_id uuid, is_over boolean)
    language sql stable security definer set search_path = public, pg_temp as $$
    select h.account_id, h.id, h.is_over from (
        (select h.account_id, h.id, true as is_over from public.hold h
         where h.released_at is null and h.until is not null and h.until <= now() and after_account = ''
         order by h.until limit row_limit)
        union all
        (select h.account_id, h.id, false from public.hold h
         where h.unsettled and (h.account_id, h.id) > (after_account, after_hold)
         order by h.account_id, h.id limit row_limit)) h
    order by h.is_over, h.account_id, h.id
$$;
alter function hold_due(text, uuid, integer) owner to signalbox_sweeper;
revoke all on function hold_due(text, uuid, integer) from public;
grant execute on function hold_due(text, uuid, integer) to signalbox_orchestrator;

-- Requests that are not yet carried out: few. The statements of a turn leave the column as it is, so they do not touch the index.
create index session_stopping on session (account_id, id) where stop_turn_id is not null;

-- The turns under a replica's leases that are to end, for the sweep of that replica.
create function session_stopping(replica uuid, row_limit integer) returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
    select s.account_id, s.id from public.session s
    where s.stop_turn_id is not null and s.lease_owner = replica and s.active_turn_id = s.stop_turn_id
    order by s.account_id, s.id limit row_limit
$$;
grant select (stop_turn_id, gate) on session to signalbox_sweeper;
alter function session_stopping(uuid, integer) owner to signalbox_sweeper;
revoke all on function session_stopping(uuid, integer) from public;
grant execute on function session_stopping(uuid, integer) to signalbox_delivery;

-- A queue that a person has stopped or paused is not late, however old its head is.
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
    select h.account_id, h.session_id, case when s.gate in ('stopped', 'pause') then now() else h.created_at end
    from head h
    left join lateral (select s.gate from public.session s where s.account_id = h.account_id and s.id = h.session_id offset 0) s on true
    order by h.number
$$;

-- What a service publishes, and what its dead letters are of: as in 0019 to 0028, with the messages of this step. The lists are
-- whole, so that the next step adds a word.
do $$
declare
    one record;
    publishes constant text := $check$(case split_part(%1$s, '.', 2)
            when 'event' then split_part(%1$s, '.', 5) || '.' || split_part(%1$s, '.', 6) = any (%2$L::text[]) and split_part(%1$s, '.', 7) = ''
            when 'notification' then split_part(%1$s, '.', 4) <> '' and split_part(%1$s, '.', 5) = ''
            when 'dead' then split_part(%1$s, '.', 4) <> '' and split_part(%1$s, '.', 5) = ''
            else split_part(%1$s, '.', 2) || '.' || split_part(%1$s, '.', 3) = any (%3$L::text[])
                and split_part(%1$s, '.', 5) <> '' and split_part(%1$s, '.', 6) = ''
        end)$check$;
begin
    for one in select name, replace(name, '-', '_') as suffix, messages, events, reads from (values
        ('resolver',
         array['session.resolved', 'session.stop_requested'],
         array['task.created', 'notification.refused', 'session.opened', 'session.released', 'message.died'],
         $reads$split_part(subject, '.', 2) = 'partition' and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''$reads$),
        ('delivery',
         array['session.resolved', 'tool.requested'],
         array['turn.started', 'turn.finished', 'message.posted', 'notification.cancelled', 'notification.failed',
               'session.parked', 'session.released', 'provider.session_mismatched', 'message.died'],
         $reads$split_part(subject, '.', 2) || '.' || split_part(subject, '.', 3) in
             ('session.resolved', 'session.closed', 'session.stop_requested', 'tool.finished')
             and split_part(subject, '.', 4) <> ''$reads$),
        ('tool-gateway',
         array['session.resolved', 'session.closed', 'session.stop_requested', 'tool.finished'],
         array['task.status_changed', 'message.posted', 'notification.cancelled', 'session.opened', 'session.closed',
               'session.released', 'message.died'],
         $reads$split_part(subject, '.', 2) || '.' || split_part(subject, '.', 3) = 'tool.requested' and split_part(subject, '.', 4) <> ''$reads$),
        ('orchestrator',
         array['session.resolved', 'session.closed', 'session.stop_requested', 'tool.requested', 'tool.finished'],
         array['turn.finished', 'task.created', 'task.status_changed', 'message.posted', 'notification.cancelled', 'session.opened',
               'session.closed', 'session.released', 'session.lease_released', 'queue.changed', 'hold.changed', 'agent.removed',
               'message.died'],
         'false')
    ) as services (name, messages, events, reads)
    loop
        execute format($policy$
            alter policy own_%s on public.outbox with check (
                service in (%L, %L) and subject <> '' and not exists (
                    select from string_to_table(outbox.subject, ' ') as subjects (subject) where %s is not true))$policy$,
            one.suffix, one.name, one.name || '.batch', format(publishes, 'subjects.subject', one.events, one.messages));
        execute format('alter policy own_%s on public.dead_letter with check (service = %L and (%s or %s))',
            one.suffix, one.name, one.reads, format(publishes, 'subject', one.events, one.messages));
    end loop;
end $$;

-- == 0030_gates ---------------------------------------------------------------

-- What questions, timers, tool policies, recovery and the breaker of providers keep in rows that exist. Their own tables are in
-- steps 31 to 34.

-- Turns without progress for the same reason, in a row: how many, which reason, since when.
alter table session
    add column streak       integer not null default 0,
    add column streak_key   text,
    add column streak_since timestamptz;
-- What woke the agent: type and sender of the turn's first item.
alter table turn add column wake_key text;

alter table task
    -- with status blocked: who moves it on, and what that person or agent has to do
    add column blocked_owner  text,
    add column blocked_action text,
    -- off or required; none: as the account says
    add column plan_gate      text,
    add column plan_audience  text[],
    -- to which it returns from awaiting_approval
    add column status_before  text;

alter table account
    -- watch or recover
    add column liveness      text not null default 'watch',
    add column plan_gate     text not null default 'off',
    add column plan_audience text[],
    -- how many rows of tool_policy it has
    add column tool_policies integer not null default 0;

-- Sessions are found by what keeps them: a hold, a question, a provider.
drop index session_gated;
create index session_gated on session (gate_ref, account_id, id) where gate_ref is not null;

-- What a service publishes, and what its dead letters are of: as in 0019 to 0029, with the messages of steps 30 to 34. The lists are
-- whole, so that the next step adds a word.
do $$
declare
    one record;
    publishes constant text := $check$(case split_part(%1$s, '.', 2)
            when 'event' then split_part(%1$s, '.', 5) || '.' || split_part(%1$s, '.', 6) = any (%2$L::text[]) and split_part(%1$s, '.', 7) = ''
            when 'notification' then split_part(%1$s, '.', 4) <> '' and split_part(%1$s, '.', 5) = ''
            when 'dead' then split_part(%1$s, '.', 4) <> '' and split_part(%1$s, '.', 5) = ''
            else split_part(%1$s, '.', 2) || '.' || split_part(%1$s, '.', 3) = any (%3$L::text[])
                and split_part(%1$s, '.', 5) <> '' and split_part(%1$s, '.', 6) = ''
        end)$check$;
begin
    for one in select name, replace(name, '-', '_') as suffix, messages, events, reads from (values
        ('resolver',
         array['session.resolved', 'session.stop_requested'],
         array['task.created', 'notification.refused', 'notification.cancelled', 'session.opened', 'session.released', 'message.died'],
         $reads$split_part(subject, '.', 2) = 'partition' and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''$reads$),
        ('delivery',
         array['session.resolved', 'tool.requested', 'tool.approved'],
         array['turn.started', 'turn.finished', 'message.posted', 'notification.cancelled', 'notification.failed',
               'session.parked', 'session.released', 'provider.session_mismatched', 'provider.opened', 'provider.probing',
               'provider.closed', 'question.withdrawn', 'recovery.changed', 'task.needs_person', 'message.died'],
         $reads$split_part(subject, '.', 2) || '.' || split_part(subject, '.', 3) in
             ('session.resolved', 'session.closed', 'session.stop_requested', 'tool.finished')
             and split_part(subject, '.', 4) <> ''$reads$),
        ('tool-gateway',
         array['session.resolved', 'session.closed', 'session.stop_requested', 'tool.approved', 'tool.finished'],
         array['task.status_changed', 'task.changed', 'message.posted', 'notification.cancelled', 'session.opened', 'session.closed',
               'session.released', 'question.opened', 'question.answered', 'question.withdrawn', 'question.cancelled',
               'timer.changed', 'recovery.changed', 'message.died'],
         $reads$split_part(subject, '.', 2) || '.' || split_part(subject, '.', 3) in ('tool.requested', 'tool.approved') and split_part(subject, '.', 4) <> ''$reads$),
        ('orchestrator',
         array['session.resolved', 'session.closed', 'session.stop_requested', 'tool.requested', 'tool.approved', 'tool.finished'],
         array['turn.finished', 'task.created', 'task.status_changed', 'task.changed', 'task.stalled', 'task.needs_person',
               'message.posted', 'notification.cancelled', 'session.opened', 'session.closed', 'session.released',
               'session.lease_released', 'queue.changed', 'hold.changed', 'question.opened', 'question.answered',
               'question.withdrawn', 'question.lapsed', 'question.cancelled', 'timer.changed', 'recovery.changed',
               'tool_policy.changed', 'agent.removed', 'message.died'],
         'false')
    ) as services (name, messages, events, reads)
    loop
        execute format($policy$
            alter policy own_%s on public.outbox with check (
                service in (%L, %L) and subject <> '' and not exists (
                    select from string_to_table(outbox.subject, ' ') as subjects (subject) where %s is not true))$policy$,
            one.suffix, one.name, one.name || '.batch', format(publishes, 'subjects.subject', one.events, one.messages));
        execute format('alter policy own_%s on public.dead_letter with check (service = %L and (%s or %s))',
            one.suffix, one.name, one.reads, format(publishes, 'subject', one.events, one.messages));
    end loop;
end $$;

-- == 0031_breaker -------------------------------------------------------------

-- The breakers of provider accounts: rows without a tenant. Delivery writes them; the orchestrator shows them, and brings a probe
-- forward.
create table provider_breaker (
    -- the provider account, as the settings name it
    key         text primary key,
    -- closed, open or probing
    state       text not null default 'closed',
    -- counts openings and closings: a call belongs to the epoch in which it was sent
    epoch       bigint not null default 0,
    -- of the failure that opened it, or of the last one counted
    class       text,
    -- what the provider said: for operators
    detail      text,
    -- in a row, while it is closed, and the time of the first
    failures    integer not null default 0,
    window_at   timestamptz,
    -- stated by the provider
    reset_at    timestamptz,
    -- while it is open: when the next turn may try
    probe_at    timestamptz,
    -- while it is probing: the turn that tries, and until when
    probe_turn  uuid,
    probe_until timestamptz,
    -- openings in a row
    opens       integer not null default 0,
    -- the providers that share the account, as agents name them
    providers   text[] not null default '{}',
    -- a sweep still unparks the sessions that waited for it
    unsettled   boolean not null default false,
    changed_at  timestamptz not null default now()
);
grant select, insert, update on provider_breaker to signalbox_delivery;
grant select, update (probe_at) on provider_breaker to signalbox_orchestrator;

-- The epoch of the breaker in which the turn's last call was sent, if the call's failure said something of the provider. A breaker that
-- was closed since then serves others: a further failure is the turn's own.
alter table turn add column failed_epoch bigint;

-- The sessions of all accounts that something keeps which has no account: a breaker.
create function session_parked(gate_ref uuid, row_limit integer) returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
    select s.account_id, s.id from public.session s
    where s.gate_ref = session_parked.gate_ref
    order by s.gate_ref, s.account_id, s.id limit row_limit
$$;
grant select (gate_ref) on session to signalbox_sweeper;
alter function session_parked(uuid, integer) owner to signalbox_sweeper;
revoke all on function session_parked(uuid, integer) from public;
grant execute on function session_parked(uuid, integer) to signalbox_delivery, signalbox_orchestrator;

-- A queue that waits for a person is not late, however old its head is.
drop function notification_waiting(text, uuid, integer);
create function notification_waiting(after_account text, after_session uuid, row_limit integer)
    returns table (account_id text, session_id uuid, created_at timestamptz, gate text)
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
    select h.account_id, h.session_id,
           case when s.gate in ('stopped', 'pause', 'no_progress', 'approval') then now() else h.created_at end, s.gate
    from head h
    left join lateral (select s.gate from public.session s where s.account_id = h.account_id and s.id = h.session_id offset 0) s on true
    order by h.number
$$;
alter function notification_waiting(text, uuid, integer) owner to signalbox_sweeper;
revoke all on function notification_waiting(text, uuid, integer) from public;
grant execute on function notification_waiting(text, uuid, integer) to signalbox_delivery;

-- == 0032_questions -----------------------------------------------------------

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

-- == 0033_timers --------------------------------------------------------------

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

-- == 0034_policies ------------------------------------------------------------

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

-- == 0035_recovery ------------------------------------------------------------

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

-- == 0036_parked_shares -------------------------------------------------------

-- Sessions that a breaker keeps, of at most 50 accounts after one, which take turns: an account with 100,000 parked sessions does not keep
-- the next one from starting. The array has one value: with an equality, the primary key has the same order, and reads all sessions.
create function session_parked_shares(gate_ref uuid, after_account text, row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive holder (account_id, number) as (
        (select s.account_id, 1 from public.session s
         where s.gate_ref = any (array[session_parked_shares.gate_ref]) and s.account_id > after_account
         order by s.gate_ref, s.account_id, s.id limit 1)
        union all
        select f.account_id, h.number + 1
        from holder h
        cross join lateral (
            select s.account_id from public.session s
            where s.gate_ref = any (array[session_parked_shares.gate_ref]) and s.account_id > h.account_id
            order by s.gate_ref, s.account_id, s.id limit 1) f
        where h.number < 50
    ), share as (
        select f.account_id, f.id, row_number() over (partition by f.account_id order by f.id) as place
        from holder h
        cross join lateral (
            select s.account_id, s.id from public.session s
            where s.gate_ref = any (array[session_parked_shares.gate_ref]) and s.account_id = h.account_id
            order by s.gate_ref, s.account_id, s.id limit row_limit) f
    )
    select s.account_id, s.id
    from (select * from share order by place, account_id limit row_limit) s
    order by s.account_id, s.id
$$;
alter function session_parked_shares(uuid, text, integer) owner to signalbox_sweeper;
revoke all on function session_parked_shares(uuid, text, integer) from public;
grant execute on function session_parked_shares(uuid, text, integer) to signalbox_delivery;

-- == 0037_threads -------------------------------------------------------------

-- Threads: what a provider keeps of a session's earlier calls, and what a session knows of it. Also the columns of the parts that
-- follow: rotation, reset, branches and replays.

alter table session drop constraint session_kind_check;
alter table session
    add constraint session_kind_check check (kind in ('task', 'system', 'orchestrator', 'branch', 'replay')),
    -- the branch or the replay that it runs
    add column origin_id         uuid,
    -- the session whose turn made it
    add column parent_session_id uuid,
    -- the generation before, which was rotated: its turns are a part of what this one knows
    add column continues_id      uuid,
    -- the newest thread, counted from 1
    add column thread_number     integer not null default 0,
    -- the provider has answered in it, and the next turn can go on from there
    add column thread_live       boolean not null default false,
    -- turns in a row that found their thread gone
    add column threads_lost      integer not null default 0,
    -- what the thread has been told besides its turns: {ids, description, briefing, at} (domain::context::Told)
    add column told              jsonb not null default '{}',
    -- of its ended turns, as the provider counts
    add column tokens_used       bigint not null default 0,
    -- ended turns in a row that failed by themselves
    add column failures_in_row   integer not null default 0,
    -- a reset that waits for the end of the turn in progress
    add column reset_request     jsonb,
    -- why it was closed, in words, where its reason does not say it
    add column close_detail      text;

-- A closed generation keeps no thread: nothing can take one up by mistake. The old value goes with session.closed. Neither a check
-- nor a trigger holds the rule: both cost every update of a session, and one statement closes sessions (sessions_close.rs).
update session set provider_thread = null where closed_at is not null and provider_thread is not null;

-- One open session of a branch and of a replay; the open replays of an account are counted by the index, too.
create unique index session_active_origin on session (account_id, kind, origin_id)
    where closed_at is null and origin_id is not null;
-- S1 again, with the branches and replays of a task. The column stands last: the statements that find the newest generation of a
-- conversation order by those before it.
drop index session_generation;
create unique index session_generation on session (account_id, kind, task_id, agent_id, user_id, generation, origin_id)
    nulls not distinct;
-- The primary key is the youngest index of its table again (0001).
alter table tool_call drop constraint tool_call_account_id_session_id_fkey;
alter table session drop constraint session_pkey, add primary key (account_id, id);
-- Younger still, as before.
drop index session_gated;
create index session_gated on session (gate_ref, account_id, id) where gate_ref is not null;
-- The calls that are there have been checked.
alter table tool_call
    add constraint tool_call_account_id_session_id_fkey foreign key (account_id, session_id) references session not valid;

alter table turn
    -- {asked, used, reason, thread, from, base_sha256}, and what only a turn in progress needs (domain::context::TurnContext);
    -- null: a version before this one began it
    add column context         jsonb,
    -- the number of its thread
    add column thread          integer,
    -- the rule by which its generation was opened, with its figures
    add column rotated_because text;

-- continue or assembled
alter table account
    add column context_policy     text not null default 'continue',
    -- the limits that differ from the defaults (domain::context::Rotation)
    add column rotation           jsonb not null default '{}',
    -- branches or always
    add column task_context_layer text not null default 'branches';
-- null: the account's
alter table agent
    add column context_policy text,
    add column rotation       jsonb;

-- the agents that it wakes; null for none
alter table message add column woke uuid[];

-- A record or a claim of delivery opens the next generation: at a rotation, and at the end of a turn that a reset has stopped.
grant insert on session to signalbox_delivery;
grant update (session_id, position) on notification to signalbox_delivery;
-- What is set for a session holds for the generation that follows.
grant update (scope_id) on hold, tool_policy to signalbox_delivery;
create policy own_delivery on hold as restrictive for update to signalbox_delivery
    using (scope_kind = 'session') with check (scope_kind = 'session');
create policy own_delivery on tool_policy as restrictive for update to signalbox_delivery
    using (scope_kind = 'session') with check (scope_kind = 'session');

-- What a service publishes, and what its dead letters are of: as in 0030, with the messages of this step and of those that follow it
-- under the same issue. The lists are whole, so that the next step adds a word.
do $$
declare
    one record;
    publishes constant text := $check$(case split_part(%1$s, '.', 2)
            when 'event' then split_part(%1$s, '.', 5) || '.' || split_part(%1$s, '.', 6) = any (%2$L::text[]) and split_part(%1$s, '.', 7) = ''
            when 'notification' then split_part(%1$s, '.', 4) <> '' and split_part(%1$s, '.', 5) = ''
            when 'dead' then split_part(%1$s, '.', 4) <> '' and split_part(%1$s, '.', 5) = ''
            else split_part(%1$s, '.', 2) || '.' || split_part(%1$s, '.', 3) = any (%3$L::text[])
                and split_part(%1$s, '.', 5) <> '' and split_part(%1$s, '.', 6) = ''
        end)$check$;
begin
    for one in select name, replace(name, '-', '_') as suffix, messages, events, reads from (values
        ('resolver',
         array['session.resolved', 'session.stop_requested'],
         array['task.created', 'notification.refused', 'notification.cancelled', 'session.opened', 'session.released', 'message.died'],
         $reads$split_part(subject, '.', 2) = 'partition' and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''$reads$),
        ('delivery',
         array['session.resolved', 'session.closed', 'tool.requested', 'tool.approved'],
         array['turn.started', 'turn.finished', 'message.posted', 'notification.cancelled', 'notification.failed',
               'session.opened', 'session.closed', 'session.reset', 'session.parked', 'session.released',
               'provider.session_mismatched', 'provider.thread_lost', 'provider.thread_unconfirmed', 'provider.opened',
               'provider.probing', 'provider.closed', 'question.withdrawn', 'recovery.changed', 'task.needs_person', 'message.died'],
         $reads$split_part(subject, '.', 2) || '.' || split_part(subject, '.', 3) in
             ('session.resolved', 'session.closed', 'session.stop_requested', 'tool.finished')
             and split_part(subject, '.', 4) <> ''$reads$),
        ('tool-gateway',
         array['session.resolved', 'session.closed', 'session.stop_requested', 'tool.approved', 'tool.finished'],
         array['task.status_changed', 'task.changed', 'message.posted', 'notification.cancelled', 'session.opened', 'session.closed',
               'session.released', 'question.opened', 'question.answered', 'question.withdrawn', 'question.cancelled',
               'timer.changed', 'recovery.changed', 'message.died'],
         $reads$split_part(subject, '.', 2) || '.' || split_part(subject, '.', 3) in ('tool.requested', 'tool.approved') and split_part(subject, '.', 4) <> ''$reads$),
        ('orchestrator',
         array['session.resolved', 'session.closed', 'session.stop_requested', 'tool.requested', 'tool.approved', 'tool.finished'],
         array['turn.finished', 'task.created', 'task.status_changed', 'task.changed', 'task.stalled', 'task.needs_person',
               'message.posted', 'notification.cancelled', 'session.opened', 'session.closed', 'session.reset', 'session.released',
               'session.lease_released', 'queue.changed', 'hold.changed', 'question.opened', 'question.answered',
               'question.withdrawn', 'question.lapsed', 'question.cancelled', 'timer.changed', 'recovery.changed',
               'tool_policy.changed', 'agent.removed', 'message.died'],
         'false')
    ) as services (name, messages, events, reads)
    loop
        execute format($policy$
            alter policy own_%s on public.outbox with check (
                service in (%L, %L) and subject <> '' and not exists (
                    select from string_to_table(outbox.subject, ' ') as subjects (subject) where %s is not true))$policy$,
            one.suffix, one.name, one.name || '.batch', format(publishes, 'subjects.subject', one.events, one.messages));
        execute format('alter policy own_%s on public.dead_letter with check (service = %L and (%s or %s))',
            one.suffix, one.name, one.reads, format(publishes, 'subject', one.events, one.messages));
    end loop;
end $$;

-- == 0038_task_context --------------------------------------------------------

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

-- == 0039_artifacts -----------------------------------------------------------

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

-- == 0040_branches ------------------------------------------------------------

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

-- == 0041_external_calls ------------------------------------------------------

-- External calls: a tool's call of somebody outside of Signalbox is a row from its start on.
alter table tool_call
    -- the replica of the tool-gateway that runs it
    add column runner  uuid,
    -- when it ends without an answer
    add column due_at  timestamptz,
    add column model   text,
    -- what was sent: the context's version, artifacts, the text's hash, the tries
    add column request jsonb,
    -- as the model counted
    add column usage   jsonb;
create index tool_call_running on tool_call (runner) where state = 'running';

-- Running calls of a runner, and those of runners that are gone.
create policy sweep on tool_call for select to signalbox_sweeper using (true);
grant select (account_id, id, runner, state, started_at) on tool_call to signalbox_sweeper;
grant select (id, lease_until) on replica to signalbox_sweeper;
create function tool_call_running(mine uuid, row_limit integer) returns table (account_id text, id uuid, is_orphan boolean)
    language sql stable security definer set search_path = public, pg_temp as $$
    select c.account_id, c.id, c.runner <> mine from public.tool_call c
    where c.state = 'running'
      and (c.runner = mine or not exists (select from public.replica r where r.id = c.runner and r.lease_until > now()))
      and c.started_at < now() - interval '1 second'
    order by c.runner limit row_limit
$$;
alter function tool_call_running(uuid, integer) owner to signalbox_sweeper;
revoke all on function tool_call_running(uuid, integer) from public;
grant execute on function tool_call_running(uuid, integer) to signalbox_tool_gateway;

-- == 0042_replays -------------------------------------------------------------

-- Replays: turns that are run again without effects, each in a session of its own whose tool calls are answered from the record of the
-- source turn.
create table replay (
    account_id      text not null references account,
    id              uuid not null,
    source_turn_id  uuid not null,
    -- whose origin_id it is
    session_id      uuid not null,
    -- what is changed: {provider, profile: {version, role, instructions}} (domain::replay::ReplaySpec)
    spec            jsonb not null,
    created_by_kind text not null,
    created_by_id   text not null,
    created_by_name text not null,
    created_by_via  text,
    created_at      timestamptz not null default now()
);
create index replay_of_turn on replay (account_id, source_turn_id, created_at, id);
-- Of indexes that cost the same, the planner takes the newest.
alter table replay add primary key (account_id, id);
alter table replay enable row level security;
alter table replay force row level security;
create policy tenant on replay
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select, insert on replay to signalbox_orchestrator;
grant select on replay to signalbox_delivery;
-- It is kept as long as its session.
grant select, delete on replay to signalbox_resolver;

-- One more event of delivery, in the place before the last.
do $$
declare
    one record;
begin
    for one in select p.polname, p.polrelid::regclass as relation, pg_get_expr(p.polwithcheck, p.polrelid) as rule
               from pg_policy p
               where p.polrelid in ('public.outbox'::regclass, 'public.dead_letter'::regclass) and p.polname = 'own_delivery'
    loop
        execute format('alter policy %I on %s with check (%s)', one.polname, one.relation,
            replace(one.rule, ',message.died}', ',turn.replayed,message.died}'));
    end loop;
end $$;

-- == 0043_thread_in_one -------------------------------------------------------

-- What a session knows of its threads is one column: each turn reads and writes all of it, and six columns cost both statements of a turn
-- six expressions. {number, live, lost, told, tokens, failures} (storage::session::sessions_lock::SessionThread). The response from which a
-- thread goes on keeps its column (provider_thread): closing a session clears it.
--
-- Services of the version before do not run on this schema: stop them first (docs/runbooks/upgrading.md). If they went on with columns of
-- their own, a turn would begin in a thread that the other version left, without a word.
set local statement_timeout = 0;
alter table session add column thread jsonb not null default '{}';
-- The owner is held to the policies, too, and names no account: without this, no row would be converted.
alter table session no force row level security;
-- Only sessions with a turn since step 0037 have any of it. The moment in `told` is in milliseconds from now on.
update session set thread = jsonb_build_object(
        'number', thread_number, 'live', thread_live, 'lost', threads_lost, 'tokens', tokens_used, 'failures', failures_in_row,
        'told', told || case when told ? 'at' then jsonb_build_object('at', (told ->> 'at')::bigint * 1000) else '{}' end)
    where thread_number > 0 or told <> '{}' or tokens_used > 0 or failures_in_row > 0;
-- Step 0037 meant to, and was held to the policies.
update session set provider_thread = null where closed_at is not null and provider_thread is not null;
alter table session force row level security;
alter table session
    drop column thread_number, drop column thread_live, drop column threads_lost, drop column told, drop column tokens_used,
    drop column failures_in_row;

-- == 0044_members -------------------------------------------------------------

-- Members: the people of an account, their own keys, and the one-time link by which each of them signs in (docs/adr/0079-members.md).
create table member (
    account_id      text not null references account,
    -- never changes, and is never another person's: the rows of removed members stay
    user_id         text not null,
    name            text not null,
    -- in small letters
    email           text,
    role            text not null check (role in ('admin', 'member')),
    time_zone       text not null default 'UTC',
    -- what the person signs in with, in each of their accounts; absent until the first link is used
    login_id        uuid,
    -- the newest sign-in link: making one ends the one before
    link_digest     bytea,
    link_expires_at timestamptz,
    link_used_at    timestamptz,
    created_at      timestamptz not null default now(),
    removed_at      timestamptz,
    check ((link_digest is null) = (link_expires_at is null)),
    check (link_used_at is null or link_digest is not null)
);
alter table member add primary key (account_id, user_id);
-- Of indexes that cost the same, the planner takes the newest: one that few statements can use.
create unique index member_email on member (account_id, email) where email is not null and removed_at is null;
create index member_removed on member (account_id, email, removed_at) where removed_at is not null;
create unique index member_link on member (account_id, link_digest) where link_digest is not null;
create index member_admin on member (account_id) where role = 'admin' and removed_at is null;
alter table member enable row level security;
alter table member force row level security;
create policy tenant on member
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select, insert, update on member to signalbox_orchestrator;
-- Whose key it is, and what the person may do.
grant select (account_id, user_id, name, role, removed_at) on member to signalbox_tool_gateway;

-- A person's own keys.
alter table api_key add column user_id text,
    add foreign key (account_id, user_id) references member,
    add check (user_id is null or role in ('admin', 'member'));
create index api_key_person on api_key (account_id, user_id, created_at, id) where user_id is not null and revoked_at is null;

-- Four more events of the orchestrator, which have no task.
do $$
declare
    one record;
begin
    for one in select p.polname, p.polrelid::regclass as relation, pg_get_expr(p.polwithcheck, p.polrelid) as rule
               from pg_policy p
               where p.polrelid in ('public.outbox'::regclass, 'public.dead_letter'::regclass) and p.polname = 'own_orchestrator'
    loop
        execute format('alter policy %I on %s with check (%s)', one.polname, one.relation,
            replace(one.rule, ',agent.removed,', ',agent.removed,agent.changed,account.changed,key.changed,member.changed,'));
    end loop;
end $$;

-- == 0045_personas ------------------------------------------------------------

-- Personas: files that say how an agent is to be, and their versions, which never change.
create table persona (
    account_id      text not null references account,
    id              uuid not null,
    slug            text not null,
    name            text not null,
    description     text not null,
    icon            text,
    visibility      text not null,
    is_default      boolean not null,
    memory_enabled  boolean not null,
    -- whose work it is for, where nobody names an agent
    agent_id        uuid,
    -- the newest one
    version_id      uuid not null,
    -- an author's id: a member, or a key
    created_by      text not null,
    created_at      timestamptz not null,
    updated_at      timestamptz not null,
    -- sessions keep its versions
    removed_at      timestamptz,
    foreign key (account_id, agent_id) references agent,
    check (visibility in ('private', 'shared')),
    check (visibility = 'shared' or not is_default)
);
alter table persona add primary key (account_id, id);
create unique index persona_slug on persona (account_id, slug) where removed_at is null;
create index persona_removed on persona (account_id, removed_at) where removed_at is not null;
create unique index persona_default on persona (account_id) where is_default and removed_at is null;
create table persona_version (
    account_id      text not null references account,
    id              uuid not null,
    persona_id      uuid not null,
    number          integer not null,
    -- the persona's slug when the version was written: prompts name it
    slug            text not null,
    -- [{filename, sort_order, content}] in their order (domain::persona::PersonaFiles)
    files           jsonb not null,
    hash            bytea not null,
    created_by      text not null,
    created_at      timestamptz not null,
    foreign key (account_id, persona_id) references persona
);
create unique index persona_version_number on persona_version (account_id, persona_id, number);
alter table persona_version add primary key (account_id, id);
create index persona_private on persona (account_id, created_by) where visibility = 'private' and removed_at is null;

do $$
declare
    one text;
begin
    foreach one in array array['persona', 'persona_version'] loop
        execute format('alter table %I enable row level security', one);
        execute format('alter table %I force row level security', one);
        execute format($p$create policy tenant on %I
            using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
            with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)$p$, one);
    end loop;
end $$;
grant select, insert, update, delete on persona to signalbox_orchestrator;
-- Old versions are locked before they are removed.
grant select, insert, delete, update (created_at) on persona_version to signalbox_orchestrator;

-- Chosen when the generation opens, and never changed (storage::session::persona_of!).
alter table session add column persona_version_id uuid, add column persona_why text;
-- No version is removed while a session opens with it. All rows have none, so none is looked at.
alter table session add foreign key (account_id, persona_version_id) references persona_version not valid;
-- The column never changes, so updates of a session stay in place.
create index session_persona on session (account_id, persona_version_id) where persona_version_id is not null;
-- Named by this author, for the generations that open from then on. After `session`, as services take them.
alter table task add column persona_id uuid, add column persona_by text;
-- Whoever opens a session chooses.
grant select (account_id, id, version_id, is_default, visibility, created_by, removed_at) on persona
    to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway;
grant select on persona_version to signalbox_delivery;

-- One more event of the orchestrator.
do $$
declare
    one record;
begin
    for one in select p.polname, p.polrelid::regclass as relation, pg_get_expr(p.polwithcheck, p.polrelid) as rule
               from pg_policy p
               where p.polrelid in ('public.outbox'::regclass, 'public.dead_letter'::regclass) and p.polname = 'own_orchestrator'
    loop
        execute format('alter policy %I on %s with check (%s)', one.polname, one.relation,
            replace(one.rule, ',member.changed,', ',member.changed,persona.changed,'));
    end loop;
end $$;

-- == 0046_orchestrators -------------------------------------------------------

-- Orchestrators: one of each person's own, and one of the account's, each under one name for ever. All of an account run on one agent.
-- That agent is removed from the first, so that nothing that names agents finds it.
alter table agent add column kind text not null default 'worker' check (kind in ('worker', 'orchestrator')),
    add check (kind = 'worker' or removed_at is not null);
create unique index agent_orchestrator on agent (account_id) where kind = 'orchestrator';

-- Of orchestrators; null: the default one.
alter table account add column orchestrator_provider text,
    -- whether admins see what people and their orchestrators say to each other
    add column orchestrators_visible_to_admins boolean not null default true;

create table orchestrator_identity (
    account_id   text not null references account,
    -- null: the account's
    user_id      text,
    owner        text not null generated always as (coalesce(user_id, '')) stored,
    name         text not null,
    handle       text not null,
    avatar       text,
    style        text not null default 'professional' check (style in ('professional', 'casual', 'terse', 'custom')),
    instructions text not null default '',
    -- what colleagues may ask of it
    reachable    text not null default 'off' check (reachable in ('off', 'answer', 'delegate')),
    -- the account's is off until an admin enables it
    enabled      boolean not null default false,
    -- counts what its prompts say of it
    revision     integer not null default 1,
    woken_at     timestamptz,
    foreign key (account_id, user_id) references member
);
create unique index orchestrator_identity_handle on orchestrator_identity (account_id, handle);
alter table orchestrator_identity add primary key (account_id, owner);

-- Members of before have their orchestrators, too, under the names that new members get. The owner is held to the
-- policies, too, and names no account.
alter table member no force row level security;
alter table agent no force row level security;
insert into agent (account_id, id, slug, name, role, provider, removed_at, kind)
select a.account_id, a.id, a.id::text, 'Orchestrator', '', 'default', now(), 'orchestrator'
from (select account_id, gen_random_uuid() as id from member where removed_at is null and account_id <> 'org' group by account_id) a;
insert into orchestrator_identity (account_id, user_id, name, handle)
select m.account_id, m.user_id, 'Agent',
       case when m.place > 1 or exists (select from agent a where a.account_id = m.account_id and a.slug = m.handle and a.removed_at is null)
           then gen_random_uuid()::text else m.handle end
from (select account_id, user_id, handle, row_number() over (partition by account_id, handle order by user_id) as place
      from (select account_id, user_id, left(translate(user_id, '_.', '--'), 63) as handle from member
            where removed_at is null and account_id <> 'org') h) m;
alter table member force row level security;
alter table agent force row level security;

alter table orchestrator_identity enable row level security;
alter table orchestrator_identity force row level security;
create policy tenant on orchestrator_identity
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
grant select, insert, update, delete on orchestrator_identity to signalbox_orchestrator;
-- Whether it is there, and for whom: held while its session opens.
grant select (account_id, user_id, removed_at), update (created_at) on member to signalbox_resolver;
grant select (account_id, owner, enabled) on orchestrator_identity to signalbox_resolver;
-- What its prompts say.
grant select (account_id, owner, user_id, name, handle, style, instructions, revision) on orchestrator_identity to signalbox_delivery;
grant select (account_id, user_id, name) on member to signalbox_delivery;

-- Whose orchestrator's a turn and an item are, for the service that shows them to people: it declares the person whose own it shows, or
-- everybody (`*`), for an admin and for sweeps.
alter table turn add column user_id text;
alter table notification add column user_id text;
alter table dead_letter add column for_user text;
create policy own_person on dead_letter as restrictive to signalbox_orchestrator
    using (for_user is null or (select current_setting('signalbox.person', true)) in (for_user, '*'))
    with check (true);
-- Of an orchestrator's: `user:{user id}` or `account`, as it is set or asked. Whom it asks sees what it asks.
alter table question add column orchestrator text;
alter table timer add column orchestrator text;
do $$
declare
    one text;
begin
    foreach one in array array['question', 'timer'] loop
        execute format($p$create policy own_person on %I as restrictive to signalbox_orchestrator
            using (orchestrator is null or orchestrator = 'account'
                   or (select current_setting('signalbox.person', true)) in (substr(orchestrator, 6), '*')%s)
            with check (true)$p$, one, case one when 'question' then
            $p$ or 'role:admin' = any (audience) or 'user:' || (select current_setting('signalbox.person', true)) = any (audience)$p$ end);
    end loop;
end $$;
-- What is open of an orchestrator ends with its person.
create index question_of_orchestrator on question (account_id, orchestrator) where state = 'open' and orchestrator is not null;
create index timer_of_orchestrator on timer (account_id, orchestrator) where state = 'waiting' and orchestrator is not null;
-- Whose session a hold is on. It is shown as that is: the count of an account's holds counts all, and so no policy hides any.
alter table hold add column user_id text;
do $$
declare
    one text;
begin
    foreach one in array array['session', 'turn', 'notification'] loop
        execute format($p$create policy own_person on %I as restrictive to signalbox_orchestrator
            using (user_id is null or (select current_setting('signalbox.person', true)) in (user_id, '*'))
            with check (true)$p$, one);
    end loop;
end $$;

-- A task on an orchestrator's board: a person's (`user:{user id}`) or the account's (`account`). Whose a session is follows from its task.
alter table task add column board text,
    -- who named its persona: a person, unless it is inferred
    add column persona_from text check (persona_from in ('user', 'inferred'));
-- The agent of work for which none is named.
alter table account add column default_agent uuid;
grant insert on task, task_assignee to signalbox_tool_gateway;
grant update (board, persona_id, persona_by, persona_from) on task to signalbox_tool_gateway;
grant select (name, description, slug, agent_id, is_default) on persona to signalbox_tool_gateway;
grant select (account_id, id, slug, number) on persona_version to signalbox_tool_gateway;

-- One more event of the orchestrator, and one of the tool-gateway, whose tools make tasks.
do $$
declare
    one record;
begin
    for one in select p.polname, p.polrelid::regclass as relation, pg_get_expr(p.polwithcheck, p.polrelid) as rule
               from pg_policy p
               where p.polrelid in ('public.outbox'::regclass, 'public.dead_letter'::regclass)
                 and p.polname in ('own_orchestrator', 'own_tool_gateway')
    loop
        execute format('alter policy %I on %s with check (%s)', one.polname, one.relation, case one.polname
            when 'own_orchestrator' then replace(one.rule, ',persona.changed,', ',persona.changed,identity.changed,')
            else replace(one.rule, '{task.status_changed,', '{task.created,task.status_changed,') end);
    end loop;
end $$;

-- == 0047_orchestrator_lists --------------------------------------------------

-- The lists of orchestrators' turns and boards, apart from the columns: while an index is built, its table is read.
-- The column never changes, so updates of a turn stay in place.
create index turn_of_person on turn (account_id, user_id, started_at, id) where user_id is not null;
-- What a session has made. Neither does this one change.
create index session_of_parent on session (account_id, parent_session_id, opened_at, id) where parent_session_id is not null;

-- == 0048_mail ----------------------------------------------------------------

-- Mail between people, orchestrators and sessions.
create table mail (
    account_id      text not null references account,
    id              uuid not null,
    -- who wrote it: one of three. A session is named by its conversation: the key of its first generation
    from_user       text,
    from_session    text,
    from_service    text,
    -- of whichever it is: what the sender's rate is counted by
    sender          text not null generated always as (coalesce('user:' || from_user, from_session, 'service:' || from_service)) stored,
    from_name       text not null,
    -- whom it is for: one of two
    to_user         text,
    to_session      text,
    -- as it was written
    to_address      text not null,
    content         text not null,
    -- message, notification, question or escalation
    message_type    text not null,
    -- addressed, child_status, forwarded, answer, bounce, question or escalation
    why             text not null,
    context_task_id text,
    -- the sender's conversation; of a reply, that of what it answers
    context_session text,
    context_ref     text,
    reply_to        uuid,
    -- the first mail of its thread
    thread_id       uuid not null,
    question_id     uuid,
    -- the turn that wrote it
    turn_id         uuid,
    created_at      timestamptz not null,
    -- when an inbox shows it
    surface_at      timestamptz not null,
    read_at         timestamptz,
    archived_at     timestamptz,
    -- the outcome of mail to a session, from its item: taken by a turn, or bounced
    in_turn_id      uuid,
    in_turn_number  bigint,
    outcome         text,
    reason          text,
    settled_at      timestamptz,
    check (num_nonnulls(from_user, from_session, from_service) = 1),
    check (num_nonnulls(to_user, to_session) = 1),
    check (outcome in ('in_turn', 'read', 'bounced'))
);
create index mail_shown on mail (account_id, to_user, surface_at, id) where to_user is not null and archived_at is null;
create index mail_unread on mail (account_id, to_user, surface_at) where to_user is not null and archived_at is null and read_at is null;
create index mail_archived on mail (account_id, to_user, archived_at, id) where to_user is not null and archived_at is not null;
-- Whether it was answered: what goes back is no answer.
create index mail_answer on mail (account_id, reply_to, created_at) where reply_to is not null and why <> 'bounce';
create index mail_question on mail (account_id, question_id) where question_id is not null;
create index mail_of_session on mail (account_id, to_session, created_at, id) where to_session is not null;
create index mail_unsettled on mail (account_id, id) where to_session is not null and settled_at is null;
create index mail_over on mail (account_id, settled_at) where settled_at is not null;
create index mail_sent on mail (account_id, sender, created_at);
-- Last: of indexes that cost the same, as those of an empty table do, Postgres takes the newest.
alter table mail add primary key (account_id, id);

-- Agents are offered mail once there are members.
alter table account add column mail_enabled boolean not null default false;
alter table member no force row level security;
alter table account no force row level security;
update account a set mail_enabled = true where exists (select from member m where m.account_id = a.id);
alter table member force row level security;
alter table account force row level security;
-- By any version of the orchestrator.
create function member_enables_mail() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
    update account set mail_enabled = true where id = new.account_id and not mail_enabled;
    return null;
end $$;
revoke all on function member_enables_mail() from public;
create trigger member_enables_mail after insert on member for each row execute function member_enables_mail();

create table notification_preference (
    account_id   text not null references account,
    user_id      text not null,
    message_type text not null,
    slack        boolean not null,
    email        boolean not null,
    digest       text not null check (digest in ('none', 'hourly', 'daily')),
    -- of the person's day
    digest_hour  smallint check (digest_hour between 0 and 23),
    foreign key (account_id, user_id) references member
);
alter table notification_preference add primary key (account_id, user_id, message_type);

do $$
declare
    one text;
begin
    foreach one in array array['mail', 'notification_preference'] loop
        execute format('alter table %I enable row level security', one);
        execute format('alter table %I force row level security', one);
        execute format($p$create policy tenant on %I
            using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
            with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)$p$, one);
    end loop;
end $$;
grant select, insert, update (surface_at, read_at, archived_at, outcome, reason, in_turn_id, in_turn_number, settled_at) on mail
    to signalbox_orchestrator;
-- What its prompts say of it.
grant select (account_id, id, from_user, from_session, to_session, message_type, context_task_id) on mail to signalbox_delivery;
-- With a turn ends what its calls were asked about; and it tells of work that has failed, in no name but Signalbox's.
grant select (ctid, question_id, to_user, read_at, archived_at, surface_at), insert, update (read_at, reason) on mail to signalbox_delivery;
create policy of_services on mail as restrictive for insert to signalbox_delivery with check (from_service is not null);
grant select (role, removed_at), update (created_at) on member to signalbox_delivery;
grant select (enabled) on orchestrator_identity to signalbox_delivery;
grant select, insert, update on notification_preference to signalbox_orchestrator;
create policy own_person on notification_preference as restrictive to signalbox_orchestrator
    using ((select current_setting('signalbox.person', true)) in (user_id, '*')) with check (true);
-- Its tools write mail, read whom it is for, and hold the person.
grant select, insert, update (surface_at, read_at, reason) on mail to signalbox_tool_gateway;
-- What people write to each other is not for it, nor does it write in a person's name.
create policy of_sessions on mail as restrictive to signalbox_tool_gateway
    using (from_user is null or to_session is not null) with check (from_user is null);
grant select (account_id, owner, user_id, name, handle, enabled) on orchestrator_identity to signalbox_tool_gateway;
grant update (created_at) on member to signalbox_tool_gateway;
-- A turn that waits for its tools takes mail from its queue.
grant update (notification_ids, hops) on turn to signalbox_tool_gateway;

-- A share of every account's mail to sessions that is not settled, by id; found is what has ended.
grant select (account_id, id, to_session, settled_at) on mail to signalbox_sweeper;
create policy sweep on mail for select to signalbox_sweeper using (true);
create function mail_unsettled(after_account text, accounts text[], places text[], accounts_max integer, share integer)
    returns table (account_id text, place text, is_last boolean, found text)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive asked (account_id, number) as (
        (select m.account_id, 1 from public.mail m
         where m.to_session is not null and m.settled_at is null and m.account_id > after_account
         order by m.account_id, m.id limit 1)
        union all
        select f.account_id, s.number + 1
        from asked s
        cross join lateral (
            select m.account_id from public.mail m
            where m.to_session is not null and m.settled_at is null and m.account_id > s.account_id
            order by m.account_id, m.id limit 1) f
        where s.number < accounts_max
    )
    select s.account_id, m.id::text, m.number = share, case when n.has_ended then m.id::text end
    from asked s
    left join unnest(accounts, places) as c (account_id, place) on c.account_id = s.account_id
    cross join lateral (
        select f.id, row_number() over (order by f.id) as number from (
            select m.id from public.mail m
            where m.to_session is not null and m.settled_at is null and m.account_id = s.account_id
              and m.id > coalesce(c.place::uuid, '00000000-0000-0000-0000-000000000000')
            order by m.account_id, m.id limit share) f) m
    cross join lateral (
        select coalesce((
            select n.state in ('delivered', 'failed', 'refused', 'cancelled') from public.notification n
            where n.account_id = s.account_id and n.id = 'mail:' || m.id offset 0), false) as has_ended) n
    order by s.account_id, m.id
$$;
alter function mail_unsettled(text, text[], text[], integer, integer) owner to signalbox_sweeper;
revoke all on function mail_unsettled(text, text[], text[], integer, integer) from public;
grant execute on function mail_unsettled(text, text[], text[], integer, integer) to signalbox_orchestrator;

-- Two more events of the orchestrator, and one of the tool-gateway and of delivery.
do $$
declare
    one record;
begin
    for one in select p.polname, p.polrelid::regclass as relation, pg_get_expr(p.polwithcheck, p.polrelid) as rule
               from pg_policy p
               where p.polrelid in ('public.outbox'::regclass, 'public.dead_letter'::regclass)
                 and p.polname in ('own_orchestrator', 'own_tool_gateway', 'own_delivery')
    loop
        execute format('alter policy %I on %s with check (%s)', one.polname, one.relation, case one.polname
            when 'own_orchestrator' then replace(one.rule, ',identity.changed,', ',identity.changed,mail.changed,preference.changed,')
            when 'own_delivery' then replace(one.rule, ',turn.replayed,', ',turn.replayed,mail.changed,')
            else replace(one.rule, '{task.created,', '{task.created,mail.changed,') end);
    end loop;
end $$;

-- == 0049_board ---------------------------------------------------------------

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

-- == 0050_memory --------------------------------------------------------------

-- What orchestrators remember, of a person or of the account; it fades.
create table memory (
    account_id   text not null references account,
    id           uuid not null,
    -- `account`, or `user:{user id}`
    owner        text not null,
    -- empty: what an orchestrator remembers; else, what sessions with this repository do
    repository   text not null default '',
    -- of one owner and repository, memories are few: domain::decay
    key          text not null,
    category     text not null,
    content      text not null,
    -- of the moment when it was touched
    relevance    double precision not null check (relevance between 0 and 1),
    touched_at   timestamptz not null,
    -- follows from both (domain::Relevance): the less relevant of two fades earlier
    fades_at     timestamptz not null,
    access_count integer not null default 0,
    -- which wrote it
    session_id   uuid,
    created_at   timestamptz not null
);
create index memory_faded on memory (account_id, fades_at);
alter table memory add primary key (account_id, id);
create unique index memory_key on memory (account_id, owner, repository, key);

alter table memory enable row level security;
alter table memory force row level security;
create policy tenant on memory
    using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
    with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null);
-- A person's own, for the service that shows it to people; everybody's (`*`) for the sweep. The tool-gateway's tools name the owner.
create policy own_person on memory as restrictive to signalbox_orchestrator
    using (owner = 'account' or (select current_setting('signalbox.person', true)) in (substr(owner, 6), '*'))
    with check (owner = 'account' or (select current_setting('signalbox.person', true)) = substr(owner, 6));
grant select, insert, delete, update (category, content, relevance, touched_at, fades_at, access_count, session_id) on memory
    to signalbox_orchestrator, signalbox_tool_gateway;

-- One more event of the orchestrator and the tool-gateway.
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
                       replace(one.rule, 'mail.changed,', 'mail.changed,memory.changed,'));
    end loop;
end $$;

-- == 0051_guests --------------------------------------------------------------

-- Guests: a person's orchestrator answers another person in a session of that person's own.
-- Whom such a session answers; `user_id` is whose it is.
alter table session drop constraint session_kind_check;
alter table session
    add constraint session_kind_check check (kind in ('task', 'system', 'orchestrator', 'guest', 'branch', 'replay')) not valid,
    add column guest_user_id text,
    add check ((kind = 'guest') = (guest_user_id is not null)) not valid;
-- The newest generation of each.
create index session_of_guest on session (account_id, user_id, guest_user_id, generation) where kind = 'guest';
-- Which close when the guest is removed.
create index session_guest on session (account_id, guest_user_id) where closed_at is null and kind = 'guest';
-- Younger than the two: of equal costs, Postgres takes the youngest.
create unique index session_active_guest on session (account_id, user_id, guest_user_id) where closed_at is null and kind = 'guest';
-- S1 again, with guests. The column stands last: the statements that find the newest generation of another conversation order by those
-- before it.
drop index session_generation;
create unique index session_generation on session (account_id, kind, task_id, agent_id, user_id, generation, origin_id, guest_user_id)
    nulls not distinct;
-- The primary key and this index are the youngest of their table again (0037).
alter table tool_call drop constraint tool_call_account_id_session_id_fkey;
alter table session drop constraint session_pkey, add primary key (account_id, id);
drop index session_gated;
create index session_gated on session (gate_ref, account_id, id) where gate_ref is not null;
alter table tool_call
    add constraint tool_call_account_id_session_id_fkey foreign key (account_id, session_id) references session not valid;

-- Whether others may ask: held while a session opens for them, and read at each turn and call.
grant select (reachable) on orchestrator_identity to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway;

-- == 0052_sign_in -------------------------------------------------------------

-- What people sign in with. A login is an id that members name; it holds no personal data, and so none of these tables has an account:
-- only the orchestrator may read them.

-- With which provider's subject a login signs in.
create table login_identity (
    issuer     text not null,
    subject    text not null,
    login_id   uuid not null,
    created_at timestamptz not null default now()
);
alter table login_identity add primary key (issuer, subject);

-- A browser that is signed in. Its cookie is kept as a digest.
create table login_session (
    digest      bytea not null,
    -- names it to its person
    id          uuid not null,
    login_id    uuid not null,
    -- link, key, or oidc: and the provider's name
    method      text not null,
    -- the key that opened it: it reaches no further than that key, and no longer
    key_account text,
    key_id      text,
    created_at  timestamptz not null default now(),
    seen_at     timestamptz not null default now(),
    expires_at  timestamptz not null,
    -- earlier, if it is not used
    ends_at     timestamptz not null,
    check ((key_account is null) = (key_id is null))
);
create index login_session_ended on login_session (ends_at);
create index login_session_login on login_session (login_id, seen_at);
alter table login_session add primary key (digest);

-- What a browser takes to a provider and brings back, once.
create table sign_in_token (
    digest     bytea not null,
    -- oidc
    purpose    text not null,
    payload    jsonb not null,
    expires_at timestamptz not null,
    used_at    timestamptz
);
create index sign_in_token_over on sign_in_token (expires_at);
alter table sign_in_token add primary key (digest);

grant select, insert, delete on login_identity to signalbox_orchestrator;
grant select, insert, delete, update (seen_at, ends_at) on login_session to signalbox_orchestrator;
grant select, insert, delete, update (used_at) on sign_in_token to signalbox_orchestrator;

-- Whose a login is, and who has an e-mail address, in all accounts: ids only. Across accounts, so the login or the address comes first.
create index member_login on member (login_id, account_id, user_id) where login_id is not null and removed_at is null;
create index member_address on member (email, account_id, user_id) where email is not null and login_id is null and removed_at is null;
grant select (account_id, user_id, login_id, email, removed_at) on member to signalbox_sweeper;
create policy sweep on member for select to signalbox_sweeper using (true);
create function login_accounts(login uuid, row_limit integer) returns table (account_id text, user_id text)
    language sql stable security definer set search_path = public, pg_temp as $$
    select m.account_id, m.user_id from public.member m
    where m.login_id = login_accounts.login and m.removed_at is null
    order by m.account_id, m.user_id limit row_limit
$$;
-- Those who have never signed in.
create function member_by_email(address text, row_limit integer) returns table (account_id text, user_id text)
    language sql stable security definer set search_path = public, pg_temp as $$
    select m.account_id, m.user_id from public.member m
    where m.email = member_by_email.address and m.email > '' and m.login_id is null and m.removed_at is null
    order by m.account_id, m.user_id limit row_limit
$$;
alter function login_accounts(uuid, integer) owner to signalbox_sweeper;
alter function member_by_email(text, integer) owner to signalbox_sweeper;
revoke all on function login_accounts(uuid, integer), member_by_email(text, integer) from public;
grant execute on function login_accounts(uuid, integer), member_by_email(text, integer) to signalbox_orchestrator;

-- The routing log reads all of an account's mail in the order in which it came. Every row has its condition, and no other statement does:
-- of indexes that cost the same, the planner takes the newest.
create index mail_newest on mail (account_id, created_at, id) where created_at > '-infinity';

-- == 0053_event_consumers -----------------------------------------------------

-- The event consumers of an account on the broker, by name: who connects with a key of the account may read from these.
alter table account add column event_consumers text[] not null default '{}' check (cardinality(event_consumers) <= 8);

-- == 0054_outbound ------------------------------------------------------------

-- What people are told outside of Signalbox, by e-mail (docs/adr/0085-e-mail.md).

-- The ways that an orchestrator can use now, as it has been started. A tenant has no part in it.
create table outbound_way (
    way                 text not null,
    -- deliveries of one account that wait; of more, each ends at once
    pending_account_max bigint not null
);
alter table outbound_way add primary key (way);
grant select, insert, update, delete on outbound_way to signalbox_orchestrator;
grant select on outbound_way to signalbox_sweeper;

create table outbound_delivery (
    -- '-': a sign-in link, which may be for several accounts
    account_id     text not null,
    -- follows from what and how: twice is once
    id             uuid not null,
    -- email
    kind           text not null,
    -- the member; of a sign-in link, the e-mail address
    destination_id text not null,
    -- of the mail: message, notification, question, escalation; or sign_in
    type           text not null,
    -- the mail
    about_id       uuid,
    state          text not null check (state in ('held', 'waiting', 'sending', 'sent', 'superseded', 'dead')),
    attempts       integer not null default 0,
    -- when it is due: to be sent, to be joined to a digest, or, while it is being sent, when its lease expires
    next_at        timestamptz,
    lease_owner    uuid,
    -- why it was not sent, or not yet
    reason         text,
    -- the way that the person wishes and that cannot be used
    instead_of     text,
    -- the delivery that brings it with others
    digest_id      uuid,
    created_at     timestamptz not null default now(),
    ended_at       timestamptz,
    kept_until     timestamptz,
    check ((ended_at is null) = (state in ('held', 'waiting', 'sending'))),
    check ((ended_at is null) = (kept_until is null))
);
alter table outbound_delivery add primary key (account_id, id);
-- Across accounts: every due row has its condition, and no statement of an account does, which would read others' rows by it.
create index outbound_delivery_due on outbound_delivery (next_at) where next_at > '-infinity';
create index outbound_delivery_pending on outbound_delivery (account_id, next_at) where next_at is not null;
create index outbound_delivery_held on outbound_delivery (account_id, next_at) where state = 'held' and next_at > '-infinity';
create index outbound_delivery_held_of on outbound_delivery (account_id, destination_id, next_at, id) where state = 'held' and next_at is not null;
create index outbound_delivery_digest on outbound_delivery (account_id, digest_id) where digest_id is not null;
create index outbound_delivery_urgent on outbound_delivery (account_id, next_at) where state <> 'held' and next_at is not null;
create index outbound_delivery_about on outbound_delivery (account_id, about_id) where about_id is not null;
create index outbound_delivery_sign_in on outbound_delivery (account_id, destination_id, created_at) where type = 'sign_in';
create index outbound_delivery_over on outbound_delivery (account_id, kept_until) where kept_until is not null;

create table outbound_attempt (
    account_id  text not null,
    delivery_id uuid not null,
    number      integer not null,
    at          timestamptz not null,
    ms          integer not null,
    -- the server's code, if it answered
    status      smallint,
    -- accepted, refused, busy, unreachable, timeout or login
    class       text not null,
    foreign key (account_id, delivery_id) references outbound_delivery on delete cascade
);
alter table outbound_attempt add primary key (account_id, delivery_id, number);

do $$
declare
    one text;
begin
    foreach one in array array['outbound_delivery', 'outbound_attempt'] loop
        execute format('alter table %I enable row level security', one);
        execute format('alter table %I force row level security', one);
        execute format($p$create policy tenant on %I
            using (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)
            with check (array_position((select string_to_array(current_setting('signalbox.accounts', true), ',')), account_id) is not null)$p$, one);
    end loop;
end $$;
grant select, insert, update (state, attempts, next_at, lease_owner, reason, digest_id, ended_at, kept_until), delete on outbound_delivery
    to signalbox_orchestrator;
grant select, insert on outbound_attempt to signalbox_orchestrator;

-- When a digest of this person is due next, after this moment. The server knows the time zones, and so a person's hours. An hour that a
-- change of the clock leaves out is the one after it; of an hour that comes twice, the second one.
create function digest_at(moment timestamptz, digest text, hour integer, zone text) returns timestamptz
    language sql stable set search_path = public, pg_temp as $$
    select case when digest = 'hourly' then date_trunc('hour', moment, zone) + interval '1 hour' else (
        select min(d.at)
        from generate_series(0, 2) n (day)
        cross join lateral (
            select (date_trunc('day', moment at time zone zone) + n.day * interval '1 day' + hour * interval '1 hour') at time zone zone as at) d
        where d.at > moment) end
$$;
revoke all on function digest_at(timestamptz, text, integer, text) from public;
grant execute on function digest_at(timestamptz, text, integer, text) to signalbox_sweeper;

-- Writes the delivery of mail to a person, as the person wishes; nothing, if no e-mail is sent here, the person has no address, or does
-- not wish it. Whoever writes mail may read neither the person's address nor their preferences. The account is the transaction's own:
-- the policy of outbound_delivery says so. A question comes by e-mail to whoever wishes it by Slack, since Slack cannot be used.
grant select (to_user, message_type) on mail to signalbox_sweeper;
grant select (time_zone) on member to signalbox_sweeper;
grant select on notification_preference to signalbox_sweeper;
create policy sweep on notification_preference for select to signalbox_sweeper using (true);
grant select (account_id, id, next_at, state, destination_id), insert (account_id, id, kind, destination_id, type, about_id, state, next_at, reason, instead_of, ended_at, kept_until)
    on outbound_delivery to signalbox_sweeper;
create policy sweep on outbound_delivery for select to signalbox_sweeper using (true);
create function mail_announce(of_account text, of_mail uuid, delivery uuid) returns void
    language sql volatile security definer set search_path = public, pg_temp as $$
    insert into public.outbound_delivery (account_id, id, kind, destination_id, type, about_id, state, next_at, reason, instead_of, ended_at, kept_until)
    select m.account_id, delivery, 'email', m.to_user, m.message_type, m.id, s.state,
           case s.state when 'waiting' then now() when 'held' then public.digest_at(now(), c.digest, c.digest_hour, p.time_zone) end,
           case when s.state = 'dead' then 'too many e-mails of the account wait' end,
           case when not coalesce(c.email, m.message_type = 'escalation') then 'slack' end,
           case when s.state = 'dead' then now() end, case when s.state = 'dead' then now() + interval '90 days' end
    from (select w.pending_account_max from public.outbound_way w where w.way = 'email') w
    cross join lateral (
        select m.account_id, m.id, m.to_user, m.message_type from public.mail m
        where m.account_id = of_account and m.id = of_mail offset 0) m
    cross join lateral (
        select p.email, p.time_zone, p.removed_at from public.member p where p.account_id = m.account_id and p.user_id = m.to_user offset 0) p
    left join lateral (
        select c.* from public.notification_preference c
        where c.account_id = m.account_id and c.user_id = m.to_user and c.message_type = m.message_type offset 0) c on true
    cross join lateral (
        -- What waits for digests takes no room from what is sent at once; of a person's digest, so much waits as an inbox has.
        select case when coalesce(c.digest, 'none') = 'none' then case when (
                              select count(*) from (
                                  select d.next_at from public.outbound_delivery d
                                  where d.account_id = m.account_id and d.state <> 'held' and d.next_at is not null
                                  order by d.next_at limit w.pending_account_max) d) >= w.pending_account_max then 'dead' else 'waiting' end
                    when (select count(*) from (
                              select d.next_at from public.outbound_delivery d
                              where d.account_id = m.account_id and d.destination_id = m.to_user and d.state = 'held' and d.next_at is not null
                              order by d.next_at limit 10000) d) >= 10000 then 'dead'
                    else 'held' end as state) s
    where p.email is not null and p.removed_at is null
      and (coalesce(c.email, m.message_type = 'escalation') or m.message_type = 'question' and coalesce(c.slack, true))
    on conflict do nothing
$$;
alter function mail_announce(text, uuid, uuid) owner to signalbox_sweeper;
revoke all on function mail_announce(text, uuid, uuid) from public;
grant execute on function mail_announce(text, uuid, uuid) to signalbox_orchestrator, signalbox_tool_gateway, signalbox_delivery;

-- The accounts that have due deliveries, as timer_due has them: '-' for sign-in links.
create function outbound_due(after_account text, row_limit integer) returns table (account_id text, is_due boolean, is_walked boolean)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive oldest as materialized (
        select d.account_id from public.outbound_delivery d where d.next_at > '-infinity' and d.next_at <= now() order by d.next_at limit row_limit
    ), walk (account_id, number) as (
        select (select d.account_id from public.outbound_delivery d where d.next_at is not null and d.account_id > after_account
                order by d.account_id limit 1), 1
        where (select count(*) from oldest) >= row_limit
        union all
        select (select d.account_id from public.outbound_delivery d where d.next_at is not null and d.account_id > w.account_id
                order by d.account_id limit 1), w.number + 1
        from walk w where w.account_id is not null and w.number < row_limit
    )
    select o.account_id, true, false from (select distinct o.account_id from oldest o) o
    union all
    select w.account_id,
           (select min(d.next_at) from public.outbound_delivery d where d.account_id = w.account_id and d.next_at is not null) <= now(), true
    from walk w where w.account_id is not null
    order by 3, 1
$$;
alter function outbound_due(text, integer) owner to signalbox_sweeper;
revoke all on function outbound_due(text, integer) from public;
grant execute on function outbound_due(text, integer) to signalbox_orchestrator;

-- When the delivery was due that is due first.
create function outbound_first() returns table (due_at timestamptz)
    language sql stable security definer set search_path = public, pg_temp as $$
    select d.next_at from public.outbound_delivery d where d.next_at > '-infinity' order by d.next_at limit 1
$$;
alter function outbound_first() owner to signalbox_sweeper;
revoke all on function outbound_first() from public;
grant execute on function outbound_first() to signalbox_orchestrator;

-- A sign-in link is mailed to whoever has never signed in, and else to an address that has proven to be the person's: they came in by a link
-- that was mailed to it, or by a provider that vouches for it. An address is an admin's choice, who would come in as that person, in all of the
-- person's accounts.
alter table member
    add column address_proven boolean not null default false,
    -- Of the present link: it was mailed; and it takes the member out of their login.
    add column link_mailed boolean not null default false,
    add column link_rebinds boolean not null default false;
grant select (address_proven) on member to signalbox_sweeper;
-- Also of those who have signed in.
drop index member_address;
create index member_address on member (email, account_id, user_id) where email > '' and removed_at is null;
create function member_mailed(address text, row_limit integer) returns table (account_id text, user_id text)
    language sql stable security definer set search_path = public, pg_temp as $$
    select m.account_id, m.user_id from public.member m
    where m.email = member_mailed.address and m.email > '' and m.removed_at is null and (m.login_id is null or m.address_proven)
    order by m.account_id, m.user_id limit row_limit
$$;
alter function member_mailed(text, integer) owner to signalbox_sweeper;
revoke all on function member_mailed(text, integer) from public;
grant execute on function member_mailed(text, integer) to signalbox_orchestrator;

-- == 0055_mail_kept -----------------------------------------------------------

-- The account's orchestrator looks up which person has an address.
grant select (email) on member to signalbox_tool_gateway;

-- Mail is removed some time after it is over: mail to a session after its outcome, mail to a person after it was archived.
drop index mail_over;
create index mail_over on mail (account_id, (case when to_session is null then archived_at else settled_at end))
    where case when to_session is null then archived_at else settled_at end is not null;
grant delete on mail to signalbox_orchestrator;

-- When the item of mail that bounced was sent again: what its item was before is not its end.
alter table mail add column again_at timestamptz;
grant update (again_at) on mail to signalbox_orchestrator;

-- New mail in a thread brings what was put off back: a thread may be long, and little of it is ever put off.
create index mail_put_off on mail (account_id, thread_id, created_at) where surface_at <> created_at;
create index mail_put_off_for on mail (account_id, context_task_id) where surface_at <> created_at and to_user is not null;
-- The end of a task brings back what its people have put off about it. Whoever ends the task may not read what people write to each other.
-- The account is the transaction's own: the policy of mail says so.
grant select (to_user, context_task_id, archived_at, surface_at, created_at), update (surface_at) on mail to signalbox_sweeper;
create function mail_back(of_account text, of_task text) returns void
    language sql volatile security definer set search_path = public, pg_temp as $$
    update public.mail m set surface_at = now()
    where m.account_id = of_account and m.context_task_id = of_task and m.surface_at <> m.created_at and m.to_user is not null
      and m.archived_at is null and m.surface_at > now()
$$;
alter function mail_back(text, text) owner to signalbox_sweeper;
revoke all on function mail_back(text, text) from public;
grant execute on function mail_back(text, text) to signalbox_orchestrator, signalbox_tool_gateway;
