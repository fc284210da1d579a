-- A role for whoever publishes and needs nothing else: a CI, a webhook. What became of a notification it may read where it
-- was the one that published it.
alter table api_key drop constraint api_key_role_check;
alter table api_key add constraint api_key_role_check
    check (role in ('admin', 'member', 'service', 'publisher', 'gateway'));
alter table accepted_notification add column published_by text;

-- An Idempotency-Key is whoever's who chose it: two keys of an account may choose the same. Rows that a version before wrote
-- do not say whose they are, and count for all, as they did; they are forgotten within orchestrator.answers_kept_hours.
alter table idempotency add column principal text not null default '';
alter table idempotency drop constraint idempotency_pkey;
alter table idempotency add primary key (account_id, key, principal);

-- The list of keys finds them in its order, however many there are. The primary key is made again behind it: of two indexes that
-- look alike to a planner that has counted nothing, it takes the younger one, and who holds a key is asked at every request.
alter table api_key drop constraint api_key_pkey;
create index api_key_oldest on api_key (account_id, created_at, id);
alter table api_key add primary key (account_id, id);
