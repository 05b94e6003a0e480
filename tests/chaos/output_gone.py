#!/usr/bin/env python3
"""Nothing can be written to the output of a run: a full disk, a closed stream, a pipe without reader. It trains and
saves all the same, and so it does under a supervisor. SIGHUP saves and leaves, unless it is ignored (nohup)."""
from chaos import *

keys = sets(train__steps=200, train__checkpoint_every=1000, train__log_every=5)


def go(*options, during=None, **popen):
    """Returns exit code and the saved steps."""
    shutil.rmtree('run', ignore_errors=True)
    p = start('train', 'run.toml', *options, *keys, **popen)
    if during:
        during(p)
    return ended(p, 60), checkpoints('run')


full = open('/dev/full', 'w')


def close(*numbers):
    return dict(preexec_fn=lambda: [os.close(n) for n in numbers], close_fds=False)


def without_reader():
    read, write = os.pipe()
    os.close(read)
    return write


for who, options in (('a run', []), ('a supervised run', ['--supervise', '3'])):
    for what, streams in (('standard error on a full disk', dict(stderr=full)), ('standard output on a full disk', dict(stdout=full)),
                          ('both on a full disk', dict(stdout=full, stderr=full)), ('standard error without reader', dict(stderr=without_reader())),
                          ('standard output without reader', dict(stdout=without_reader())), ('closed output', close(1, 2)),
                          ('no stream at all', close(0, 1, 2))):
        expect(f'{who}, {what}', (0, [200]), go(*options, **streams))

keys = sets(train__steps=1000_000, train__checkpoint_every=0)


def hang_up(p):
    wait_until(lambda: steps_of('run') >= 20, p)
    p.send_signal(signal.SIGHUP)


for who, options in (('a run', []), ('a supervised run', ['--supervise', '3'])):
    code, steps = go(*options, during=hang_up)
    expect(f'{who} after SIGHUP', 'exit code 3, one checkpoint', (code, len(steps)), (code, len(steps)) == (3, 1))

ignored = dict(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))


def hang_up_twice(p):
    hang_up(p)
    at = steps_of('run')
    more = wait_until(lambda: steps_of('run') > at + 20, p)
    expect('a run under nohup continues after SIGHUP', True, more)
    p.terminate()


expect('and leaves after SIGTERM', 3, go(during=hang_up_twice, **ignored)[0])
done()
