"""Signals end a command once: real ones, sent to a process of its own."""

import signal
import subprocess
import sys
import time

import pytest
from commands import PATIENCE_S
from conftest import ROOT

CHILD = """
import atexit, os, signal, sys, time
def late():  # as Ray's, which waits
    print("late", flush=True)
    time.sleep(0.5)
atexit.register(late)
from mlbench.launch import signals
try:
    with signals.interruptible():
        print("begun", flush=True)
        while True:
            time.sleep(0.1)
except KeyboardInterrupt:
    pass
except BaseException as error:
    print(error)
try:
    with signals.interruptible():  # another run
        print("again", flush=True)
        while True:
            time.sleep(0.1)
except KeyboardInterrupt:
    sys.exit(130)
"""
WRITES = """
import signal, sys, time
from mlbench.launch import signals
with signals.interruptible():
    try:
        print("begun", flush=True)
        while True:
            time.sleep(0.1)
    finally:
        with signals.interruptible():
            for _ in range(12):
                signal.raise_signal(signal.SIGINT)
        print("written", flush=True)
"""
AGAIN = """
import signal, time
from mlbench.launch import signals
with signals.interruptible():
    try:
        print("begun", flush=True)
        while True:
            time.sleep(0.1)
    except KeyboardInterrupt:
        try:
            with signals.repeatable() as number:
                print(signal.Signals(number).name, flush=True)
                while True:
                    time.sleep(0.1)
        except KeyboardInterrupt:
            for _ in range(12):
                signal.raise_signal(signal.SIGINT)
            print("written", flush=True)
"""


HANGUP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # also if nohup runs the tests


def child(code: str, before: str = "") -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [*before.split(), sys.executable, "-c", code if before else HANGUP + code], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_block_and_what_comes_while_python_ends_is_ignored(number: signal.Signals) -> None:
    process = child(CHILD)
    assert process.stdout is not None
    process.send_signal(number)
    assert process.stdout.readline() == "again\n"
    process.send_signal(number)
    assert process.stdout.readline() == "late\n"
    for _ in range(5):
        process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, "")


def test_signals_after_the_first_leave_the_command_time_for_its_record() -> None:
    process = child(WRITES)
    process.send_signal(signal.SIGHUP)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert out == "written\n" and errors.strip().endswith("KeyboardInterrupt")


def test_a_second_signal_may_end_a_wait_and_not_what_follows() -> None:
    process = child(AGAIN)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "SIGTERM\n"
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.communicate(timeout=PATIENCE_S) == ("written\n", "")


def test_a_command_that_outlives_its_terminal_goes_on() -> None:
    process = child(CHILD, "nohup")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "again\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
