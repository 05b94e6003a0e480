#!/usr/bin/env python3
"""Rank 0 of a job waits for rank 1 at MASTER_ADDR:MASTER_PORT. It listens at that address only; 2,000 connections that
say nothing delay rank 1 by less than a second; a process without the secret of the job is rejected."""
import ctypes, fcntl, resource, struct
from chaos import *

SILENT = 2000
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, SILENT + 200), limit))
CLONE_NEWNET = 0x40000000
if ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0:  # its own network, if that is permitted
    SIOCSIFFLAGS, IFF_UP = 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack('16sh14x', b'lo', IFF_UP))
probe = socket.create_server(('127.0.0.1', 0))
PORT = probe.getsockname()[1]
probe.close()
keys = sets(train__comm='nccl', layout__dp=2)
MAGIC, VERSION, HELLO, WELCOME, REFUSAL, PROOF, CHALLENGE = 0x4d524954, 2, 0, 1, 2, 11, 10


def rank(number, **more):
    """Starts one rank of two. This machine needs no GPU: the ranks meet before they look for one."""
    env = dict(os.environ, RANK=str(number), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(PORT), **more)
    return start('train', 'run.toml', *keys, env=env, stderr=open(f'stderr{number}', 'w'))


def listeners():
    lines = [l.split() for f in ('tcp', 'tcp6') for l in open(f'/proc/net/{f}').read().splitlines()[1:]]
    return [l[1] for l in lines if l[3] == '0A' and l[1].endswith(f':{PORT:04X}')]


def frame(kind, body, sender=1):
    return struct.pack('<IHBBiiQqq', MAGIC, VERSION, kind, 0, sender, 0, 0, 0, len(body)) + body


def answer(s):
    """Returns the kind of the next frame, or None if the connection ends."""
    try:
        head = s.recv(40, socket.MSG_WAITALL)
        if len(head) < 40:
            return None
        s.recv(struct.unpack('<q', head[32:])[0], socket.MSG_WAITALL)
        return head[6]
    except OSError:
        return None


def greeting():
    s = socket.create_connection(('127.0.0.1', PORT))
    s.settimeout(5)
    begin = time.monotonic()
    s.sendall(frame(HELLO, struct.pack('<iiQ', 1, 2, 0) + bytes(32) + b'host'.ljust(112, b'\0')))
    return s, answer(s), time.monotonic() - begin


zero = rank(0)
wait_until(listeners, zero, 60, 0.02)
expect('listening addresses', [f'0100007F:{PORT:04X}'], listeners())
silent = [socket.create_connection(('127.0.0.1', PORT)) for _ in range(SILENT)]
s, kind, took = greeting()
expect(f'after {SILENT} silent connections a greeting is answered', 'within 1 s', f'{took:.2f} s', kind == CHALLENGE and took < 1)
s.sendall(frame(PROOF, bytes(32)))
expect('a wrong proof is refused', REFUSAL, answer(s))
s, kind, _ = greeting()
s.sendall(frame(WELCOME, bytes(12)))
expect('any other frame instead of a proof is refused', REFUSAL, answer(s))
stranger = rank(1, TRIREME_SECRET='of another job, and long enough')
expect('a rank with another secret: exit code', 2, ended(stranger, 20))
expect('and its line names TRIREME_SECRET', True, 'TRIREME_SECRET' in open('stderr1').read())
begin = time.monotonic()
one = rank(1)
codes = (ended(zero, 60), ended(one, 60))
said = open('stderr0').read() + open('stderr1').read()
met = 'rendezvous' not in said and 'secret' not in said  # they go on to the next obstacle: there is no NCCL here
expect('the ranks of the job meet', 'no line about the rendezvous', said.strip()[:200], met)
done()
