-- A delivery posts a turn's reply with the turn's record; the orchestrator posted it from the event of the turn's end.
grant insert on message to signalbox_delivery;
alter policy own_delivery on outbox
    with check (service = 'delivery' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('turn.started', 'turn.finished', 'message.posted', 'notification.cancelled', 'notification.failed', 'provider.session_mismatched', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'tool' then split_part(subject, '.', 3) in ('requested')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);

-- Its dead letters are of what it reads or publishes, as in 0019.
do $$
begin
    execute format('alter policy own_delivery on public.dead_letter with check (service = %L and (%s or (%s)))', 'delivery',
        $reads$case split_part(subject, '.', 2)
            when 'session' then split_part(subject, '.', 3) in ('resolved', 'closed') and split_part(subject, '.', 4) <> ''
            when 'tool' then split_part(subject, '.', 3) = 'finished' and split_part(subject, '.', 4) <> ''
            when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
            else false end$reads$,
        (select with_check from pg_policies
         where schemaname = 'public' and tablename = 'outbox' and policyname = 'own_delivery'));
end $$;

-- A message is an activity of its task: it is read from `message` and no longer written twice. The index leaves out those
-- that were written. The next version drops activity_newest, by which this one's predecessor reads.
create index activity_change on activity (account_id, task_id, created_at desc, id desc) where kind <> 'message.posted';
