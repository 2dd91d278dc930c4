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

export CARGO_TARGET_DIR="$root/target"
export MPLCONFIGDIR="$root/.cache/matplotlib"
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_NO_CACHE_DIR=1
# Images of Python often forbid it: each process that a test starts would compile the package anew.
unset PYTHONDONTWRITEBYTECODE
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"

verb="scripts/$(basename "$0")"
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
    at_exit '[ -z "$beside_pid" ] || kill -- "-$beside_pid" 2>/dev/null || true'
}

# at_exit COMMAND: has the script run a command at its end, before those that it was told earlier.
at_exit_commands=""
at_exit() {
    at_exit_commands="$1; $at_exit_commands"
    # shellcheck disable=SC2064
    trap "$at_exit_commands" EXIT
}

# What is written to temporary files lies in memory if there is room: tests sync thousands of them.
keep_files_in_memory() {
    local free
    [ -z "${TMPDIR:-}" ] && [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] || return 0
    free=$(df --output=avail -k /dev/shm | tail -n 1)
    [ "$free" -gt 4194304 ] || return 0
    TMPDIR=$(mktemp -d /dev/shm/mx_rec.XXXXXX)
    export TMPDIR
    at_exit 'rm -rf "$TMPDIR"'
}

# wait_beside: waits for that command, shows its output and fails if it failed.
wait_beside() {
    local code=0
    wait "$beside_pid" || code=$?
    beside_pid=""
    cat "$beside_log"
    return "$code"
}

# --- tools ------------------------------------------------------------------------------------

# Pythons that .venv can be made with, the best first, each with its TensorFlow: the newest that
# has Estimators, else the newest. requirements/tensorflow-*.txt has the packages of each.
pythons="3.7 3.13 3.12 3.11 3.10 3.9 3.8"
tensorflow_of() {
    case "$1" in
        3.7) echo 1.15.5 ;;
        3.8) echo 2.13.1 ;;
        3.9 | 3.10 | 3.11) echo 2.15.1 ;;
        3.12 | 3.13) echo 2.21.0 ;;
        *) return 1 ;;
    esac
}

# version_of PYTHON: prints "3.7" for a 64-bit CPython 3.7 that can make environments; fails for
# what TensorFlow has no wheels for.
version_of() {
    "$1" - 2>/dev/null <<'CODE'
import platform, struct, sys
import ensurepip, venv
assert struct.calcsize("P") == 8 and sys.platform == "linux"
assert platform.machine() == "x86_64" and platform.python_implementation() == "CPython"
assert "t" not in sys.abiflags  # which has no global lock
print("%d.%d" % sys.version_info[:2])
CODE
}

# candidates VERSION: paths where a Python of this version may be: PATH, pyenv, uv, conda.
candidates() {
    local name home
    for name in "python$1" python3 python; do
        command -v "$name" || true
    done
    printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python"$1"
    home="${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}"
    printf '%s\n' "$home"/cpython-"$1".*/bin/python"$1"
    # conda lists all environments there, wherever they are.
    if [ -f "$HOME/.conda/environments.txt" ]; then
        sed "s|\$|/bin/python$1|" "$HOME/.conda/environments.txt"
    fi
    for home in "${CONDA_PREFIX:-}" "$HOME"/{mini,ana}conda3 "$HOME"/mini{forge,mamba}3; do
        if [ -n "$home" ]; then
            printf '%s\n' "$home/bin/python$1" "$home"/envs/*/bin/python"$1"
        fi
    done
}

# find_version VERSION: prints the path of a Python of this version, or fails.
find_version() {
    local candidate
    while IFS= read -r candidate; do
        if [ -x "$candidate" ] && [ "$(version_of "$candidate")" = "$1" ]; then
            printf '%s\n' "$candidate"
            return
        fi
    done < <(candidates "$1")
    return 1
}

# Prints the path of the Python that .venv is made with: $PYTHON, else the best that is found.
find_python() {
    local candidate version
    if [ -n "${PYTHON:-}" ]; then
        if candidate="$(command -v "$PYTHON")" && version="$(version_of "$candidate")" \
            && tensorflow_of "$version" >/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
        die "\$PYTHON is '$PYTHON', which is no Python that can be used" <<TEXT
It has to be a 64-bit CPython for x86-64 Linux with venv and ensurepip, of one of the versions
    $pythons
Let it name one, for example
    PYTHON=/opt/python3.7/bin/python3.7 scripts/setup
or unset it to have PATH, pyenv, uv and conda searched.
TEXT
    fi
    for version in $pythons; do
        find_version "$version" && return
    done
    die "found no Python that has a TensorFlow (looked at \$PYTHON, PATH, pyenv, uv, conda)" <<TEXT
Any of these will do, 3.7 being the one for TensorFlow 1.15; it needs venv and ensurepip, which
Debian and Ubuntu have in a package of their own, python3-venv:
    $pythons
$(how_to_get_python37)
then run this again, with PYTHON=<path of python> in front if it is in none of these places.
TEXT
}

how_to_get_python37() {
    cat <<'TEXT'
Python 3.7 is there for example with pyenv, uv or conda:
    pyenv install 3.7
    uv python install 3.7
    conda create -n python37 python=3.7
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

# site_packages DIRECTORY: where an environment has its packages.
site_packages() { printf '%s\n' "$1"/lib/python3.*/site-packages; }

