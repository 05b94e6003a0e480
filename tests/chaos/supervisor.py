#!/usr/bin/env python3
"""A supervised run whose environment fails: a launcher that fails 20 times, kills during the start, a disk that is
full for a while. It ends bit-identical to the unbroken run. A run that fails by itself ends after three tries."""
import ctypes
from chaos import *

STEPS = 4000 if LONG else 400
QUICK = ['--backoff', '0.02s', '--backoff-max', '0.2s']
common = dict(train__steps=STEPS, train__checkpoint_every=20)
expect('the unbroken run ends', 0, train(train__dir='whole', **common)[0])


def supervised(*options, during=None, folder='run', **keys):
    """Returns exit code and the supervisor's lines. during(process): what happens meanwhile."""
    shutil.rmtree(folder, ignore_errors=True) if folder == 'run' else None
    with open('stderr', 'w') as err:
        p = start('train', 'run.toml', '--supervise', '200', *QUICK, *options, *sets(**dict(common, train__dir=folder, **keys)), stderr=err)
    if during:
        during(p)
    code = ended(p, 120)
    lines = open('stderr').read().splitlines()
    return code, [l for l in lines if l.startswith('supervise:')], lines


# --- a launcher that cannot start the run 20 times, after the run was killed

with open('launcher', 'w') as f:
    f.write('''#!/bin/sh
echo x >> launches
n=$(wc -l < launches)
if [ $n -gt 1 ] && [ $n -le 21 ]; then echo "launcher: host nd1 unreachable" >&2; exit 1; fi
exec "$@"
''')
os.chmod('launcher', 0o755)


def kill_once(p):
    wait_until(lambda: steps_of('run') >= 50, p)
    kill(child_of(p.pid))


code, lines, _ = supervised('--launcher', './launcher', during=kill_once)
expect('a launcher that fails 20 times: exit code and relaunches', (0, 21), (code, len(lines)))
expect_same_end('after it', 'run', 'whole', STEPS)

# --- kills while the run starts, and later

r = random.Random(3)


def kills(p):
    wait_until(lambda: steps_of('run') >= 30, p)
    last = None
    for _ in range(60 if LONG else 12):
        if not wait_until(lambda: child_of(p.pid) not in (None, last), p):
            return
        last = child_of(p.pid)
        wait_until(lambda: False, p, r.uniform(0, 0.03))
        kill(last)


code, lines, _ = supervised(during=kills)
expect('kills during the start: exit code', 0, code)
expect('kills during the start: relaunches', '12 or more', len(lines), len(lines) >= 12)
expect_same_end('after them', 'run', 'whole', STEPS)

# --- a full disk

CLONE_NEWNS, MS_REC_PRIVATE = 0x20000, 0x44000
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir('disk')
if os.geteuid() == 0 and libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b'none', b'/', None, MS_REC_PRIVATE, None) == 0 and \
        libc.mount(b'tmpfs', b'disk', b'tmpfs', 0, b'size=8m') == 0:
    def disk_is_full(p):
        wait_until(lambda: steps_of('disk') >= 50, p)
        with open('disk/ballast', 'wb', buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass
        wait_until(lambda: False, p, 10 if LONG else 2)
        os.remove('disk/ballast')

    code, lines, _ = supervised(during=disk_is_full, folder='disk')
    expect('a disk that is full for a while: exit code', 0, code)
    expect('a disk that is full for a while: relaunches', '1 or more, after exit code 4', lines[:1], bool(lines) and 'exit code 4' in lines[0])
    expect_same_end('after it', 'disk', 'whole', STEPS)
else:
    print('      no disk was filled: mounting a small one needs root')

# --- failures of the run itself

code, lines, every = supervised(data__train='nowhere.bin')
expect('an invalid request: exit code and relaunches', (2, 0), (code, len(lines)))
code, lines, every = supervised(optimizer__lr=1e6)
expect('a loss that is not finite: exit code and tries', (1, 3), (code, len(lines)))
expect('a loss that is not finite: last line', 'it failed 3 times in this way', lines[-1:], bool(lines) and 'failed 3 times in this way' in lines[-1])
done()
