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
