"""Leads the session of a measured command's terminal; started by its path, as what it imports is all of it.

When the leader of a session ends, Linux hangs up on the processes in the foreground of its terminal. A shell
outlives its commands, so a background process outlives the command that started it, and so it does here.
"""

import fcntl
import os
import signal
import sys
import termios


def main(terminal: int, report: int, command: list[str]) -> int:
    """Run a command in the foreground of a terminal; write its pid to `report`, return its exit code."""
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    ready, go = os.pipe()
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        os.close(go)
        os.read(ready, 1)  # until the terminal is its own
        for number in (terminal, report, ready):
            os.close(number)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(126)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTTOU, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    # It comes when the process has died that started this one.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    os.setpgid(pid, pid)
    os.tcsetpgrp(terminal, pid)
    os.write(report, f"{pid}\n".encode())
    for number in (report, ready, go):
        os.close(number)
    _, status = os.waitpid(pid, 0)
    os.tcsetpgrp(terminal, os.getpgrp())
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
