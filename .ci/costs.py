"""Prints what a call costs beyond the bare service, and checks the limits.

usage: python3 .ci/costs.py PROFILES [peers]

PROFILES holds one directory per benchmark of `benches/benches/instructions.rs`, with its callgrind
profile. The limits of instructions are in the benchmark. Callgrind does not count locked
instructions and clock reads, so this script counts them, and their limits are here. With `peers`
it prints the table and checks nothing.
"""

import collections
import pathlib
import re
import subprocess
import sys

CALLS = 10_000

# row: (the bare run to compare with, most locked instructions, most clock reads)
LIMITS = {
    "closed.success": ("bare.success", 2, 0),
    "closed.success_boxed_refusals": ("bare.success", 2, 0),
    "closed_by_turns.success_and_failure": ("bare_by_turns.success_and_failure", 3, 0),
    "refusal.no_name": ("bare.success", 0, 1),
    "refusal.static_name": ("bare.success", 0, 1),
    "refusal.run_time_name": ("bare.success", None, 1),
    "refusal.boxed": ("bare.success", None, 1),
    "per_key.success": ("bare_per_key.success", 6, 0),
    "fallback.primary": ("bare.success", 3, 0),
    "fallback.rewriting": ("bare.success", 3, 0),
    "tripwire.success": ("bare_lines.success", 4, 0),
    # These are per frame, not per call.
    "body.of_a_call": ("bare_frames.frame", 0, 0),
    "body.of_a_turn": ("bare_frames.frame", 0, 0),
    "body.in_a_fence": ("bare_frames.frame", 0, 0),
    "body.of_a_probe": ("bare_frames.frame", 1, 1),
}


def locked_addresses(binary, known={}):
    """Returns the addresses of instructions that lock: a `lock` prefix, or `xchg` with memory."""
    if binary not in known:
        known[binary] = set()
        listing = subprocess.run(
            ["objdump", "--disassemble", "--no-show-raw-insn", binary], capture_output=True, text=True, check=False
        ).stdout
        for line in listing.splitlines():
            address, _, instruction = line.strip().partition(":")
            instruction = instruction.strip()
            if instruction.startswith("lock ") or re.match(r"xchg\w*\s.*\(", instruction):
                known[binary].add(int(address, 16))
    return known[binary]


def profile(path):
    """Returns (instructions, locked instructions, clock reads) of one run."""
    costs = collections.Counter()
    clock = collections.Counter()
    summary, binary, function, is_call = 0, None, "", False
    for line in path.read_text().splitlines():
        key, _, value = line.partition("=")
        if line.startswith("positions:"):
            assert line.split()[1:] == ["instr", "line"], f"{path}: has no addresses: run callgrind with --dump-instr=yes"
        elif line.startswith("summary:"):
            summary = int(line.split()[1])
        elif key == "ob":
            binary = value
        elif key == "fn":
            function = value
        elif key == "calls":
            is_call = True  # The next line is the callee's cost, which is counted in the callee.
        elif line.startswith("0x"):
            if not is_call:
                address, _, executed, *_ = line.split()
                costs[binary, int(address, 16)] += int(executed)
                if function.startswith("clock_gettime"):
                    clock[int(address, 16)] += int(executed)
            is_call = False
    assert sum(costs.values()) == summary, f"{path}: {sum(costs.values())} instructions of {summary} understood"
    locked = sum(n for (binary, address), n in costs.items() if binary != "???" and address in locked_addresses(binary))
    # The lowest address of a function is its entry, which runs once per call.
    return summary, locked, clock[min(clock)] if clock else 0


def main():
    profiles, published_only = pathlib.Path(sys.argv[1]), "peers" in sys.argv[2:]
    runs = {}
    for path in sorted(profiles.glob("*/callgrind.*.out")):
        runs[path.parent.name] = tuple(n / CALLS for n in profile(path))
    if not runs:
        sys.exit(f"{profiles} has no profiles: run `bash .ci/instructions`")
    if missing := LIMITS.keys() - runs.keys():
        if not published_only:
            sys.exit(f"{profiles} has no profile of {', '.join(sorted(missing))}: the benchmark must run it")

    failures = []
    print(f"{'beyond the bare service, per call':<40} {'instructions':>12} {'locked':>8} {'clock':>8}")
    for row, (instructions, locked, clock) in runs.items():
        bare, locked_limit, clock_limit = LIMITS.get(row, ("bare.success", None, None))
        if bare not in runs or row.startswith("bare"):
            print(f"{row + ' (whole)':<40} {instructions:>12.2f} {locked:>8.2f} {clock:>8.2f}")
            continue
        print(f"{row:<40} {instructions - runs[bare][0]:>12.2f} {locked:>8.2f} {clock:>8.2f}")
        # The start of a run may cost a little once. A call costs a whole number.
        for name, cost, limit in [("locked instructions", locked, locked_limit), ("clock reads", clock, clock_limit)]:
            if limit is not None and cost > limit + 0.01:
                failures.append(f"{row}: {cost:.2f} {name} per call, more than the limit of {limit}")
    if failures and not published_only:
        sys.exit("\n".join(failures))


main()
