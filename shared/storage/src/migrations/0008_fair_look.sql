-- The search for sessions that nobody is seeing to takes from every account, a page in all: one account with a hundred
-- thousand that wait hides nobody. What a dead holder left comes first, whatever else waits. The rest goes round within
-- its account, behind `passed_sessions`; an account's page is full when as many rows `in_turn` as `page` says were found.
-- An account that was looked at and has nothing is a row without a session: the walk over accounts goes on behind it.
create function session_neglected(after_account text, passed_accounts text[], passed_sessions uuid[], row_limit integer)
    returns table (account_id text, session_id uuid, in_turn boolean, page integer)
    language sql stable security definer set search_path from current as $$
    with recursive walk (account_id, number) as (
        (select s.account_id, 1 from session s
         where (s.phase <> 'idle' or s.queued > 0) and s.account_id > after_account
         order by s.account_id limit 1)
        union all
        select (select s.account_id from session s
                where (s.phase <> 'idle' or s.queued > 0) and s.account_id > w.account_id
                order by s.account_id limit 1), w.number + 1
        from walk w where w.account_id is not null and w.number < row_limit
    ), share (account_id, page) as (
        select w.account_id, greatest(1, row_limit / count(*) over ())::integer from walk w where w.account_id is not null
    )
    select h.account_id, f.id, coalesce(f.in_turn, false), h.page
    from share h
    left join lateral (
        select p.session_id from unnest(passed_accounts, passed_sessions) as p (account_id, session_id)
        where p.account_id = h.account_id limit 1) passed on true
    left join lateral (
        (select s.id, false as in_turn from session s
         where s.account_id = h.account_id and s.phase = 'running'
           and not exists (select from replica r where r.id = s.lease_owner and r.lease_until > now())
         limit h.page)
        union all
        (select w.id, true from (
            (select s.id from session s
             where s.account_id = h.account_id and s.phase = 'idle' and s.queued > 0 and s.closed_at is null
               and s.id > coalesce(passed.session_id, '00000000-0000-0000-0000-000000000000')
             order by s.id limit h.page)
            union all
            (select s.id from session s
             where s.account_id = h.account_id and s.phase = 'waiting' and s.wake_at <= now()
               and (s.active_turn_id is not null or (s.queued > 0 and s.closed_at is null))
               and s.id > coalesce(passed.session_id, '00000000-0000-0000-0000-000000000000')
             order by s.id limit h.page)
            union all
            (select s.id from session s
             where s.account_id = h.account_id and s.phase = 'backoff' and s.wake_at <= now()
               and (s.active_turn_id is not null or (s.queued > 0 and s.closed_at is null))
               and s.id > coalesce(passed.session_id, '00000000-0000-0000-0000-000000000000')
             order by s.id limit h.page)
         ) w order by w.id limit h.page)
    ) f on true
    order by h.account_id, f.in_turn, f.id
$$;
alter function session_neglected(text, text[], uuid[], integer) owner to signalbox_sweeper;
revoke all on function session_neglected(text, text[], uuid[], integer) from public;
grant execute on function session_neglected(text, text[], uuid[], integer) to signalbox_delivery;
-- Read in the order in which the search goes round.
drop index session_attention;
create index session_attention on session (account_id, phase, id) where phase <> 'idle' or queued > 0;
