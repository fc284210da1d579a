-- A row of the outbox may hold several messages of an account: its service ends with `.batch`, their subjects stand in its
-- subject, one space between, and its payload holds their headers and payloads. An earlier version does not see such rows.
-- Who may write, publish and see them is as before, for each of the subjects.
do $$
declare one record;
begin
    for one in
        select name, quote_literal(name) || ', ' || quote_literal(name || '.batch') as names, replace(name, '-', '_') as suffix,
               (select with_check from pg_policies
                where schemaname = 'public' and tablename = 'outbox' and policyname = 'own_' || replace(name, '-', '_')) as may_write
        from unnest(array['resolver', 'delivery', 'tool-gateway', 'orchestrator']) as services (name)
    loop
        execute format('alter policy relay_%s on public.outbox using (service in (%s)) with check (service in (%2$s))',
                       one.suffix, one.names);
        -- The old condition reads the columns of the inner rows, which are named as the table's.
        execute format($policy$
            alter policy own_%s on public.outbox with check (not exists (
                select from string_to_table(outbox.subject, ' ') as subjects (subject),
                            regexp_replace(outbox.service, '\.batch$', '') as services (service)
                where (%s) is not true))$policy$, one.suffix, one.may_write);
    end loop;
end $$;
alter policy own_resolver on outbox
    using (service in ('resolver', 'resolver.batch')
           or split_part(subject, '.', 2) = 'notification' and strpos(subject, ' ') = 0);
alter policy own_delivery on outbox using (service in ('delivery', 'delivery.batch'));
alter policy own_tool_gateway on outbox using (service in ('tool-gateway', 'tool-gateway.batch'));
alter policy own_orchestrator on outbox
    using (service in ('orchestrator', 'orchestrator.batch')
           or split_part(subject, '.', 2) = 'event' and subject like '%.turn.finished' and strpos(subject, ' ') = 0);

-- Compressing the payloads of many messages would cost more than the rows that they share.
alter table outbox alter column payload set storage external;
