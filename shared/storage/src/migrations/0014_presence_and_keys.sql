-- The lock by which a process shows that it is there; none: its time alone tells. The server gives it up with the connection
-- that holds it, so that what may be taken over at once is.
alter table replica add column presence bigint;

-- A task is named by its key here as everywhere, so that its assignments are found by an index: statements that had to bring
-- it into that form first read all assignments of the account.
update account set coordinator_task = lower(coordinator_task) where coordinator_task <> lower(coordinator_task);
alter table account add constraint account_coordinator_task_check check (coordinator_task = lower(coordinator_task));
