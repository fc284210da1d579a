-- A key may be made for a time; after it, it is worth nothing. It is listed until it is revoked.
alter table api_key add column expires_at timestamptz check (expires_at > created_at);
