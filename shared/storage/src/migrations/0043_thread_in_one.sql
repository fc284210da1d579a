-- What a session knows of its threads is one column: each turn reads and writes all of it, and six columns cost both statements of a turn
-- six expressions. {number, live, lost, told, tokens, failures} (storage::session::sessions_lock::SessionThread). The response from which a
-- thread goes on keeps its column (provider_thread): closing a session clears it.
--
-- Services of the version before do not run on this schema: stop them first (docs/runbooks/upgrading.md). If they went on with columns of
-- their own, a turn would begin in a thread that the other version left, without a word.
set local statement_timeout = 0;
alter table session add column thread jsonb not null default '{}';
-- The owner is held to the policies, too, and names no account: without this, no row would be converted.
alter table session no force row level security;
-- Only sessions with a turn since step 0037 have any of it. The moment in `told` is in milliseconds from now on.
update session set thread = jsonb_build_object(
        'number', thread_number, 'live', thread_live, 'lost', threads_lost, 'tokens', tokens_used, 'failures', failures_in_row,
        'told', told || case when told ? 'at' then jsonb_build_object('at', (told ->> 'at')::bigint * 1000) else '{}' end)
    where thread_number > 0 or told <> '{}' or tokens_used > 0 or failures_in_row > 0;
-- Step 0037 meant to, and was held to the policies.
update session set provider_thread = null where closed_at is not null and provider_thread is not null;
alter table session force row level security;
alter table session
    drop column thread_number, drop column thread_live, drop column threads_lost, drop column told, drop column tokens_used,
    drop column failures_in_row;