# What the packages of an environment depend on: stamp_of DIRECTORY FILE...
stamp_of() {
    local directory="$1"
    shift
    { printf '%s\n' "$directory" && "$directory/bin/python" --version && cat "$@"; } 2>&1 \
        | sha256sum | cut -d ' ' -f 1
}

# Further options of pip install.
pip_options=()

# install_requirements DIRECTORY NAME [PACKAGE...]: installs requirements/NAME.txt and the packages
# into an environment, unless its stamp says that they are installed.
install_requirements() {
    local directory="$1" name="$2" stamp wanted log
    shift 2
    log="$(basename "$directory")"
    stamp="$directory/.stamp-$name"
    wanted="$(stamp_of "$directory" "requirements/$name.txt") $*"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    say "installing requirements/$name.txt${*:+ and $*} into ${directory#"$root/"}"
    rm -f "$stamp"
    # --no-deps: the files name every package, so the pins hold whatever the packages ask for;
    # pip check then tells whether they agree.
    quietly "pip-$log-$name.log" "$directory/bin/python" -m pip install --no-deps \
        --only-binary=:all: ${pip_options[@]+"${pip_options[@]}"} \
        --requirement "requirements/$name.txt" "$@"
    quietly "pip-$log-check.log" "$directory/bin/python" -m pip check
    printf '%s\n' "$wanted" >"$stamp"
}

# make_environment DIRECTORY PYTHON TENSORFLOW [NAME...]: an environment with this TensorFlow (as
# in 1.15.5), the packages that it needs, and those of each requirements/NAME.txt. Does what is not
# done yet, and starts anew where the directory has another Python.
make_environment() {
    local directory="$1" base="$2" version="$3" name minor package
    shift 3
    minor="$(version_of "$base")"
    if [ "$(version_of "$directory/bin/python")" != "$minor" ]; then
        say "creating ${directory#"$root/"} with Python $minor, $base"
        rm -rf "$directory"
        quietly venv.log "$base" -m venv "$directory"
        # Its own knows no wheels of manylinux2014, and trips over PIP_NO_CACHE_DIR=1.
        if [ "$minor" = 3.6 ]; then
            quietly pip.log env -u PIP_NO_CACHE_DIR "$directory/bin/python" -m pip install \
                --no-cache-dir pip==21.3.1
        fi
    fi
    # The plain package of 2.x is for GPUs.
    case "$version" in
        1.*) package="tensorflow==$version" ;;
        *) package="tensorflow-cpu==$version" ;;
    esac
    install_requirements "$directory" "tensorflow-${version%.*}" "$package"
    for name in "$@"; do
        install_requirements "$directory" "$name"
    done
}

# The TensorFlow of .venv, as in 1.15.5.
tensorflow_version() { tensorflow_of "$(version_of "$python")"; }

# say_chosen: says what .venv was made with, and how to get 1.15 if it is not that.
say_chosen() {
    local version
    version="$(version_of "$python")"
    case "$(tensorflow_of "$version")" in
        1.*) say ".venv has Python $version and TensorFlow $(tensorflow_of "$version")" ;;
        *)
            say "chose Python $version with TensorFlow $(tensorflow_of "$version");" \
                "TensorFlow 1.15 needs Python 3.7 (pyenv install 3.7, uv python install 3.7, or" \
                "conda create -n python37 python=3.7) and then PYTHON=<path of python3.7> $verb"
            ;;
    esac
}

# The TensorFlow 2.x that is tested beside 1.15: that of .venv, or if this is 1.15, one in
# .cache/tf2. `tf2` is then the Python of its environment, or empty if this machine has none.
ensure_tensorflow2() {
    tf2="$python"
    case "$(tensorflow_version)" in 1.*) make_tensorflow2 ;; esac
}

