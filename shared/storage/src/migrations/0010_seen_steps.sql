-- A service sees which steps were run, so that its start can refuse a schema that lacks some. Before this one no role of a
-- service could, and a login that may do nothing but take its role could not tell. The table is the migrations' own; a
-- database that was made from this text without them has none.

do $$
begin
    if to_regclass('seaql_migrations') is not null then
        grant select on seaql_migrations
            to signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator;
    end if;
end $$;
