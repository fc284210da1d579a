-- What questions, timers, tool policies, recovery and the breaker of providers keep in rows that exist. Their own tables are in
-- steps 31 to 34.

-- Turns without progress for the same reason, in a row: how many, which reason, since when.
alter table session
    add column streak       integer not null default 0,
    add column streak_key   text,
    add column streak_since timestamptz;
-- What woke the agent: type and sender of the turn's first item.
alter table turn add column wake_key text;

alter table task
    -- with status blocked: who moves it on, and what that person or agent has to do
    add column blocked_owner  text,
    add column blocked_action text,
    -- off or required; none: as the account says
    add column plan_gate      text,
    add column plan_audience  text[],
    -- to which it returns from awaiting_approval
    add column status_before  text;

alter table account
    -- watch or recover
    add column liveness      text not null default 'watch',
    add column plan_gate     text not null default 'off',
    add column plan_audience text[],
    -- how many rows of tool_policy it has
    add column tool_policies integer not null default 0;

-- Sessions are found by what keeps them: a hold, a question, a provider.
drop index session_gated;
create index session_gated on session (gate_ref, account_id, id) where gate_ref is not null;

-- What a service publishes, and what its dead letters are of: as in 0019 to 0029, with the messages of steps 30 to 34. The lists are
-- whole, so that the next step adds a word.
do $$
declare
    one record;
    publishes constant text := $check$(case split_part(%1$s, '.', 2)
            when 'event' then split_part(%1$s, '.', 5) || '.' || split_part(%1$s, '.', 6) = any (%2$L::text[]) and split_part(%1$s, '.', 7) = ''
            when 'notification' then split_part(%1$s, '.', 4) <> '' and split_part(%1$s, '.', 5) = ''
            when 'dead' then split_part(%1$s, '.', 4) <> '' and split_part(%1$s, '.', 5) = ''
            else split_part(%1$s, '.', 2) || '.' || split_part(%1$s, '.', 3) = any (%3$L::text[])
                and split_part(%1$s, '.', 5) <> '' and split_part(%1$s, '.', 6) = ''
        end)$check$;
begin
    for one in select name, replace(name, '-', '_') as suffix, messages, events, reads from (values
        ('resolver',
         array['session.resolved', 'session.stop_requested'],
         array['task.created', 'notification.refused', 'notification.cancelled', 'session.opened', 'session.released', 'message.died'],
         $reads$split_part(subject, '.', 2) = 'partition' and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''$reads$),
        ('delivery',
         array['session.resolved', 'tool.requested', 'tool.approved'],
         array['turn.started', 'turn.finished', 'message.posted', 'notification.cancelled', 'notification.failed',
               'session.parked', 'session.released', 'provider.session_mismatched', 'provider.opened', 'provider.probing',
               'provider.closed', 'question.withdrawn', 'recovery.changed', 'task.needs_person', 'message.died'],
         $reads$split_part(subject, '.', 2) || '.' || split_part(subject, '.', 3) in
             ('session.resolved', 'session.closed', 'session.stop_requested', 'tool.finished')
             and split_part(subject, '.', 4) <> ''$reads$),
        ('tool-gateway',
         array['session.resolved', 'session.closed', 'session.stop_requested', 'tool.approved', 'tool.finished'],
         array['task.status_changed', 'task.changed', 'message.posted', 'notification.cancelled', 'session.opened', 'session.closed',
               'session.released', 'question.opened', 'question.answered', 'question.withdrawn', 'question.cancelled',
               'timer.changed', 'recovery.changed', 'message.died'],
         $reads$split_part(subject, '.', 2) || '.' || split_part(subject, '.', 3) in ('tool.requested', 'tool.approved') and split_part(subject, '.', 4) <> ''$reads$),
        ('orchestrator',
         array['session.resolved', 'session.closed', 'session.stop_requested', 'tool.requested', 'tool.approved', 'tool.finished'],
         array['turn.finished', 'task.created', 'task.status_changed', 'task.changed', 'task.stalled', 'task.needs_person',
               'message.posted', 'notification.cancelled', 'session.opened', 'session.closed', 'session.released',
               'session.lease_released', 'queue.changed', 'hold.changed', 'question.opened', 'question.answered',
               'question.withdrawn', 'question.lapsed', 'question.cancelled', 'timer.changed', 'recovery.changed',
               'tool_policy.changed', 'agent.removed', 'message.died'],
         'false')
    ) as services (name, messages, events, reads)
    loop
        execute format($policy$
            alter policy own_%s on public.outbox with check (
                service in (%L, %L) and subject <> '' and not exists (
                    select from string_to_table(outbox.subject, ' ') as subjects (subject) where %s is not true))$policy$,
            one.suffix, one.name, one.name || '.batch', format(publishes, 'subjects.subject', one.events, one.messages));
        execute format('alter policy own_%s on public.dead_letter with check (service = %L and (%s or %s))',
            one.suffix, one.name, one.reads, format(publishes, 'subject', one.events, one.messages));
    end loop;
end $$;
