# Environments of the engines that scripts/bench --peers measures beside ours. Sourced, never run.
# shellcheck shell=bash

# Prints the path of a Python 3.11, or nothing: $PEER_PYTHON, PATH, pyenv.
peer_python() {
    local candidate
    for candidate in "${PEER_PYTHON:-}" "$(command -v python3.11)" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11.*/bin/python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
}

# peer_environment NAME: makes .cache/peers/NAME from requirements/peer-NAME.txt if it is not there,
# and prints the path of its Python; says why and prints nothing if it cannot be made.
peer_environment() {
    local name="$1" base place log stamp
    place=".cache/peers/$name"
    log="$place.log"
    stamp="$place/.complete"
    if ! cmp -s "requirements/peer-$name.txt" "$stamp"; then
        base=$(peer_python)
        if [ -z "$base" ]; then
            echo "$name left out: found no Python 3.11 (\$PEER_PYTHON, PATH, pyenv)" >&2
            return
        fi
        echo "making $place, once" >&2
        rm -rf "$place"
        mkdir -p .cache/peers
        if ! { "$base" -m venv "$place" && "$place/bin/python" -m pip install --no-cache-dir \
            --disable-pip-version-check -r "requirements/peer-$name.txt"; } >"$log" 2>&1; then
            echo "$name left out: it could not be installed; the end of $log:" >&2
            tail -n 5 "$log" >&2
            return
        fi
        cp "requirements/peer-$name.txt" "$stamp"
    fi
    printf '%s\n' "$place/bin/python"
}
