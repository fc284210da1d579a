-- The lists of orchestrators' turns and boards, apart from the columns: while an index is built, its table is read.
-- The column never changes, so updates of a turn stay in place.
create index turn_of_person on turn (account_id, user_id, started_at, id) where user_id is not null;
-- What a session has made. Neither does this one change.
create index session_of_parent on session (account_id, parent_session_id, opened_at, id) where parent_session_id is not null;
