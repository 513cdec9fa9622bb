"""Signals that end a command, sent to this very process."""

import os
import signal
import time

import pytest

from tritone.cli.shared.interrupts import PATIENCE_S, interrupts

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", NUMBERS)
def test_every_such_signal_is_like_ctrl_c_and_its_handler_comes_back(number: int):
    before = [signal.getsignal(each) for each in NUMBERS]
    with pytest.raises(KeyboardInterrupt), interrupts():
        os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in NUMBERS] == before


def test_an_impatient_second_signal_does_not_disturb_what_the_first_one_began(monkeypatch: pytest.MonkeyPatch):
    now = 0.5  # a machine that has just started
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with interrupts():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        for number in NUMBERS:
            os.kill(os.getpid(), number)
        now += PATIENCE_S
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
