-- Sessions that a breaker keeps, of at most 50 accounts after one, which take turns: an account with 100,000 parked sessions does not keep
-- the next one from starting. The array has one value: with an equality, the primary key has the same order, and reads all sessions.
create function session_parked_shares(gate_ref uuid, after_account text, row_limit integer)
    returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive holder (account_id, number) as (
        (select s.account_id, 1 from public.session s
         where s.gate_ref = any (array[session_parked_shares.gate_ref]) and s.account_id > after_account
         order by s.gate_ref, s.account_id, s.id limit 1)
        union all
        select f.account_id, h.number + 1
        from holder h
        cross join lateral (
            select s.account_id from public.session s
            where s.gate_ref = any (array[session_parked_shares.gate_ref]) and s.account_id > h.account_id
            order by s.gate_ref, s.account_id, s.id limit 1) f
        where h.number < 50
    ), share as (
        select f.account_id, f.id, row_number() over (partition by f.account_id order by f.id) as place
        from holder h
        cross join lateral (
            select s.account_id, s.id from public.session s
            where s.gate_ref = any (array[session_parked_shares.gate_ref]) and s.account_id = h.account_id
            order by s.gate_ref, s.account_id, s.id limit row_limit) f
    )
    select s.account_id, s.id
    from (select * from share order by place, account_id limit row_limit) s
    order by s.account_id, s.id
$$;
alter function session_parked_shares(uuid, text, integer) owner to signalbox_sweeper;
revoke all on function session_parked_shares(uuid, text, integer) from public;
grant execute on function session_parked_shares(uuid, text, integer) to signalbox_delivery;
