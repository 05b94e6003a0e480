#!/usr/bin/env python3
"""One rank's thread is stopped (ptrace) at a random instant: while it computes, before a collective, or inside a
collective that all ranks have joined. The watchdog names that rank. Needs permission to trace a child."""
import ctypes
from chaos import *

SEIZE, INTERRUPT = 0x4206, 0x4207
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes, libc.ptrace.restype = [ctypes.c_long] * 4, ctypes.c_long
LAYOUTS = [dict(layout__dp=4), dict(layout__dp=2, layout__tp=2), dict(layout__pp=2, layout__dp=2)]


def rank_threads(pid):
    """The main thread is rank 0's, the next one is the watchdog's, the others follow by rank."""
    ids = sorted(map(int, os.listdir(f'/proc/{pid}/task')))
    return [ids[0], *ids[2:]]


def frozen(pid, thread):
    """Stops the thread until the process that is returned ends."""
    tracer = os.fork()
    if tracer == 0:
        failed = libc.ptrace(SEIZE, thread, 0, 0) or libc.ptrace(INTERRUPT, thread, 0, 0)
        if not failed:
            time.sleep(120)
        os._exit(1)
    return tracer


def verdict(layout, rank, seed):
    """Returns the line that ends the run."""
    shutil.rmtree('run', ignore_errors=True)
    keys = sets(**layout, train__steps=1000_000, train__checkpoint_every=0, train__timeout=2)
    with open('stderr', 'w') as err:
        p = start('train', 'run.toml', *keys, stderr=err)
    if not wait_until(lambda: steps_of('run') >= 50, p, pause=0.02):
        return 'the run did not start'
    time.sleep(random.Random(seed).random() / 20)
    tracer = frozen(p.pid, rank_threads(p.pid)[rank])
    said = lambda: [l for l in open('stderr').read().splitlines() if l.startswith('trireme: ')]
    wait_until(said, p, 15, 0.05)
    if os.waitpid(tracer, os.WNOHANG)[0]:
        skip('a child may not be traced here')
    os.kill(tracer, signal.SIGKILL)
    os.waitpid(tracer, 0)
    p.kill()
    p.wait()
    return (said() or ['no line'])[0]


trials = int(sys.argv[3]) if len(sys.argv) > 3 else 60 if LONG else 5
for i in range(trials):
    layout, rank = LAYOUTS[i % 3], (1 + i // 3) % 4 if LONG else 1 + i % 3
    line = verdict(layout, rank, i)
    expect(f'{layout}: rank {rank} is frozen', f'rank {rank} is late', line[:200], f'rank {rank} is late' in line)
done()
