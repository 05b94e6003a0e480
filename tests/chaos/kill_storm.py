#!/usr/bin/env python3
"""kill -9 at random instants, half of them while a save is on disk, and the same command again. The run ends
bit-identical to the unbroken run. A second start in the folder of a run that lives changes nothing."""
from chaos import *

KILLS, STEPS = (200, 6000) if LONG else (8, 250)
LAST = 600 if LONG else 120  # s, of a whole run on a busy machine
ranks = dict(layout__dp=4, layout__zero=2) if LONG else {}
common = dict(ranks, train__steps=STEPS, train__keep=2)
expect('the unbroken run ends', 0, train(train__dir='whole', train__checkpoint_every=0, timeout=LAST, **common)[0])
r = random.Random(1)
kills = in_save = 0
while True:
    p = start('train', 'run.toml', *sets(train__checkpoint_every=1, **common))
    if kills == KILLS:
        break
    wait_until(lambda: False, p, r.uniform(0.02, 0.3))
    if r.random() < 0.5:
        wait_until(lambda: glob.glob('run/checkpoints/*.part'), p, 0.3, 0.0002)
    if p.poll() is not None:
        break
    p.kill()
    p.wait()
    kills += 1
    in_save += bool(glob.glob('run/checkpoints/*.part'))
expect('the last start ends', 0, ended(p, LAST))
expect('kills', f'{KILLS}, some in a save', f'{kills}, {in_save} in a save', kills == KILLS and in_save > 0)
expect_same_end('after the storm', 'run', 'whole', STEPS)

# --- a second start in the folder of a run, whose file `lock` was removed

first = start('train', 'run.toml', *sets(train__dir='held', train__steps=1000_000, train__checkpoint_every=0))
wait_until(lambda: steps_of('held') >= 5, first)
os.remove('held/lock')
os.makedirs('held/checkpoints/step-00000007.part')  # a save of the first one
code, line = train(train__dir='held', train__steps=1000_000, train__checkpoint_every=0)
expect('a second start', 'exit code 2, "is in use by another run"', (code, line.strip()[-80:]), code == 2 and 'is in use by another run' in line)
expect('the unfinished save of the first one is left', True, os.path.exists('held/checkpoints/step-00000007.part'))
first.kill()
first.wait()
done()
