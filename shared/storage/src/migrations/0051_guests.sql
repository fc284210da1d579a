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
