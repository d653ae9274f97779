"""The account of threads agrees with the clock of the thread itself."""

import threading
import time
from importlib import import_module
from typing import Any

import psutil
import pytest

account: Any = import_module("threads")


@pytest.mark.skipif(not psutil.LINUX, reason="the kernel's account is Linux's")
def test_a_thread_that_computes_has_a_row_of_its_own_and_one_that_sleeps_has_none() -> None:
    ending = threading.Event()
    sleeper = threading.Thread(target=ending.wait)
    sleeper.start()
    begin = time.thread_time()
    before, loop = account.threads(), time.thread_time()
    while time.thread_time() - loop < 0.3:
        pass
    after, computed = account.threads(), time.thread_time() - begin
    ending.set()
    sleeper.join()
    rows = dict(account.rows(before, after, seconds=0.4))
    (name,) = [name for name in rows if name.endswith(f"training thread {threading.get_native_id()}")]
    assert 0.29 <= rows[name][0] * 0.4 <= computed + 0.01  # s; the kernel's account is of the last tick
    assert not any(name.endswith(str(sleeper.native_id)) for name in rows)
