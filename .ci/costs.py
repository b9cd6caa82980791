"""What a call costs beyond the bare service, from the callgrind profiles of `benches/benches/instructions.rs`.

usage: python3 .ci/costs.py PROFILES [peers]

PROFILES is the directory that holds one directory per benchmark. Instructions have their limits in the benchmark
itself; the locked instructions and the clock reads, which callgrind does not count, have theirs here. With `peers` the
table is printed and nothing is limited.
"""

import collections
import pathlib
import re
import subprocess
import sys

CALLS = 10_000

# row: (the bare run it is compared with, locked instructions at most, clock reads at most)
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
    # Of a frame, and not of a call.
    "body.of_a_call": ("bare_frames.frame", 0, 0),
    "body.of_a_turn": ("bare_frames.frame", 0, 0),
    "body.in_a_fence": ("bare_frames.frame", 0, 0),
    "body.of_a_probe": ("bare_frames.frame", 1, 1),
}


def locked_addresses(binary, known={}):
    """The addresses of the instructions that lock the bus: a `lock` prefix, or `xchg` with memory."""
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
    """(instructions, locked instructions, clock reads) of one run."""
    costs = collections.Counter()
    clock = collections.Counter()
    summary, binary, function, is_call = 0, None, "", False
    for line in path.read_text().splitlines():
        key, _, value = line.partition("=")
        if line.startswith("positions:"):
            assert line.split()[1:] == ["instr", "line"], f"{path}: run with --dump-instr=yes"
        elif line.startswith("summary:"):
            summary = int(line.split()[1])
        elif key == "ob":
            binary = value
        elif key == "fn":
            function = value
        elif key == "calls":
            is_call = True  # the next line is what the callee cost, which is counted there
        elif line.startswith("0x"):
            if not is_call:
                address, _, executed, *_ = line.split()
                costs[binary, int(address, 16)] += int(executed)
                if function.startswith("clock_gettime"):
                    clock[int(address, 16)] += int(executed)
            is_call = False
    assert sum(costs.values()) == summary, f"{path}: {sum(costs.values())} instructions of {summary} understood"
    locked = sum(n for (binary, address), n in costs.items() if binary != "???" and address in locked_addresses(binary))
    # A function's lowest address is its entry: it runs once a call.
    return summary, locked, clock[min(clock)] if clock else 0


def main():
    profiles, published_only = pathlib.Path(sys.argv[1]), "peers" in sys.argv[2:]
    runs = {}
    for path in sorted(profiles.glob("*/callgrind.*.out")):
        runs[path.parent.name] = tuple(n / CALLS for n in profile(path))
    if not runs:
        sys.exit(f"no profiles in {profiles}")
    if missing := LIMITS.keys() - runs.keys():
        if not published_only:
            sys.exit(f"no profile of {', '.join(sorted(missing))}")

    failures = []
    print(f"{'beyond the bare service, per call':<40} {'instructions':>12} {'locked':>8} {'clock':>8}")
    for row, (instructions, locked, clock) in runs.items():
        bare, locked_limit, clock_limit = LIMITS.get(row, ("bare.success", None, None))
        if bare not in runs or row.startswith("bare"):
            print(f"{row + ' (whole)':<40} {instructions:>12.2f} {locked:>8.2f} {clock:>8.2f}")
            continue
        print(f"{row:<40} {instructions - runs[bare][0]:>12.2f} {locked:>8.2f} {clock:>8.2f}")
        # A run's start may cost a little once; a call's cost is a whole number of these.
        for name, cost, limit in [("locked instructions", locked, locked_limit), ("clock reads", clock, clock_limit)]:
            if limit is not None and cost > limit + 0.01:
                failures.append(f"{row}: {cost:.2f} {name} per call, the limit is {limit}")
    if failures and not published_only:
        sys.exit("\n".join(failures))


main()
