-- Three references were looked up for each row of the hot path. A turn is written by the one who holds its session's row, and
-- joins the text of its instructions by its key; no role may delete a task, and who posts a message has read its task, or a
-- turn on it.
alter table turn
    drop constraint turn_account_id_session_id_fkey,
    drop constraint turn_account_id_profile_hash_fkey;
alter table message drop constraint message_account_id_task_id_fkey;
