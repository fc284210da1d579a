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
