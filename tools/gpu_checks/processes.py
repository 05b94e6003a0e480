"""Child processes with a time limit. A process that exceeds its limit is killed together with its process group."""
import os
import signal
import subprocess
import threading


class Processes:
    """The children that run now, from any thread, so that one call ends them all."""

    def __init__(self):
        self.lock = threading.Lock()
        self.groups = set()
        self.closed = False

    def run(self, command, seconds, env):
        """Runs `command` for at most `seconds`. Returns (stdout and stderr, how it ended)."""
        try:
            with self.lock:
                if self.closed:
                    return "", "not started"
                p = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True, errors="replace", env=env, start_new_session=True)
                self.groups.add(p.pid)
        except OSError as e:
            return str(e), "failed (could not start)"
        try:
            out, err = p.communicate(timeout=seconds)
            return out + err, "passed" if p.returncode == 0 else f"failed ({p.returncode})"
        except subprocess.TimeoutExpired as e:
            kill_group(p.pid)
            said = (e.stdout, e.stderr)
            try:
                said = p.communicate(timeout=3)
            except subprocess.TimeoutExpired:  # a process that left the group still has the pipe open
                pass
            text = "".join(part if isinstance(part, str) else (part or b"").decode(errors="replace") for part in said)
            return text, f"stopped after {seconds:.0f} s"
        except BaseException:  # this program is being stopped
            kill_group(p.pid)
            raise
        finally:
            with self.lock:
                self.groups.discard(p.pid)

    def end_all(self):
        """Kills every child that runs now. No child starts afterwards."""
        with self.lock:
            self.closed = True
            for pid in self.groups:
                kill_group(pid)


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended meanwhile
        pass
