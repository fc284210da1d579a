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
