# Runs one Postgres for the test processes of a run, and ends it when none has used it for IDLE_SECONDS.
# Usage: sh shared_postgres.sh DIRECTORY IDLE_SECONDS CLUSTER COMMAND...
# DIRECTORY/users is locked (shared) by every test process until it ends, and touched when it starts.
# DIRECTORY/start is locked by the process that starts or ends the server: a process that starts meanwhile waits, and then
# starts another server.
directory=$1 idle_limit=$2 cluster=$3
shift 3

"$@" &
server=$!
trap 'kill -s INT "$server"' INT TERM HUP

last_used=$(date +%s)
while kill -s 0 "$server" 2>/dev/null; do
    sleep 1
    now=$(date +%s)
    touched=$(stat -c %Y "$directory/users")
    flock --nonblock --exclusive "$directory/users" true || last_used=$now
    [ "$touched" -gt "$last_used" ] && last_used=$touched
    [ $((now - last_used)) -ge "$idle_limit" ] || continue

    exec 9>>"$directory/start"
    flock 9
    if flock --nonblock --exclusive "$directory/users" true && [ "$(stat -c %Y "$directory/users")" = "$touched" ]; then
        kill -s INT "$server"
        wait "$server"
        rm -f "$directory/state.json"
        # Hundreds of databases take minutes to remove on a busy machine, so this runs in the background.
        mv "$cluster" "$cluster.ended.$$"
        exec 9>&-
        rm -rf "$cluster.ended.$$"
        exit 0
    fi
    exec 9>&-
done
