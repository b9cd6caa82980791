# What the scripts beside this one share. To be sourced.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
export CARGO_TERM_COLOR=never

GUNGRAUN=0.20.0
MUTANTS_VERSION=27.1.0
tools="$root/target/ci-tools"
venv="$root/target/ci-venv"

# installed CRATE VERSION: whether the tool is there, in that version.
installed() {
    [ -x "$tools/bin/$1" ] && grep -q "\"$1 $2 " "$tools/.crates.toml" 2>/dev/null
}

# cargo_tool CRATE VERSION: builds the tool from source, once. It is quick to build and good enough to run without optimisation.
cargo_tool() {
    if installed "$1" "$2"; then
        return
    fi
    env -u RUSTFLAGS -u CARGO_TARGET_DIR \
        CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo install --quiet --locked --force --root "$tools" --target-dir "$root/target/ci-tools-build" "$1@$2"
}

# python_tools: the prebuilt tools, pinned by hash, in an environment of their own.
python_tools() {
    if [ -e "$venv/done" ] && cmp -s "$venv/done" .ci/requirements.txt; then
        return
    fi
    if ! python3 -m venv --clear "$venv"; then
        debian_package python3-venv
        python3 -m venv --clear "$venv"
    fi
    "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements.txt
    cp .ci/requirements.txt "$venv/done"
}

# debian_package NAME...: installs what is missing.
debian_package() {
    apt-get update -qq >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# bench ARGUMENTS...: `cargo bench` of the benches package, optimised as a release that cares for speed is.
bench() {
    CARGO_PROFILE_BENCH_LTO=thin CARGO_PROFILE_BENCH_CODEGEN_UNITS=1 \
        GUNGRAUN_RUNNER="$tools/bin/gungraun-runner" \
        cargo bench -p tower-breaker-benches "$@"
}

# callgrind_tools: what instruction counts need.
callgrind_tools() {
    command -v valgrind >/dev/null || debian_package valgrind
    command -v objdump >/dev/null || debian_package binutils
    cargo_tool gungraun-runner "$GUNGRAUN"
}
