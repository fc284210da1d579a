-- Removing an agent closes its open sessions. Without this index the statement that finds them reads all sessions of
-- the account. Its condition is written so that no other statement's condition implies it: with `closed_at is null`,
-- statements planned on a small table would use this index instead of the primary key.
create index session_of_agent on session (account_id, agent_id) where coalesce(closed_at, 'infinity') = 'infinity';
