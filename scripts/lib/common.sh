# Shared by the verbs in scripts/: finds the tools, keeps the environment in the checkout up to
# date. Sourced, never run. Everything is made below $root: .venv (Python), target (cargo), .cache
# and out.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
cd "$root" || exit
venv="$root/.venv"
python="$venv/bin/python"
headers="$root/.cache/tf-headers"
headers_version=2.15.1
plugin="$root/python/mx_rec/libmx_rec.so"
adapter="$root/python/tf_adapter_cpu"
adapter_path="$venv/lib/python3.7/site-packages/mx_rec_tf_adapter.pth"

export CARGO_TARGET_DIR="$root/target"
export MPLCONFIGDIR="$root/.cache/matplotlib"
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_NO_CACHE_DIR=1
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"

say() { printf '==> %s\n' "$*" >&2; }

# die "what is wrong" <<'TEXT' ... what to do ... TEXT
die() {
    printf '\nerror: %s\n' "$1" >&2
    [ -t 0 ] || sed 's/^/  /' >&2
    exit 1
}

# Runs a command and shows its output only if it fails: quietly LOGNAME COMMAND...
quietly() {
    local log="$root/.cache/log/$1"
    shift
    mkdir -p "$(dirname "$log")"
    if ! "$@" >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        die "this failed: $*" <<TEXT
The lines above are the end of its output; all of it is in
$log
TEXT
    fi
}

# --- parts of a verb --------------------------------------------------------------------------

# run_parts VERB PART...: runs the functions VERB_PART in turn, whether or not one fails; fails if
# one did. Each gets what the caller has put into `arguments`.
arguments=()
run_parts() {
    local verb="$1" part failed=""
    shift
    for part in "$@"; do
        say "$verb: $part"
        "${verb}_$part" ${arguments[@]+"${arguments[@]}"} || failed="$failed $part"
    done
    if [ -n "$failed" ]; then
        say "failed:$failed"
        return 1
    fi
    say "passed: $*"
}

# start_beside LOG COMMAND...: runs a command beside what follows; its output goes to a file. The
# command is a process group of its own (set -m), which ends with this script.
start_beside() {
    beside_log="$root/.cache/log/$1"
    shift
    mkdir -p "$(dirname "$beside_log")"
    set -m
    "$@" >"$beside_log" 2>&1 </dev/null &
    beside_pid=$!
    set +m
    trap 'kill -- "-$beside_pid" 2>/dev/null || true' EXIT
}

# wait_beside: waits for that command, shows its output and fails if it failed.
wait_beside() {
    local code=0
    wait "$beside_pid" || code=$?
    trap - EXIT
    cat "$beside_log"
    return "$code"
}

# --- tools ------------------------------------------------------------------------------------

is_python37() {
    "$1" - <<'CODE' >/dev/null 2>&1
import platform, struct, sys
import ensurepip, venv
assert sys.version_info[:2] == (3, 7) and struct.calcsize("P") == 8
assert platform.machine() == "x86_64" and sys.platform == "linux"
CODE
}

# Prints the path of a Python 3.7: $PYTHON, else PATH, else pyenv.
find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        if candidate="$(command -v "$PYTHON")" && is_python37 "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
        die "\$PYTHON is '$PYTHON', which is no 64-bit Python 3.7 with venv and ensurepip" <<'TEXT'
Let it name one, for example
    PYTHON=/opt/python3.7/bin/python3.7 scripts/setup
or unset it to have PATH and pyenv searched.
TEXT
    fi
    for candidate in python3.7 python3 python; do
        if candidate="$(command -v "$candidate")" && is_python37 "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.7.*/bin/python3.7; do
        if [ -x "$candidate" ] && is_python37 "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    local pyenv="${PYENV_ROOT:-$HOME/.pyenv}"
    die "found no Python 3.7 (looked at \$PYTHON, PATH and $pyenv/versions)" <<'TEXT'
TensorFlow 1.15 has wheels for Python 3.7 and older only. Install one, for example with pyenv:
    apt-get install build-essential libssl-dev zlib1g-dev libbz2-dev libreadline-dev \
        libsqlite3-dev libffi-dev liblzma-dev
    pyenv install 3.7.16
or with conda:
    conda create -n python37 python=3.7
then run this again, with PYTHON=<path of python3.7> in front if it is neither on PATH nor in pyenv.
TEXT
}

# Puts cargo on PATH and checks that it is new enough.
need_cargo() {
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    local wanted found
    wanted="$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)"
    if ! command -v cargo >/dev/null; then
        die "found no cargo (looked at PATH and ${CARGO_HOME:-$HOME/.cargo}/bin)" <<TEXT
Install Rust $wanted or newer with rustup, as rustup.rs says:
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh
TEXT
    fi
    found="$(cargo --version 2>/dev/null | sed 's/^cargo \([0-9]*\.[0-9]*\).*/\1/')" || true
    if [ -z "$found" ]; then
        die "$(command -v cargo) does not run" <<'TEXT'
If rustup has no toolchain yet:
    rustup default stable
TEXT
    fi
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        die "cargo is of version $found, but $wanted or newer is needed" <<'TEXT'
    rustup update stable
TEXT
    fi
}

