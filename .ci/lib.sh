# Functions and versions that the scripts in this directory share. Source it, do not run it.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
export CARGO_TERM_COLOR=never

GUNGRAUN=0.20.0
MUTANTS_VERSION=27.1.0
tools="$root/target/ci-tools"
venv="$root/target/ci-venv"

# installed CRATE VERSION: succeeds if the tool is installed in exactly this version.
installed() {
    [ -x "$tools/bin/$1" ] && grep -q "\"$1 $2 " "$tools/.crates.toml" 2>/dev/null
}

# cargo_tool CRATE VERSION: builds the tool from source, once. It builds without optimisation, which
# is quicker and makes a tool that is fast enough.
cargo_tool() {
    if installed "$1" "$2"; then
        return
    fi
    env -u RUSTFLAGS -u CARGO_TARGET_DIR \
        CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo install --quiet --locked --force --root "$tools" --target-dir "$root/target/ci-tools-build" "$1@$2"
}

# python_tools: installs the prebuilt tools, pinned by hash, into a virtual environment.
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

# debian_package NAME...: installs the packages that are missing.
debian_package() {
    apt-get update -qq >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# bench ARGUMENTS...: runs `cargo bench` of the benches package with the pinned optimisation, which
# is thin LTO and one codegen unit.
bench() {
    CARGO_PROFILE_BENCH_LTO=thin CARGO_PROFILE_BENCH_CODEGEN_UNITS=1 \
        GUNGRAUN_RUNNER="$tools/bin/gungraun-runner" \
        cargo bench -p tower-breaker-benches "$@"
}

# callgrind_tools: installs the tools that count instructions.
callgrind_tools() {
    command -v valgrind >/dev/null || debian_package valgrind
    command -v objdump >/dev/null || debian_package binutils
    cargo_tool gungraun-runner "$GUNGRAUN"
}
