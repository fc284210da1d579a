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
