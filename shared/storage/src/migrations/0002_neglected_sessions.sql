-- The search for sessions that nobody is seeing to goes round, a page at a time: whatever stays neglected for a while (an
-- account at its limit, say) hides nobody behind it. A session that waits for its next attempt, with no turn and nothing
-- queued, has nothing to be woken for.
create function session_neglected(after_account text, after_session uuid, row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path from current as $$
    select s.account_id, s.id from session s
    where (s.account_id, s.id) > (after_account, after_session)
      and ((s.phase = 'idle' and s.queued > 0 and s.closed_at is null)
           or (s.phase in ('backoff', 'waiting') and s.wake_at <= now()
               and (s.active_turn_id is not null or (s.queued > 0 and s.closed_at is null)))
           or (s.phase = 'running'
               and not exists (select from replica r where r.id = s.lease_owner and r.lease_until > now())))
    order by s.account_id, s.id
    limit row_limit
$$;
alter function session_neglected(text, uuid, integer) owner to signalbox_sweeper;
revoke all on function session_neglected(text, uuid, integer) from public;
grant execute on function session_neglected(text, uuid, integer) to signalbox_delivery;
