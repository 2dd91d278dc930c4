# scripts/stress matrix: every feature on every TensorFlow that docs/compatibility.md has a column
# for. Sourced after common.sh.
# shellcheck shell=bash
# shellcheck disable=SC2154  # common.sh sets root and python

# TensorFlow:Python, the columns of the table from left to right; the last one is the newest.
matrix_columns="1.15.0:3.6 1.15.0:3.7 1.15.5:3.6 1.15.5:3.7 2.6.5:3.8 2.6.5:3.9 2.11.1:3.9 \
2.15.1:3.11 2.21.0:3.13"
matrix_out="$root/.cache/matrix"

# run_matrix [VERSION...]: makes the environments of these versions of TensorFlow (all without an
# argument), tries every feature, and writes the table when all columns were tried.
run_matrix() {
    local column version minor base failed=0 chosen=()
    mkdir -p "$matrix_out/exchange"
    for column in $matrix_columns; do
        version="${column%:*}" minor="${column#*:}"
        if [ $# -gt 0 ] && [[ " $* " != *" $version "* ]]; then continue; fi
        if ! base="$(find_version "$minor")"; then
            say "left out: found no Python $minor for TensorFlow $version"
            failed=1
            continue
        fi
        make_environment "$matrix_out/$version-py$minor" "$base" "$version"
        chosen+=("$version-py$minor")
    done
    [ ${#chosen[@]} -gt 0 ] || die "no column has TensorFlow $*" </dev/null
    # Each leaves its checkpoint before anyone restores those of the others.
    for column in "${chosen[@]}"; do
        "$matrix_out/$column/bin/python" tests/matrix/run.py --only "save here" \
            --exchange "$matrix_out/exchange" || failed=1
    done
    for column in "${chosen[@]}"; do
        "$matrix_out/$column/bin/python" tests/matrix/run.py --exchange "$matrix_out/exchange" \
            --out "$matrix_out/$column.json" || failed=1
        case "$column" in
            1.*) ;;
            *)
                "$matrix_out/$column/bin/python" tests/matrix/run.py --mode graph \
                    --out "$matrix_out/$column-graph.json" || failed=1
                ;;
        esac
    done
    # shellcheck disable=SC2086
    "$python" tests/matrix/table.py docs/compatibility.md --results "$matrix_out" \
        --columns $matrix_columns || failed=1
    return "$failed"
}
