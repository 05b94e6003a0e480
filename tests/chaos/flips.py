#!/usr/bin/env python3
"""Bit flips in weights and moments of which four ranks have copies, in the memory of a supervised run, at random
steps and for several cadences of saves. The run ends with the weights, moments and losses of the unbroken run: no
checkpoint that it resumes from has a flipped value. Writing into the memory of another process needs ptrace rights."""
import collections, struct

from chaos import *

FLIPS, STEPS, RELAUNCHES = (54, 150, 5) if LONG else (3, 60, 5)
CADENCES = (7, 30, '"auto"')
# With bf16 and with ZeRO 1, every update overwrites the ranks' weights: a flip in them is gone after it.
VARIANTS = {'f32': {}, 'ZeRO 1': dict(layout__zero=1), 'bf16': dict(precision__compute='bf16')}
RUN = dict(model__vocab=512, model__hidden=64, model__ffn=256, model__init_std=0.02, layout__dp=4, optimizer__lr=2e-3,
           data__seq_len=64, train__check_every=40, train__steps=STEPS)
PAGE = 4096


def kind_of(page):
    """Returns 'weights', 'second moments', or None for a page whose content does not tell. Gradients have signs and
    many values below 1e-4; first moments look like gradients and are left out."""
    if len(set(page)) < 60:
        return None
    values = struct.unpack('<1024f', page)
    if sum(1e-4 < abs(x) < 2 for x in values) > 1000:
        return 'weights'
    if all(1e-30 < x < 1e-2 for x in values):
        return 'second moments'
    return None


def writable_areas(pid):
    with open(f'/proc/{pid}/maps') as maps:
        for line in maps:
            words = line.split()
            begin, end = (int(x, 16) for x in words[0].split('-'))
            if words[1].startswith('rw') and len(words) <= 5 and end - begin < 1 << 28:
                yield begin, end


def copies_in(pid, mem):
    """Returns (kind, addresses) for each page content that at least four places have: four ranks, and a copy that
    a save may hold."""
    found = collections.defaultdict(list)
    for begin, end in writable_areas(pid):
        try:
            mem.seek(begin)
            data = mem.read(end - begin)
        except OSError:
            continue
        for at in range(0, len(data) - PAGE + 1, PAGE):
            found[data[at:at + PAGE]].append(begin + at)
    return sorted((kind, places) for kind, places in ((kind_of(page), places) for page, places in found.items()
                                                      if len(places) in (4, 5)) if kind)


def flip(pid, r):
    """Flips one bit of one copy while the process is stopped. Returns a sentence, or None if no page fits."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(0.01)
        with open(f'/proc/{pid}/mem', 'r+b', buffering=0) as mem:
            pages = copies_in(pid, mem)
            if not pages:
                return None
            wanted = r.choice(sorted({kind for kind, _ in pages}))
            kind, places = r.choice([p for p in pages if p[0] == wanted])
            at = r.choice(places) + 4 * r.randrange(PAGE // 4)
            bit = r.randrange(12, 32)
            mem.seek(at)
            before = struct.unpack('<I', mem.read(4))[0]
            mem.seek(at)
            mem.write(struct.pack('<I', before ^ 1 << bit))
            return f'bit {bit} of {kind}'
    finally:
        os.kill(pid, signal.SIGCONT)


def trial(number):
    """One supervised run with one flip. Returns what was flipped and how the run ended."""
    r = random.Random(number)
    shutil.rmtree('run', ignore_errors=True)
    cadence = CADENCES[number % len(CADENCES)]
    variant = list(VARIANTS)[number // len(CADENCES) % len(VARIANTS) if LONG else number % len(VARIANTS)]
    err = open('stderr', 'w+')
    p = start('train', 'run.toml', '--supervise', str(RELAUNCHES), *sets(train__checkpoint_every=cadence, **RUN, **VARIANTS[variant]), stderr=err)
    at = r.randrange(5, STEPS - 5)
    what = None
    if wait_until(lambda: steps_of('run') >= at, p, 60, 0.001) and child_of(p.pid):
        try:
            what = flip(child_of(p.pid), r)
        except PermissionError:
            skip('this user may not write into the memory of a child')
        except (ProcessLookupError, FileNotFoundError):
            pass  # the run had ended
    code = ended(p, 120)
    err.seek(0)
    text = err.read()
    resumed = [line for line in text.splitlines() if 'resumed from' in line]
    print(f'      {variant}, every {cadence}: {what} at step {at}; ' + (resumed[0][:80] if resumed else 'no resume'), flush=True)
    expect(f'flip {number}: exit code', 0, code)
    expect_same_end(f'flip {number}: the end', 'run', variant, STEPS)
    return what, bool(resumed) or 'relaunch' in text


for name, keys in VARIANTS.items():
    expect(f'the unbroken run in {name} ends', 0, train(train__dir=name, train__checkpoint_every=0, **RUN, **keys)[0])
trials = [trial(number) for number in range(FLIPS)]
flipped = sum(what is not None for what, _ in trials)
found = sum(relaunched for _, relaunched in trials)
# A flip in a copy that a finished save left behind, or in gradients, changes nothing.
expect('flips', f'at least {FLIPS * 2 // 3} done and {FLIPS // 3} found', f'{flipped} done, {found} found',
       flipped >= FLIPS * 2 // 3 and found >= FLIPS // 3)
done()
