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
