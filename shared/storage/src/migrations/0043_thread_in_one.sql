-- What a session knows of its threads is one column: each turn reads and writes all of it, and six columns cost both statements of a turn
-- six expressions. {number, live, lost, told, tokens, failures} (storage::session::sessions_lock::SessionThread). The response from which a
-- thread goes on keeps its column (provider_thread): closing a session clears it.
alter table session add column thread jsonb not null default '{}';
-- Only sessions with a turn since step 0037 have any of it. The moment in `told` is in milliseconds from now on.
update session set thread = jsonb_build_object(
        'number', thread_number, 'live', thread_live, 'lost', threads_lost, 'tokens', tokens_used, 'failures', failures_in_row,
        'told', told || case when told ? 'at' then jsonb_build_object('at', (told ->> 'at')::bigint * 1000) else '{}' end)
    where thread_number > 0 or told <> '{}';
alter table session
    drop column thread_number,
    drop column thread_live,
    drop column threads_lost,
    drop column told,
    drop column tokens_used,
    drop column failures_in_row;
