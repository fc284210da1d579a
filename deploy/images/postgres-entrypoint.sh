#!/bin/bash
# The part of the public Postgres image's entrypoint that docker-compose.yml uses: the first start creates the cluster
# with POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB, and runs /docker-entrypoint-initdb.d. Runs as user postgres.
set -euo pipefail

if [ "${1:-}" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?}" "${POSTGRES_USER:=postgres}" "${POSTGRES_DB:=$POSTGRES_USER}"
    # shellcheck disable=SC2086  # several arguments, as in the public image
    initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") \
        ${POSTGRES_INITDB_ARGS:-}
    printf '\nhost all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    # Postgres listens on its socket only, so that no client connects before the setup is complete.
    pg_ctl --pgdata="$PGDATA" --options="-c listen_addresses=''" --wait start
    export PGUSER=$POSTGRES_USER PGPASSWORD=$POSTGRES_PASSWORD
    [ "$POSTGRES_DB" = postgres ] || createdb "$POSTGRES_DB"
    for file in /docker-entrypoint-initdb.d/*; do
        case $file in
        *.sh) echo "running $file" && sh "$file" ;;
        *.sql) echo "running $file" && psql --set ON_ERROR_STOP=1 --dbname "$POSTGRES_DB" --file "$file" ;;
        esac
    done
    pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
    unset PGUSER PGPASSWORD
fi
exec "$@" -c listen_addresses='*'
