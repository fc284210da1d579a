-- The routing log reads all of an account's mail in the order in which it came.
create index mail_newest on mail (account_id, created_at, id);
