"""Runs our benchmark programs and PyTorch's side of them in turn and prints one table; see scripts/bench.

Each round runs ours, then PyTorch in each layout, as processes of their own on the same cores; a time is the median over
the rounds of the medians over the steps. Before any time counts, the losses of the first 20 steps are compared.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LOSS_TOLERANCE = 1e-3  # relative; 20 steps of SGD in float32 with sums in another order stay well below it


def features():
    """The processor's name and the vector instructions that decide which code runs."""
    wanted = ["avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16"]
    info = pathlib.Path("/proc/cpuinfo").read_text()
    fields = dict(line.split("\t:")[0:2] if "\t:" in line else (line.split(":") + [""])[0:2] for line in info.splitlines())
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set(fields.get("flags", "").split())
    return {"processor": fields.get("model name", "unknown"), "features": [name for name in wanted if name in flags]}


def run(command, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))} failed with code {done.returncode}\n{done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def merge(results):
    """The rounds of one program as one result: medians of the numbers, the first of all else."""
    return {
        key: statistics.median(r[key] for r in results) if isinstance(value, (int, float)) else value
        for key, value in results[0].items()
    }


def compare(ours_command, peer_commands, rounds, threads):
    ours, peers = [], {name: [] for name in peer_commands}
    for _ in range(rounds):
        ours.append(run(ours_command, threads))
        for name, command in peer_commands.items():
            peers[name].append(run(command, threads))
    peers = {name: merge(results) for name, results in peers.items()}
    best = min(peers, key=lambda name: peers[name]["ms"])
    return merge(ours), peers[best], best


def loss_difference(ours, peer):
    """The largest relative difference of the losses, or None if this benchmark has none."""
    if "losses" not in ours:
        return None
    return max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(ours["losses"], peer["losses"], strict=True))


def bench_training(name, model, args):
    program = args.build / "bench_train_step"
    weights = args.build / "bench" / f"{model}.safetensors"
    weights.parent.mkdir(exist_ok=True)
    run([program, "--model", model, "--write-weights", weights], args.threads)
    common = ["--model", model, "--weights", weights, "--steps", args.steps, "--threads", args.threads]
    peer = [args.python, HERE / "peer.py", "train", *common]
    ours, best, layout = compare(
        [program, *common],
        {layout: [*peer, "--layout", layout] for layout in ("nchw", "channels_last")},
        args.rounds,
        args.threads,
    )
    return row(name, ours, best, f"PyTorch, {layout}")


def bench_simple(name, args):
    """Optimizer and overhead: no model, no losses."""
    steps = {"optimizer": 30, "overhead": 50}[name]
    common = ["--steps", steps, "--threads", args.threads]
    ours, best, _ = compare(
        [args.build / f"bench_{name}", *common],
        {"eager": [args.python, HERE / "peer.py", name, *common]},
        args.rounds,
        args.threads,
    )
    extra = {key: ours[key] for key in ours if key not in ("name", "ms", "rss_mb")}
    extra.update({f"peer_{key}": best[key] for key in ("forward_ns", "backward_ns") if key in best})
    return {**row(name, ours, best, "PyTorch, eager"), **extra}


def row(name, ours, peer, peer_name):
    return {
        "name": name,
        "ours_ms": ours["ms"],
        "peer_ms": peer["ms"],
        "ratio": peer["ms"] / ours["ms"],
        "ours_rss_mb": ours["rss_mb"],
        "peer_rss_mb": peer["rss_mb"],
        "loss_difference": loss_difference(ours, peer),
        "peer": peer_name,
    }


BENCHMARKS = {
    "lenet": lambda args: bench_training("lenet", "lenet", args),
    "mnist_cnn": lambda args: bench_training("mnist_cnn", "cnn", args),
    "optimizer": lambda args: bench_simple("optimizer", args),
    "overhead": lambda args: bench_simple("overhead", args),
}


def print_table(rows, machine, threads):
    print(f"{machine['processor']}, {threads} threads, {' '.join(machine['features'])}")
    print(f"{'':12}{'ours ms':>10}{'peer ms':>10}{'ratio':>8}{'ours MB':>9}{'peer MB':>9}{'MB ratio':>10}{'loss diff':>11}  peer")
    for r in rows:
        loss = "-" if r["loss_difference"] is None else f"{r['loss_difference']:.1e}"
        print(
            f"{r['name']:12}{r['ours_ms']:10.4g}{r['peer_ms']:10.4g}{r['ratio']:7.2f}x{r['ours_rss_mb']:9.0f}"
            f"{r['peer_rss_mb']:9.0f}{r['ours_rss_mb'] / r['peer_rss_mb']:9.2f}x{loss:>11}  {r['peer']}"
        )
        if r["name"] == "optimizer":
            print(f"{'':12}a copy of as many bytes takes {r['copy_ms']:.3g} ms; ours takes {r['ours_ms'] / r['copy_ms']:.2f}x of that")
        if r["name"] == "overhead":
            print(
                f"{'':12}one op: forward {r['forward_ns']:.0f} ns, backward {r['backward_ns']:.0f} ns"
                f" (PyTorch {r['peer_forward_ns']:.0f} and {r['peer_backward_ns']:.0f})"
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="name")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    machine = features()
    rows = []
    for name in args.names or BENCHMARKS:
        print(f"bench: {name}", file=sys.stderr)
        rows.append({**BENCHMARKS[name](args), **machine, "threads": args.threads})
    print_table(rows, machine, args.threads)
    path = args.build / "bench.json"
    path.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written to {path}")
    wrong = [r["name"] for r in rows if (r["loss_difference"] or 0) > LOSS_TOLERANCE]
    if wrong:
        sys.exit(f"bench: the losses differ by more than {LOSS_TOLERANCE:g}: {', '.join(wrong)}; the times compare nothing")


if __name__ == "__main__":
    main()
