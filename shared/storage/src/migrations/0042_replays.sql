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
