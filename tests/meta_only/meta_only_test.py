#!/usr/bin/env python3
"""The planner alone, built with TRIREME_META_ONLY=ON: what it is linked with, and that its answers are the whole program's.

    tests/meta_only/meta_only_test.py SOURCE BUILD_FOLDER CXX TRIREME
"""
import pathlib
import re
import subprocess
import sys

FORBIDDEN_LIBRARY = re.compile(r"dnnl|gomp|libomp|libmpi|pthread|hwy|event")
# Starting a thread, a parallel region, a product of oneDNN, MPI. (Locks of a process with one thread are in the C library.)
FORBIDDEN_SYMBOL = re.compile(r"pthread_create|_M_start_thread|GOMP_|omp_|dnnl_|MPI_")

SEARCH = ["search", "--model", "llama3-8B", "--cluster", "H100", "--gpus", "64", "--seq", "4096", "--global-batch", "512"]
ON_GPUS = ["--set", 'train.device="cuda"', "--set", 'cluster.file="h100-sxm-8"']
PIPELINE = ["--set", "layout.dp=2", "--set", "layout.tp=2", "--set", "layout.pp=2", "--set", "layout.zero=1"]
EQUAL = [
    SEARCH,
    [*SEARCH, "--all"],
    [*SEARCH, "--require", "tp=4", "--json"],
    ["estimate", "--model", "llama3-70B", "--cluster", "H100", "--gpus", "512"],
    ["plan", "{run}", *ON_GPUS, "--all"],
    ["plan", "{run}", *ON_GPUS, *PIPELINE, "--all"],
    ["simulate", "{run}", *ON_GPUS, *PIPELINE],
    ["score", "{source}/data/published_runs.json"],
    ["config"],
]
# How long the program itself took.
OWN_TIME = re.compile(r"in [\d.]+ [mu]?s \([\d.]+ million a second\)|[\d.]+ s, [\d,]+ candidates a second|"
                      r'"(seconds|candidates_per_s)": [\d.e+-]+')
REFUSED = [  # arguments, what the message names
    (["train", "{run}"], "train: "),
    (["bench"], "bench: "),
    (["plan", "{run}"], 'train.device = "cpu"'),
    (["plan", "{run}", "--set", 'train.device="cuda"'], "cluster.file"),
]


def output(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def build(source, folder, cxx):
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DTRIREME_META_ONLY=ON", f"-DCMAKE_CXX_COMPILER={cxx}"]
    subprocess.run(["cmake", "-S", source, "-B", folder, "-G", "Ninja", *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder], check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(folder) / "trireme"


def faults_of_links(program):
    needed = re.findall(r"NEEDED.*\[(.+)\]", output(["readelf", "-d", program]).stdout)
    symbols = [line.split()[-1] for line in output(["nm", "-D", "--undefined-only", program]).stdout.splitlines()]
    assert needed and symbols, "readelf or nm printed nothing"
    return [f"linked with {x}" for x in needed if FORBIDDEN_LIBRARY.search(x)] + \
        [f"calls {x}" for x in symbols if FORBIDDEN_SYMBOL.search(x)]


def main():
    source, folder, cxx, whole = sys.argv[1:]
    alone = build(source, folder, cxx)
    faults = faults_of_links(alone)
    names = {"{run}": f"{source}/configs/run/demo.toml", "{source}/": f"{source}/"}

    def filled(arguments):
        for name, value in names.items():
            arguments = [a.replace(name, value) for a in arguments]
        return arguments

    for arguments in map(filled, EQUAL):
        one, other = output([alone, *arguments]), output([whole, *arguments])
        text = " ".join(arguments)
        if one.returncode != 0 or not one.stdout:
            faults.append(f"{text}: exit code {one.returncode}: {one.stderr}")
        elif OWN_TIME.sub("", one.stdout) != OWN_TIME.sub("", other.stdout):
            faults.append(f"{text}: not the whole program's answer")
        else:
            print(f"equal, {len(one.stdout)} bytes: {text}")
    for arguments, named in REFUSED:
        answer = output([alone, *filled(arguments)])
        if answer.returncode != 2 or named not in answer.stderr or "TRIREME_META_ONLY" not in answer.stderr:
            faults.append(f"{' '.join(arguments)}: exit code {answer.returncode}, {answer.stderr}")
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
