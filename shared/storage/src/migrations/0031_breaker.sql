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
