-- The newest closed generation of a session stays, since it carries the number; what hangs on it goes when its time is over,
-- like that of the others (S12). A session is opened for work, so its `queue_tail` is 0 only once it was emptied. Under a
-- name of its own: whoever asks by the old one removes all that it finds.
grant select (queue_tail) on session to signalbox_sweeper;
create function session_outlived(older_than timestamptz, row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path from current as $$
    select s.account_id, s.id from session s
    where s.closed_at < older_than and s.active_turn_id is null
      and (s.queue_tail > 0
           or exists (select from session n
                      where n.account_id = s.account_id and n.kind = s.kind
                        and n.task_id is not distinct from s.task_id and n.agent_id is not distinct from s.agent_id
                        and n.user_id is not distinct from s.user_id and n.generation > s.generation))
    limit row_limit
$$;
alter function session_outlived(timestamptz, integer) owner to signalbox_sweeper;
revoke all on function session_outlived(timestamptz, integer) from public;
grant execute on function session_outlived(timestamptz, integer) to signalbox_resolver;
