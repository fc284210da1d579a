-- The stream of notifications refuses them when it is full, and no other stream does. A sweep takes what else waits beside
-- them, however many notifications wait for longer. What an older version writes counts as something else.
alter table outbox add column is_notification boolean not null default false;
drop index outbox_unsent;
create index outbox_unsent on outbox (service, is_notification, created_at) where stored_at is null;
