-- A manifest is written with every turn and seldom read: packed, it takes a third of the bytes and no parsing. `manifest`
-- keeps the layout, which an older version needs to carry a turn on; older rows have their parts there.
alter table turn add column manifest_packed bytea;
