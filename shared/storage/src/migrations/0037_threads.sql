-- Threads: what a provider keeps of a session's earlier calls, and what a session knows of it. Also the columns of the parts that
-- follow: rotation, reset, branches and replays.

alter table session drop constraint session_kind_check;
alter table session
    add constraint session_kind_check check (kind in ('task', 'system', 'orchestrator', 'branch', 'replay')),
    -- the branch or the replay that it runs
    add column origin_id         uuid,
    -- the session whose turn made it
    add column parent_session_id uuid,
    -- the generation before, which was rotated: its turns are a part of what this one knows
    add column continues_id      uuid,
    -- the newest thread, counted from 1
    add column thread_number     integer not null default 0,
    -- the provider has answered in it, and the next turn can go on from there
    add column thread_live       boolean not null default false,
    -- turns in a row that found their thread gone
    add column threads_lost      integer not null default 0,
    -- what the thread has been told besides its turns: {ids, description, briefing, at} (domain::context::Told)
    add column told              jsonb not null default '{}',
    -- of its ended turns, as the provider counts
    add column tokens_used       bigint not null default 0,
    -- ended turns in a row that failed by themselves
    add column failures_in_row   integer not null default 0,
    -- a reset that waits for the end of the turn in progress
    add column reset_request     jsonb,
    -- why it was closed, in words, where its reason does not say it
    add column close_detail      text;

-- A closed generation keeps no thread: nothing can take one up by mistake. The old value goes with session.closed. Neither a check
-- nor a trigger holds the rule: both cost every update of a session, and one statement closes sessions (sessions_close.rs).
update session set provider_thread = null where closed_at is not null and provider_thread is not null;

-- One open session of a branch and of a replay; the open replays of an account are counted by the index, too.
create unique index session_active_origin on session (account_id, kind, origin_id)
    where closed_at is null and origin_id is not null;
-- S1 again, with the branches and replays of a task. The column stands last: the statements that find the newest generation of a
-- conversation order by those before it.
drop index session_generation;
create unique index session_generation on session (account_id, kind, task_id, agent_id, user_id, generation, origin_id)
    nulls not distinct;
-- The primary key is the youngest index of its table again (0001).
alter table tool_call drop constraint tool_call_account_id_session_id_fkey;
alter table session drop constraint session_pkey, add primary key (account_id, id);
-- Younger still, as before.
drop index session_gated;
create index session_gated on session (gate_ref, account_id, id) where gate_ref is not null;
-- The calls that are there have been checked.
alter table tool_call
    add constraint tool_call_account_id_session_id_fkey foreign key (account_id, session_id) references session not valid;

alter table turn
    -- {asked, used, reason, thread, from, base_sha256}, and what only a turn in progress needs (domain::context::TurnContext);
    -- null: a version before this one began it
    add column context         jsonb,
    -- the number of its thread
    add column thread          integer,
    -- the rule by which its generation was opened, with its figures
    add column rotated_because text;

-- continue or assembled
alter table account
    add column context_policy     text not null default 'continue',
    -- the limits that differ from the defaults (domain::context::Rotation)
    add column rotation           jsonb not null default '{}',
    -- branches or always
    add column task_context_layer text not null default 'branches';
-- null: the account's
alter table agent
    add column context_policy text,
    add column rotation       jsonb;

-- the agents that it wakes; null for none
alter table message add column woke uuid[];

-- A record or a claim of delivery opens the next generation: at a rotation, and at the end of a turn that a reset has stopped.
grant insert on session to signalbox_delivery;
grant update (session_id, position) on notification to signalbox_delivery;
-- What is set for a session holds for the generation that follows.
grant update (scope_id) on hold, tool_policy to signalbox_delivery;
create policy own_delivery on hold as restrictive for update to signalbox_delivery
    using (scope_kind = 'session') with check (scope_kind = 'session');
create policy own_delivery on tool_policy as restrictive for update to signalbox_delivery
    using (scope_kind = 'session') with check (scope_kind = 'session');

-- What a service publishes, and what its dead letters are of: as in 0030, with the messages of this step and of those that follow it
-- under the same issue. The lists are whole, so that the next step adds a word.
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
         array['session.resolved', 'session.closed', 'tool.requested', 'tool.approved'],
         array['turn.started', 'turn.finished', 'message.posted', 'notification.cancelled', 'notification.failed',
               'session.opened', 'session.closed', 'session.reset', 'session.parked', 'session.released',
               'provider.session_mismatched', 'provider.thread_lost', 'provider.thread_unconfirmed', 'provider.opened',
               'provider.probing', 'provider.closed', 'question.withdrawn', 'recovery.changed', 'task.needs_person', 'message.died'],
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
               'message.posted', 'notification.cancelled', 'session.opened', 'session.closed', 'session.reset', 'session.released',
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
