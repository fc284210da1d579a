-- Whoever knows a conversation appends to its open session, or sends it a notification where none is open (storage::session,
-- item_enter): every service may do so, and may wake delivery afterwards.
grant insert on notification to signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
grant select, insert on accepted_notification to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway;

-- What a service publishes, as in 0015, with notifications for resolver and delivery, and `session.resolved` for delivery.
alter policy own_resolver on outbox
    with check (service = 'resolver' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('task.created', 'notification.refused', 'session.opened', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);
alter policy own_delivery on outbox
    with check (service = 'delivery' and case split_part(subject, '.', 2)
        when 'event' then split_part(subject, '.', 5) || '.' || split_part(subject, '.', 6) in ('turn.started', 'turn.finished', 'notification.cancelled', 'notification.failed', 'provider.session_mismatched', 'message.died')
            and split_part(subject, '.', 7) = ''
        when 'tool' then split_part(subject, '.', 3) in ('requested')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'session' then split_part(subject, '.', 3) in ('resolved')
            and split_part(subject, '.', 5) <> '' and split_part(subject, '.', 6) = ''
        when 'notification' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        when 'dead' then split_part(subject, '.', 4) <> '' and split_part(subject, '.', 5) = ''
        else false end);
