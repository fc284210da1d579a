-- A session's row is written three times for each notification. As long as an index knew its phase and its count of what
-- waits, each of these writes was also one into all seven indexes of the table: ten times the work, and eight times the
-- log. Nothing that changes with a turn is in an index of this table any more, and pages have room for the new row beside
-- the old one, so that it is written in place.
drop index session_attention;
alter table session set (fillfactor = 50);

-- What somebody has to see to is found from what is there to be seen to: notifications that are queued, which have an
-- index already, and turns that have not ended.
create index turn_open on turn (account_id, session_id) where finished_at is null;
grant select (account_id, session_id, finished_at) on turn to signalbox_sweeper;
create policy sweep on turn for select to signalbox_sweeper using (true);
grant select (session_id) on notification to signalbox_sweeper;

-- As before, but for where it looks: a session that somebody works on, or has worked on, has a turn that has not ended;
-- one that waits for somebody has a notification that is queued.
create or replace function session_neglected(after_account text, passed_accounts text[], passed_sessions uuid[], row_limit integer)
    returns table (account_id text, session_id uuid, in_turn boolean, page integer)
    language sql stable security definer set search_path from current as $$
    with recursive walk (account_id, number) as (
        select least(
            (select n.account_id from notification n where n.state = 'queued' and n.account_id > after_account
             order by n.account_id limit 1),
            (select t.account_id from turn t where t.finished_at is null and t.account_id > after_account
             order by t.account_id limit 1)), 1
        union all
        select least(
            (select n.account_id from notification n where n.state = 'queued' and n.account_id > w.account_id
             order by n.account_id limit 1),
            (select t.account_id from turn t where t.finished_at is null and t.account_id > w.account_id
             order by t.account_id limit 1)), w.number + 1
        from walk w where w.account_id is not null and w.number < row_limit
    ), share (account_id, page) as (
        select w.account_id, greatest(1, row_limit / count(*) over ())::integer from walk w where w.account_id is not null
    )
    select h.account_id, f.id, coalesce(f.in_turn, false), h.page
    from share h
    cross join lateral (
        select coalesce((select p.session_id from unnest(passed_accounts, passed_sessions) as p (account_id, session_id)
                         where p.account_id = h.account_id limit 1),
                        '00000000-0000-0000-0000-000000000000') as session_id) passed
    left join lateral (
        (select s.id, false as in_turn from turn t
         cross join lateral (
            select s.id from session s
            where s.account_id = h.account_id and s.id = t.session_id and s.phase = 'running'
              and not exists (select from replica r where r.id = s.lease_owner and r.lease_until > now())
            offset 0) s
         where t.account_id = h.account_id and t.finished_at is null
         limit h.page)
        union all
        (select w.id, true from (
            -- one after the other: a session may have thousands queued
            (with recursive queue (session_id) as (
                (select n.session_id from notification n
                 where n.account_id = h.account_id and n.state = 'queued' and n.session_id > passed.session_id
                 order by n.session_id limit 1)
                union all
                select (select n.session_id from notification n
                        where n.account_id = h.account_id and n.state = 'queued' and n.session_id > q.session_id
                        order by n.session_id limit 1)
                from queue q where q.session_id is not null
             )
             select s.id from queue q
             cross join lateral (
                select s.id from session s
                where s.account_id = h.account_id and s.id = q.session_id and s.queued > 0 and s.closed_at is null
                  and (s.phase = 'idle' or (s.phase in ('waiting', 'backoff') and s.wake_at <= now()))
                offset 0) s
             limit h.page)
            union
            (select s.id from (
                select t.session_id from turn t
                where t.account_id = h.account_id and t.finished_at is null and t.session_id > passed.session_id
                order by t.session_id) t
             cross join lateral (
                select s.id from session s
                where s.account_id = h.account_id and s.id = t.session_id and s.phase in ('waiting', 'backoff')
                  and s.wake_at <= now() and s.active_turn_id is not null
                offset 0) s
             limit h.page)
         ) w order by w.id limit h.page)
    ) f on true
    order by h.account_id, f.in_turn, f.id
$$;
