-- Whose word it is that this is the sender or author: the name of the service that names another, or speaks on behalf of a
-- person. None: they speak for themselves, as all did before.
alter table notification add column sender_via text;
alter table message add column author_via text;
