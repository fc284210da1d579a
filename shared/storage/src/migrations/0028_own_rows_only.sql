-- A row of the outbox has a subject. Since 0027 subjects are compared one by one, and the service with each: a row without a
-- subject was compared with nothing.
do $$
declare one record;
begin
    for one in
        select quote_literal(name) || ', ' || quote_literal(name || '.batch') as names, p.policyname, p.with_check
        from unnest(array['resolver', 'delivery', 'tool-gateway', 'orchestrator']) as services (name)
        join pg_policies p on p.schemaname = 'public' and p.tablename = 'outbox' and p.policyname = 'own_' || replace(name, '-', '_')
    loop
        execute format('alter policy %s on public.outbox with check (service in (%s) and subject <> %L and %s)',
                       one.policyname, one.names, '', one.with_check);
    end loop;
end $$;

-- In threads, delivery and tool-gateway write for agents only: a turn's reply, and a tool's message.
create policy own_delivery on message as restrictive for insert to signalbox_delivery
    with check (author_kind = 'agent' and author_via is null and turn_id is not null);
create policy own_tool_gateway on message as restrictive for insert to signalbox_tool_gateway
    with check (author_kind = 'agent' and author_via is null);
