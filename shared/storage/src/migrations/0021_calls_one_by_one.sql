-- Of a turn's tool calls the next one is asked for when the one before is over: the place of the one that was asked for last.
-- Rows of an older version have none, and are asked for again at the time that they were to be.
alter table session add column asked integer not null default 0;
