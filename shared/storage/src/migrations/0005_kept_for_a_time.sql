-- What went nowhere is kept for a time: refused notifications by the resolver, dead letters by the orchestrator. The
-- resolver's sweep looks across accounts for the oldest, and sees ids and moments only.
create index notification_refused on notification (created_at) where state = 'refused';
grant select (account_id, id, state, created_at) on notification to signalbox_sweeper;
create policy sweep on notification for select to signalbox_sweeper using (true);
create function notification_refused(older_than timestamptz, row_limit integer)
    returns table (account_id text, notification_id text)
    language sql stable security definer set search_path from current as $$
    select n.account_id, n.id from notification n
    where n.state = 'refused' and n.created_at < older_than
    order by n.created_at
    limit row_limit
$$;
alter function notification_refused(timestamptz, integer) owner to signalbox_sweeper;
revoke all on function notification_refused(timestamptz, integer) from public;
grant execute on function notification_refused(timestamptz, integer) to signalbox_resolver;
grant delete on dead_letter to signalbox_orchestrator;
