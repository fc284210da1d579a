-- A dead letter is of a message that its service reads or publishes. The orchestrator signs what it sends again: a letter on any
-- subject made it sign, for a service that was taken over, what that service could not publish. What a service publishes is what
-- its policy on `outbox` says; what it reads is in shared/messaging/src/users.rs, and tests/it/subjects.rs holds both together.
do $$
declare
    own record;
    publishes text;
begin
    for own in select * from (values
        ('resolver', 'case split_part(subject, ''.'', 2)
            when ''notification'' then split_part(subject, ''.'', 4) <> '''' and split_part(subject, ''.'', 5) = ''''
            when ''partition'' then split_part(subject, ''.'', 5) <> '''' and split_part(subject, ''.'', 6) = ''''
            else false end'),
        -- the notifications of a turn that failed, too
        ('delivery', 'case split_part(subject, ''.'', 2)
            when ''session'' then split_part(subject, ''.'', 3) in (''resolved'', ''closed'') and split_part(subject, ''.'', 4) <> ''''
            when ''tool'' then split_part(subject, ''.'', 3) = ''finished'' and split_part(subject, ''.'', 4) <> ''''
            when ''notification'' then split_part(subject, ''.'', 4) <> '''' and split_part(subject, ''.'', 5) = ''''
            else false end'),
        ('tool-gateway', 'split_part(subject, ''.'', 2) = ''tool'' and split_part(subject, ''.'', 3) = ''requested''
            and split_part(subject, ''.'', 4) <> '''''),
        -- it reads what it may send again
        ('orchestrator', 'false')) as v (service, reads)
    loop
        select with_check into strict publishes from pg_policies
        where schemaname = 'public' and tablename = 'outbox' and policyname = 'own_' || replace(own.service, '-', '_');
        execute format('alter policy %I on public.dead_letter with check (service = %L and (%s or (%s)))',
                       'own_' || replace(own.service, '-', '_'), own.service, own.reads, publishes);
    end loop;
end $$;

-- Delivery makes the letter of a failed turn's notification from its row. Who sent it is the resolver's word: whoever has
-- taken delivery over cannot change it, and a letter that says otherwise is not believed when it is sent again.
revoke update on notification from signalbox_delivery;
grant update (state, reason, attempts, turn_id) on notification to signalbox_delivery;
-- The others close sessions, and write what becomes of what waits in them.
revoke update on notification from signalbox_tool_gateway, signalbox_orchestrator;
grant update (session_id, position, state, reason, turn_id) on notification to signalbox_tool_gateway, signalbox_orchestrator;
