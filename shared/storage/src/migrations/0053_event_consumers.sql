-- The event consumers of an account on the broker, by name: who connects with a key of the account may read from these.
alter table account add column event_consumers text[] not null default '{}' check (cardinality(event_consumers) <= 8);