# The second of these. It may run beside whatever needs only .venv, hence a lock of its own.
make_tensorflow2() {
    local version base
    tf2=""
    for version in $pythons; do
        case "$(tensorflow_of "$version")" in 1.*) continue ;; esac
        if base="$(find_version "$version")"; then
            mkdir -p "$root/.cache"
            (
                ! command -v flock >/dev/null || { exec 8>"$root/.cache/tf2.lock" && flock 8; }
                # Compiling all of TensorFlow takes longer than compiling what tests import.
                pip_options=(--no-compile)
                make_environment "$root/.cache/tf2" "$base" "$(tensorflow_of "$version")"
            )
            tf2="$root/.cache/tf2/bin/python"
            return
        fi
    done
}

# tf2_libraries: the directory with the libraries and the headers of that TensorFlow.
tf2_libraries() { printf '%s/tensorflow\n' "$(site_packages "${tf2%/bin/python}")"; }

# .venv with TensorFlow and the packages of requirements/plots.txt and of each argument's file. It
# keeps its Python while that runs, unless $PYTHON names another.
# shellcheck disable=SC2120  # the verbs pass arguments, this file none
ensure_environment() {
    local base="$python" version
    version="$(version_of "$python")" || version=""
    if [ -n "${PYTHON:-}" ] || ! tensorflow_of "$version" >/dev/null; then
        base="$(find_python)"
        version="$(version_of "$base")"
    fi
    make_environment "$venv" "$base" "$(tensorflow_of "$version")" plots "$@"
    # A path file instead of an editable install: it needs no build and no network, works with every
    # setuptools, and edits of the package take effect at once. scripts/wheel tests the packaging.
    local site
    site="$(site_packages "$venv")"
    if [ "$(cat "$site/mx_rec.pth" 2>/dev/null)" != "$root/python" ]; then
        printf '%s\n' "$root/python" >"$site/mx_rec.pth"
    fi
    ensure_adapter
}

# The path file by which .venv finds the stand-in for the vendor's tf_adapter.
adapter_path() { printf '%s/mx_rec_tf_adapter.pth\n' "$(site_packages "$venv")"; }

# The stand-in for the vendor's tf_adapter, importable unless the vendor's is.
ensure_adapter() {
    local complaint
    if ! complaint="$("$python" "$adapter/tf_adapter/_stand_in.py" 2>&1)"; then
        say "leaving tf_adapter as it is: $complaint"
        rm -f "$(adapter_path)"
    elif [ "$(cat "$(adapter_path)" 2>/dev/null)" != "$adapter" ]; then
        printf '%s\n' "$adapter" >"$(adapter_path)"
    fi
}

# The plugin, built and placed beside the package; for release, or in another profile of Cargo.toml.
plugin_profile=release
ensure_plugin() {
    need_cc
    need_cargo
    local built="$CARGO_TARGET_DIR/${plugin_profile/#dev/debug}/libmx_rec.so"
    [ -f "$built" ] || say "building the plugin ($plugin_profile): a few minutes the first time"
    cargo build --profile "$plugin_profile" --locked --quiet -p mx_rec
    if ! cmp -s "$built" "$plugin"; then
        say "placing libmx_rec.so in python/mx_rec"
        # By renaming: a process that has the old file mapped keeps it.
        cp "$built" "$plugin.new"
        mv "$plugin.new" "$plugin"
    fi
}

# The C headers of a TensorFlow 2.x, which tests hold our own C header against: of `tf2`, or if
# this machine has no Python for one, out of a wheel.
ensure_headers() {
    if [ -n "$tf2" ]; then
        MX_REC_TF_HEADERS="$(tf2_libraries)/include"
        export MX_REC_TF_HEADERS
        return
    fi
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

# Becomes a script of scripts/lib with these arguments: set up first, but not to print its help.
# Usage: become NAME.py DIRECTORY_OF_THE_CALLER [ARGUMENT...]
become() {
    local script="$root/scripts/lib/$1" caller="$2"
    shift 2
    case "${1:-}" in
        "" | -h | --help) ;;
        *)
            need_cc
            need_cargo
            lock_checkout
            ensure_environment
            ensure_plugin
            unlock_checkout
            ;;
    esac
    local runner="$python"
    [ -x "$runner" ] || runner=python3
    # Paths of the arguments are those of the caller.
    cd "$caller" || exit
    exec "$runner" "$script" "${@:---help}"
}
