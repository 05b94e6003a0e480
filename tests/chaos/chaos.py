"""Shared by the fault tests of this folder: tiny runs of the real program, and the faults that they meet.

Each script is called as `SCRIPT PROGRAM [short|long]`. It works in a temporary folder and prints one line per check.
The exit code is 0 if all checks hold, 1 if one does not, and 77 (skipped) if this machine forbids the fault.
Only Python's standard library is used."""
import array, atexit, glob, json, os, random, shutil, signal, socket, subprocess, sys, tempfile, time

if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
    sys.exit(f'usage: {sys.argv[0]} PROGRAM [short|long]')
PROGRAM = os.path.abspath(sys.argv[1])
LONG = len(sys.argv) > 2 and sys.argv[2] == 'long'
WORK = tempfile.mkdtemp(prefix='chaos-')
atexit.register(shutil.rmtree, WORK, True)
os.chdir(WORK)
for _name in ('HOME', 'XDG_CACHE_HOME', 'TMPDIR'):
    os.environ[_name] = WORK  # no file of this user is read or written

# --- checks

_wrong = []


def expect(what, want, got, holds=None):
    """Prints one check. It holds if `got` equals `want`, or as `holds` says."""
    holds = want == got if holds is None else holds
    print(f"{'ok   ' if holds else 'WRONG'} {what}: " + (f'{got}' if holds else f'expected {want}, got {got}'), flush=True)
    if not holds:
        _wrong.append(what)
    return holds


def done():
    print(f'{len(_wrong)} wrong' if _wrong else 'all checks hold')
    sys.exit(1 if _wrong else 0)


def skip(why):
    print(f'skipped: {why}')
    sys.exit(77)


# --- inputs

def tokens(n, vocab=61, seed=7):
    """Returns n tokens that a model can learn: most tokens determine their successor."""
    r = random.Random(seed)
    after = list(range(vocab))
    r.shuffle(after)
    out = [1]
    while len(out) < n:
        out.append(after[out[-1]] if r.random() < 0.7 else r.randrange(vocab))
    return out


def shard(path, ids):
    with open(path, 'wb') as f:
        array.array('H', ids).tofile(f)


shard('t.bin', tokens(64001))
open('run.toml', 'w').close()  # --set gives every key
with open('cluster.toml', 'w') as _f:  # without it the program first measures this machine
    _f.write('''name = "eight"
nodes = 1
devices_per_node = 8
peak.f32 = 50e12
peak.bf16 = 750e12
peak.f16 = 750e12
memory_bytes = 85899345920
memory_bandwidth = 2e12
[intra_node]
bandwidth = 60e9
latency = 3e-6
''')

# A run whose step takes less than a millisecond.
BASE = {'model.arch': 'llama', 'model.vocab': 61, 'model.layers': 2, 'model.hidden': 32, 'model.heads': 4, 'model.kv_heads': 2,
        'model.ffn': 64, 'model.init_std': 0.1, 'data.train': 't.bin', 'data.valid': '[]', 'data.seq_len': 32,
        'batch.global': 8, 'batch.micro': 2, 'precision.compute': 'f32', 'optimizer.lr': 0.01, 'optimizer.warmup': 3,
        'train.steps': 100, 'train.threads': 1, 'train.checkpoint_every': 10, 'train.tensorboard': 'false', 'train.bind': 'off',
        'train.dir': 'run', 'cluster.file': 'cluster.toml'}


def sets(**keys):
    """Returns the --set arguments of BASE changed by `keys`: train__dir='a' sets train.dir. None removes a key."""
    every = dict(BASE, **{k.replace('__', '.'): v for k, v in keys.items()})
    return [word for k, v in every.items() if v is not None for word in ('--set', f'{k}={v}')]


# --- processes

def start(*words, **popen):
    """Starts the program. It is killed when the script ends, at the latest."""
    for stream in ('stdin', 'stdout', 'stderr'):
        popen.setdefault(stream, subprocess.DEVNULL)
    p = subprocess.Popen([PROGRAM, *words], **popen)
    atexit.register(lambda: p.poll() is None and p.kill())
    return p


def train(*options, timeout=120, **keys):
    """Trains to the end. Returns exit code and standard error."""
    with open('stderr', 'w+') as err:
        p = start('train', 'run.toml', *options, *sets(**keys), stderr=err)
        code = ended(p, timeout)
        err.seek(0)
        return code, err.read()


def ended(p, timeout):
    """Waits for the process. Returns its exit code, or 'hangs' after killing it."""
    try:
        return p.wait(timeout)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        return 'hangs'


def wait_until(condition, p, timeout=30, pause=0.003):
    """Waits until condition() holds. Returns false if the process ended or the time is over."""
    end = time.monotonic() + timeout
    while not condition():
        if p.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def child_of(pid):
    """Returns the process's first child, or None."""
    try:
        with open(f'/proc/{pid}/task/{pid}/children') as f:
            children = f.read().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def kill(pid, number=signal.SIGKILL):
    """Sends a signal. The process may be gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


# --- results

def steps_of(folder):
    """Returns the number of steps that the metrics record."""
    return len(metrics(folder))


def metrics(folder):
    """Returns the loss of each step."""
    try:
        for attempt in range(50):
            with open(f'{folder}/metrics.jsonl') as f:
                lines = [line for line in f if line.endswith('\n')]
            try:
                return [json.loads(line).get('loss') for line in lines]
            except json.JSONDecodeError:  # cut by a resume while it was read
                time.sleep(0.02)
        raise RuntimeError(f'{folder}/metrics.jsonl: {lines} are not JSON')
    except FileNotFoundError:
        return []


def checkpoints(folder):
    """Returns the steps of the published checkpoints."""
    return sorted(int(path[-8:]) for path in glob.glob(f'{folder}/checkpoints/step-????????'))


def state(folder, step):
    """Returns every rank's file of a checkpoint: weights and moments."""
    out = []
    for path in sorted(glob.glob(f'{folder}/checkpoints/step-{step:08}/rank*')):
        with open(path, 'rb') as f:
            out.append((os.path.basename(path), f.read()))
    return out


def expect_same_end(what, folder, reference, step):
    """Checks that a run ended as the unbroken run did: weights, moments and losses bit-identical, nothing half-written."""
    same = state(folder, step) == state(reference, step) != []
    unfinished = glob.glob(f'{folder}/checkpoints/*.part')
    expect(what, 'state and losses of the unbroken run, no unfinished save',
           f'state {"equal" if same else "differs"}, losses {"equal" if metrics(folder) == metrics(reference) else "differ"}, '
           f'{len(unfinished)} unfinished saves',
           same and metrics(folder) == metrics(reference) and not unfinished)
