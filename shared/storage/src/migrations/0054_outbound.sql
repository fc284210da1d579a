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
