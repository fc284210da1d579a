-- What people sign in with. A login is an id that members name; it holds no personal data, and so none of these tables has an account:
-- only the orchestrator may read them.

-- With which provider's subject a login signs in.
create table login_identity (
    issuer     text not null,
    subject    text not null,
    login_id   uuid not null,
    created_at timestamptz not null default now()
);
alter table login_identity add primary key (issuer, subject);

-- A browser that is signed in. Its cookie is kept as a digest.
create table login_session (
    digest      bytea not null,
    -- names it to its person
    id          uuid not null,
    login_id    uuid not null,
    -- link, key, or oidc: and the provider's name
    method      text not null,
    -- the key that opened it: it reaches no further than that key, and no longer
    key_account text,
    key_id      text,
    created_at  timestamptz not null default now(),
    seen_at     timestamptz not null default now(),
    expires_at  timestamptz not null,
    -- earlier, if it is not used
    ends_at     timestamptz not null,
    check ((key_account is null) = (key_id is null))
);
create index login_session_ended on login_session (ends_at);
create index login_session_login on login_session (login_id, seen_at);
alter table login_session add primary key (digest);

-- What a browser takes to a provider and brings back, once.
create table sign_in_token (
    digest     bytea not null,
    -- oidc
    purpose    text not null,
    payload    jsonb not null,
    expires_at timestamptz not null,
    used_at    timestamptz
);
create index sign_in_token_over on sign_in_token (expires_at);
alter table sign_in_token add primary key (digest);

grant select, insert, delete on login_identity to signalbox_orchestrator;
grant select, insert, delete, update (seen_at, ends_at) on login_session to signalbox_orchestrator;
grant select, insert, delete, update (used_at) on sign_in_token to signalbox_orchestrator;

-- Whose a login is, and who has an e-mail address, in all accounts: ids only. Across accounts, so the login or the address comes first.
create index member_login on member (login_id, account_id, user_id) where login_id is not null and removed_at is null;
create index member_address on member (email, account_id, user_id) where email is not null and login_id is null and removed_at is null;
grant select (account_id, user_id, login_id, email, removed_at) on member to signalbox_sweeper;
create policy sweep on member for select to signalbox_sweeper using (true);
create function login_accounts(login uuid, row_limit integer) returns table (account_id text, user_id text)
    language sql stable security definer set search_path = public, pg_temp as $$
    select m.account_id, m.user_id from public.member m
    where m.login_id = login_accounts.login and m.removed_at is null
    order by m.account_id, m.user_id limit row_limit
$$;
-- Those who have never signed in.
create function member_by_email(address text, row_limit integer) returns table (account_id text, user_id text)
    language sql stable security definer set search_path = public, pg_temp as $$
    select m.account_id, m.user_id from public.member m
    where m.email = member_by_email.address and m.email > '' and m.login_id is null and m.removed_at is null
    order by m.account_id, m.user_id limit row_limit
$$;
alter function login_accounts(uuid, integer) owner to signalbox_sweeper;
alter function member_by_email(text, integer) owner to signalbox_sweeper;
revoke all on function login_accounts(uuid, integer), member_by_email(text, integer) from public;
grant execute on function login_accounts(uuid, integer), member_by_email(text, integer) to signalbox_orchestrator;

-- The routing log reads all of an account's mail in the order in which it came. Every row has its condition, and no other statement does:
-- of indexes that cost the same, the planner takes the newest.
create index mail_newest on mail (account_id, created_at, id) where created_at > '-infinity';
