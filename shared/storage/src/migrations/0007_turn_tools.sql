-- What the calls of a turn may do is on its row, written by whoever began it.
alter table turn
    -- the tools that it was offered; its calls may use no others. Absent on a turn that an older version began
    add column tools         text[],
    -- how long its calls count after they were asked for (waiting_since). Absent as above
    add column tools_wait_ms bigint;
