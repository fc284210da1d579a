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
create index mail_put_off_for on mail (account_id, context_task_id) where surface_at <> created_at and to_user is not null;
-- The end of a task brings back what its people have put off about it. Whoever ends the task may not read what people write to each other.
-- The account is the transaction's own: the policy of mail says so.
grant select (to_user, context_task_id, archived_at, surface_at, created_at), update (surface_at) on mail to signalbox_sweeper;
create function mail_back(of_account text, of_task text) returns void
    language sql volatile security definer set search_path = public, pg_temp as $$
    update public.mail m set surface_at = now()
    where m.account_id = of_account and m.context_task_id = of_task and m.surface_at <> m.created_at and m.to_user is not null
      and m.archived_at is null and m.surface_at > now()
$$;
alter function mail_back(text, text) owner to signalbox_sweeper;
revoke all on function mail_back(text, text) from public;
grant execute on function mail_back(text, text) to signalbox_orchestrator, signalbox_tool_gateway;
