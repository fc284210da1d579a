#!/bin/sh
# Runs once, when the database is created. Creates the logins (SECURITY.md): `signalbox` owns the tables and migrates, and is
# no superuser; `login_…` of each service may only take its role. The login `postgres` is for the administrator of the server.
# Passwords come from the environment and are passed as variables of psql, so that none can end a statement.
set -eu

sql() {
    psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" "$@"
}

sql --set database="$POSTGRES_DB" --set password="$SIGNALBOX_DATABASE_OWNER" <<'SQL'
create role signalbox login password :'password';
alter database :"database" owner to signalbox;
-- The roles that services run as, with only those grants that the owner needs to give them their rights.
create role signalbox_resolver nologin;
create role signalbox_delivery nologin;
create role signalbox_tool_gateway nologin;
create role signalbox_orchestrator nologin;
create role signalbox_sweeper nologin;
grant signalbox_resolver, signalbox_delivery, signalbox_tool_gateway, signalbox_orchestrator, signalbox_sweeper to signalbox;
-- For the first migration, which revokes it.
grant create on schema public to signalbox_sweeper;
SQL

login() {
    sql --set role="signalbox_$1" --set login="login_$1" --set password="$2" <<'SQL'
create role :"login" login noinherit password :'password' in role :"role";
SQL
}
login resolver "$SIGNALBOX_DATABASE_RESOLVER"
login delivery "$SIGNALBOX_DATABASE_DELIVERY"
login tool_gateway "$SIGNALBOX_DATABASE_TOOL_GATEWAY"
login orchestrator "$SIGNALBOX_DATABASE_ORCHESTRATOR"
