-- The account's orchestrator looks up which person has an address.
grant select (email) on member to signalbox_tool_gateway;

-- Mail is removed some time after it is over: mail to a session after its outcome, mail to a person after it was archived.
drop index mail_over;
create index mail_over on mail (account_id, (case when to_session is null then archived_at else settled_at end))
    where case when to_session is null then archived_at else settled_at end is not null;
grant delete on mail to signalbox_orchestrator;

-- When the item of mail that bounced was sent again: what its item was before is not its end.
alter table mail add column again_at timestamptz;
grant update (again_at) on mail to signalbox_orchestrator;

-- New mail in a thread brings what was put off back: a thread may be long, and little of it is ever put off.
create index mail_put_off on mail (account_id, thread_id, created_at) where surface_at <> created_at;
