-- A look comes by ten times as many sessions of an account as it may find, however many have something waiting or a turn that
-- has not ended: a hundred thousand that all wait for another attempt are gone round in many looks. Where the next look goes
-- on is a row of page 0, whose session is the last that was come by. As before, what a dead holder left comes first; of
-- more open turns than a look comes by, the others are come by in the round.
create or replace function session_neglected(after_account text, passed_accounts text[], passed_sessions uuid[], row_limit integer)
    returns table (account_id text, session_id uuid, in_turn boolean, page integer)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive walk (account_id, number) as (
        select least(
            (select n.account_id from public.notification n where n.state = 'queued' and n.account_id > after_account
             order by n.account_id limit 1),
            (select t.account_id from public.turn t where t.finished_at is null and t.account_id > after_account
             order by t.account_id limit 1)), 1
        union all
        select least(
            (select n.account_id from public.notification n where n.state = 'queued' and n.account_id > w.account_id
             order by n.account_id limit 1),
            (select t.account_id from public.turn t where t.finished_at is null and t.account_id > w.account_id
             order by t.account_id limit 1)), w.number + 1
        from walk w where w.account_id is not null and w.number < row_limit
    ), share (account_id, page) as (
        select w.account_id, greatest(1, row_limit / count(*) over ())::integer from walk w where w.account_id is not null
    )
    select h.account_id, f.id, coalesce(f.in_turn, false), case when f.goes_on then 0 else h.page end
    from share h
    cross join lateral (
        select coalesce((select p.session_id from unnest(passed_accounts, passed_sessions) as p (account_id, session_id)
                         where p.account_id = h.account_id limit 1),
                        '00000000-0000-0000-0000-000000000000') as session_id, 10 * h.page as looked_at) passed
    left join lateral (
        (select s.id, false as in_turn, false as goes_on from (
            select t.session_id from public.turn t where t.account_id = h.account_id and t.finished_at is null
            order by t.session_id limit passed.looked_at) t
         cross join lateral (
            select s.id from public.session s
            where s.account_id = h.account_id and s.id = t.session_id and s.phase = 'running'
              and not exists (select from public.replica r where r.id = s.lease_owner and r.lease_until > now())
            offset 0) s
         limit h.page)
        union all
        (with recursive queue (session_id, number) as (
            -- one after the other: a session may have thousands queued
            (select n.session_id, 1 from public.notification n
             where n.account_id = h.account_id and n.state = 'queued' and n.session_id > passed.session_id
             order by n.session_id limit 1)
            union all
            select (select n.session_id from public.notification n
                    where n.account_id = h.account_id and n.state = 'queued' and n.session_id > q.session_id
                    order by n.session_id limit 1), q.number + 1
            from queue q where q.session_id is not null and q.number < passed.looked_at
         ), open as materialized (
            select t.session_id, row_number() over (order by t.session_id) as number from (
                select t.session_id from public.turn t
                where t.account_id = h.account_id and t.finished_at is null and t.session_id > passed.session_id
                order by t.session_id limit passed.looked_at) t
         ), up_to as materialized (
            select least((select q.session_id from queue q where q.number = passed.looked_at),
                         (select o.session_id from open o where o.number = passed.looked_at)) as session_id
         ), found as materialized (
            select s.id from (select q.session_id from queue q where q.session_id is not null
                              union select o.session_id from open o) w
            cross join up_to
            cross join lateral (
                select s.id from public.session s
                where s.account_id = h.account_id and s.id = w.session_id
                  and ((s.queued > 0 and s.closed_at is null and s.phase = 'idle')
                    or (s.phase in ('waiting', 'backoff') and s.wake_at <= now()
                        and (s.active_turn_id is not null or (s.queued > 0 and s.closed_at is null)))
                    or (s.phase = 'running'
                        and not exists (select from public.replica r where r.id = s.lease_owner and r.lease_until > now())))
                offset 0) s
            where up_to.session_id is null or w.session_id <= up_to.session_id
            order by s.id limit h.page
         )
         select f.id, true, false from found f
         union all
         select l.session_id, true, true from (
            select coalesce((select f.id from found f order by f.id offset h.page - 1 limit 1), up_to.session_id) as session_id
            from up_to) l
         where l.session_id is not null)
    ) f on true
    order by h.account_id, f.in_turn, f.id, f.goes_on
$$;
