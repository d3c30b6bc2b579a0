"""Tests of the address at which rank 0 of a process group lets the other ranks connect.

It depends on whether the ranks can show that they are on the same machine.
"""

from __future__ import annotations

from typing import List, Optional

import pytest

pytest.importorskip("torch")
import tutti.torch.rendezvous as rendezvous  # noqa: E402

OUTWARD = "192.0.2.7"


def rank_texts(monkeypatch: pytest.MonkeyPatch, boot_ids: List[str]) -> List[str]:
    """Returns the texts of one rank for each boot id. An empty boot id means a sandbox. All host names are equal."""
    monkeypatch.setattr(rendezvous.socket, "gethostname", lambda: "sandbox")
    made = []
    for boot_id in boot_ids:
        files = {"/proc/sys/kernel/random/boot_id": boot_id, "/etc/machine-id": "same image"}
        monkeypatch.setattr(rendezvous, "_first_line", lambda path, files=files: files[path])
        made.append(rendezvous._machine_and_addresses("localhost"))
    return made


def rendezvous_interface(monkeypatch: pytest.MonkeyPatch, boot_ids: List[str], outward: Optional[str] = OUTWARD) -> str:
    monkeypatch.delenv("TUTTI_INTERFACE", raising=False)
    monkeypatch.setattr(rendezvous, "_outward_address", lambda host, seen: outward)
    ranks = rank_texts(monkeypatch, boot_ids)
    return rendezvous._rendezvous_interface(rendezvous.Options(), "localhost", ranks)


def test_equal_boot_ids_meet_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous_interface(monkeypatch, ["boot 1", "boot 1"]) == "lo"


def test_different_boot_ids_meet_at_an_outward_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous_interface(monkeypatch, ["boot 1", "boot 2"]) == OUTWARD


def test_equal_host_names_are_no_proof_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous_interface(monkeypatch, ["", ""]) == OUTWARD


def test_equal_host_names_meet_on_loopback_if_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous_interface(monkeypatch, ["", ""], outward=None) == "lo"


def test_different_machines_without_an_outward_address_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from tutti.errors import ConfigError

    with pytest.raises(ConfigError, match="TUTTI_INTERFACE"):
        rendezvous_interface(monkeypatch, ["boot 1", ""], outward=None)
