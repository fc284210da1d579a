-- Some messages are all that their reader has to go by: notifications, and the news that a turn is finished. A broker that
-- loses its store would lose them, so their rows stay behind the broker's acknowledgement until the reader deletes them,
-- in the transaction in which it takes the message in. The sweep publishes again what the broker no longer has.
alter table outbox
    -- the broker has acknowledged it: when, and where in its stream it lies
    add column stored_at       timestamptz,
    add column stored_sequence bigint,
    -- when a sweep looks next whether it was read
    add column look_at         timestamptz;
-- Each sweep walks through its own rows only: what was never acknowledged is little, what is not yet read can be much.
create index outbox_unsent on outbox (service, created_at) where stored_at is null;
create index outbox_unread on outbox (service, look_at) where stored_at is not null;
drop index outbox_oldest;
