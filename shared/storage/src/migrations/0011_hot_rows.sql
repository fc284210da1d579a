-- What a notification costs on its way: its row was checked against four others, and its turn's texts were compressed by
-- the slower of Postgres' two methods. Measured in docs/adr/0034-work-per-notification.md.

-- An accepted notification is in a session of its account, and that session is held to an account, a task and an agent
-- that there are; its own three columns say the same again. None of these rows is ever deleted, and the composite keys
-- leave no way to name another account's.
alter table notification
    drop constraint notification_account_id_fkey,
    drop constraint notification_account_id_task_id_fkey,
    drop constraint notification_account_id_agent_id_fkey;
-- Written together with what it tells of, which is held to its task.
alter table activity drop constraint activity_account_id_task_id_fkey;

-- Rows above two kilobytes are compressed. A server that was built without this method keeps the other.
do $$ begin
    alter table turn
        alter column input set compression lz4,
        alter column manifest set compression lz4,
        alter column journal set compression lz4,
        alter column reply set compression lz4;
    alter table notification alter column body set compression lz4;
    alter table message alter column body set compression lz4;
exception when feature_not_supported then
    raise notice 'this server has no lz4: %', sqlerrm;
end $$;
