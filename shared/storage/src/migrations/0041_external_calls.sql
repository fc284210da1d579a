-- External calls: a tool's call of somebody outside of Signalbox is a row from its start on.
alter table tool_call
    -- the replica of the tool-gateway that runs it
    add column runner  uuid,
    -- when it ends without an answer
    add column due_at  timestamptz,
    add column model   text,
    -- what was sent: the context's version, artifacts, the text's hash, the tries
    add column request jsonb,
    -- as the model counted
    add column usage   jsonb;
create index tool_call_running on tool_call (runner) where state = 'running';

-- Running calls of a runner, and those of runners that are gone.
create policy sweep on tool_call for select to signalbox_sweeper using (true);
grant select (account_id, id, runner, state, started_at) on tool_call to signalbox_sweeper;
grant select (id, lease_until) on replica to signalbox_sweeper;
create function tool_call_running(mine uuid, row_limit integer) returns table (account_id text, id uuid, is_orphan boolean)
    language sql stable security definer set search_path = public, pg_temp as $$
    select c.account_id, c.id, c.runner <> mine from public.tool_call c
    where c.state = 'running'
      and (c.runner = mine or not exists (select from public.replica r where r.id = c.runner and r.lease_until > now()))
      and c.started_at < now() - interval '1 second'
    order by c.runner limit row_limit
$$;
alter function tool_call_running(uuid, integer) owner to signalbox_sweeper;
revoke all on function tool_call_running(uuid, integer) from public;
grant execute on function tool_call_running(uuid, integer) to signalbox_tool_gateway;
