-- As before, but each account has a share: an account with 100,000 parked sessions does not keep the next one from starting.
create or replace function session_parked(gate_ref uuid, row_limit integer) returns table (account_id text, session_id uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
    with recursive holder (account_id, number) as (
        (select s.account_id, 1 from public.session s
         where s.gate_ref = session_parked.gate_ref
         order by s.gate_ref, s.account_id, s.id limit 1)
        union all
        select f.account_id, h.number + 1
        from holder h
        cross join lateral (
            select s.account_id from public.session s
            where s.gate_ref = session_parked.gate_ref and s.account_id > h.account_id
            order by s.gate_ref, s.account_id, s.id limit 1) f
        where h.number < row_limit
    )
    select f.account_id, f.id
    from holder h
    cross join lateral (
        select s.account_id, s.id from public.session s
        where s.gate_ref = any (array[session_parked.gate_ref]) and s.account_id = h.account_id
        order by s.gate_ref, s.account_id, s.id
        limit (select greatest(row_limit / count(*), 1) from holder)) f
$$;
