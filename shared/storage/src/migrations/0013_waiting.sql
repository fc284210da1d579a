-- How long what waits for its turn has waited, over all accounts: the first of each session's queue, a page of sessions a
-- look. One after the other by the index notification_queue, since a session may have thousands queued.
grant select (position) on notification to signalbox_sweeper;
create function notification_waiting(after_account text, after_session uuid, row_limit integer)
    returns table (account_id text, session_id uuid, created_at timestamptz)
    language sql stable security definer set search_path from current as $$
    with recursive head (account_id, session_id, created_at, number) as (
        (select n.account_id, n.session_id, n.created_at, 1 from notification n
         where n.state = 'queued' and (n.account_id, n.session_id) > (after_account, after_session)
         order by n.account_id, n.session_id, n.position limit 1)
        union all
        select f.account_id, f.session_id, f.created_at, h.number + 1
        from head h
        cross join lateral (
            select n.account_id, n.session_id, n.created_at from notification n
            where n.state = 'queued' and (n.account_id, n.session_id) > (h.account_id, h.session_id)
            order by n.account_id, n.session_id, n.position limit 1) f
        where h.number < row_limit
    )
    select h.account_id, h.session_id, h.created_at from head h order by h.number
$$;
alter function notification_waiting(text, uuid, integer) owner to signalbox_sweeper;
revoke all on function notification_waiting(text, uuid, integer) from public;
grant execute on function notification_waiting(text, uuid, integer) to signalbox_delivery;