# The linker of the plugin and the compiler of the tests' C files.
need_cc() {
    command -v "${CC:-cc}" >/dev/null || die "found no C compiler ('${CC:-cc}')" <<'TEXT'
The linker and the tests need one:
    apt-get install gcc libc6-dev
TEXT
}

# --- the environment --------------------------------------------------------------------------

# Only one script at a time changes .venv, .cache and the plugin.
lock_checkout() {
    mkdir -p "$root/.cache"
    if command -v flock >/dev/null; then
        exec 9>"$root/.cache/setup.lock"
        flock -n 9 || { say "waiting for another script in this checkout"; flock 9; }
    fi
}

unlock_checkout() { exec 9>&-; }

venv_works() { [ -x "$python" ] && is_python37 "$python"; }

# What the packages of requirements/$1.txt in this environment depend on.
stamp_of() {
    {
        printf '%s\n' "$root"
        "$python" --version
        cat requirements/runtime.txt "requirements/$1.txt"
    } | sha256sum | cut -d ' ' -f 1
}

# Installs requirements/$1.txt unless the stamp says that it is installed.
install_requirements() {
    local stamp="$venv/.stamp-$1"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(stamp_of "$1")" ] && return
    say "installing requirements/$1.txt into .venv"
    rm -f "$stamp"
    # --no-deps: the files name every package, so the pins hold whatever the packages ask for;
    # pip check then tells whether they agree.
    # Only gast has no wheel.
    quietly "pip-$1.log" "$python" -m pip install --no-deps --only-binary=:all: --no-binary=gast \
        --requirement "requirements/$1.txt"
    quietly pip-check.log "$python" -m pip check
    stamp_of "$1" >"$stamp"
}

# .venv with the packages of requirements/runtime.txt and those of each argument.
ensure_environment() {
    if ! venv_works; then
        local base
        base="$(find_python)"
        say "creating .venv with $base"
        rm -rf "$venv"
        quietly venv.log "$base" -m venv "$venv"
    fi
    # A path file instead of an editable install: it needs no build and no network, works with every
    # setuptools, and edits of the package take effect at once. scripts/wheel tests the packaging.
    local site
    site="$venv/lib/python3.7/site-packages"
    if [ "$(cat "$site/mx_rec.pth" 2>/dev/null)" != "$root/python" ]; then
        printf '%s\n' "$root/python" >"$site/mx_rec.pth"
    fi
    ensure_adapter
    install_requirements runtime
    local extra
    for extra in "$@"; do
        install_requirements "$extra"
    done
}

# The stand-in for the vendor's tf_adapter, importable unless the vendor's is.
ensure_adapter() {
    local complaint
    if ! complaint="$("$python" "$adapter/tf_adapter/_stand_in.py" 2>&1)"; then
        say "leaving tf_adapter as it is: $complaint"
        rm -f "$adapter_path"
    elif [ "$(cat "$adapter_path" 2>/dev/null)" != "$adapter" ]; then
        printf '%s\n' "$adapter" >"$adapter_path"
    fi
}

# The plugin, built for release and placed beside the package.
ensure_plugin() {
    need_cc
    need_cargo
    [ -f "$CARGO_TARGET_DIR/release/libmx_rec.so" ] \
        || say "building the plugin for release: a few minutes the first time"
    cargo build --release --locked --quiet -p mx_rec
    local built="$CARGO_TARGET_DIR/release/libmx_rec.so"
    if ! cmp -s "$built" "$plugin"; then
        say "placing libmx_rec.so in python/mx_rec"
        # By renaming: a process that has the old file mapped keeps it.
        cp "$built" "$plugin.new"
        mv "$plugin.new" "$plugin"
    fi
}

# The C headers of a TensorFlow 2.x wheel, which tests hold our own C header against.
ensure_headers() {
    [ "$(cat "$headers/.version" 2>/dev/null)" = "$headers_version" ] && return
    say "fetching the C headers of TensorFlow $headers_version (a wheel of 200 MB, once)"
    local wheels="$root/.cache/tf-wheel"
    rm -rf "$headers" "$wheels"
    quietly headers.log "$python" -m pip download --no-deps --only-binary=:all: \
        --python-version 3.11 --platform manylinux2014_x86_64 --dest "$wheels" \
        "tensorflow-cpu==$headers_version"
    quietly headers.log "$python" scripts/lib/c_headers.py "$wheels"/*.whl "$headers"
    rm -rf "$wheels"
    printf '%s' "$headers_version" >"$headers/.version"
}
