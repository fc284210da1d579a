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
