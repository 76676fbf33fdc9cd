"""What the processes are that NVML names, seen from the host and from containers."""

from __future__ import annotations

import os
from pathlib import Path

from sidecar.sources.processes import HOST_NAMESPACE, ProcessTitles

CONTAINER = "pid:[4026533333]"


def namespace(proc: Path, inode: str) -> None:
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to(inode)


def add(
    proc: Path, pid: int, *arguments: str, name: str = "python3", parent: int = 1, started: int = 7
) -> None:
    """A process as /proc shows it: its start is the 22nd field of `stat`."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    between = "0 " * 17
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} {between}{started} 0 0\n")
    (folder / "cmdline").write_bytes(b"".join(part.encode() + b"\0" for part in arguments))


def test_on_the_host_every_process_has_a_title(tmp_path: Path) -> None:
    namespace(tmp_path, HOST_NAMESPACE)
    add(tmp_path, 10, "VLLM::EngineCore", "", "", name="VLLM::EngineCor")
    add(tmp_path, 11, "python3", "train.py", "--token=secret")
    titles = ProcessTitles(tmp_path)
    assert titles.title_of(10) == "VLLM::EngineCore"
    assert titles.title_of(11) == "python3"
    assert titles.title_of(12) is None


def test_in_a_container_a_number_may_be_somebody_elses(tmp_path: Path) -> None:
    namespace(tmp_path, CONTAINER)
    add(tmp_path, 10, "VLLM::Worker_TP0", name="VLLM::Worker_TP")
    add(tmp_path, 11, "nginx: worker", name="nginx")
    titles = ProcessTitles(tmp_path)
    assert titles.title_of(10) == "VLLM::Worker_TP0"
    assert titles.title_of(11) is None, "no proof, since NVML counts as the host does"


def test_without_a_namespace_to_read_nothing_is_taken_for_the_hosts(tmp_path: Path) -> None:
    add(tmp_path, 11, "nginx", name="nginx")
    assert ProcessTitles(tmp_path).title_of(11) is None


def test_a_child_of_vllm_is_vllms(tmp_path: Path) -> None:
    namespace(tmp_path, HOST_NAMESPACE)
    add(tmp_path, 5, "python3", "/bin/vllm", "serve", name="vllm (a) b", parent=1)
    add(tmp_path, 6, "python3", "-c", "from multiprocessing.spawn import spawn_main", parent=5)
    add(tmp_path, 7, "python3", "-c", "helper", parent=6)
    add(tmp_path, 8, "python3", "other.py", parent=1)
    titles = ProcessTitles(tmp_path)
    assert titles.title_of(7) == titles.title_of(6) == "child of vllm serve"
    assert titles.title_of(8) == "python3"


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    namespace(tmp_path, HOST_NAMESPACE)
    add(tmp_path, 5, "a", name="a", parent=6)
    add(tmp_path, 6, "b", name="b", parent=5)
    assert ProcessTitles(tmp_path).title_of(5) == "a"


def test_a_title_is_looked_up_once_and_again_for_a_new_name_or_process(tmp_path: Path) -> None:
    namespace(tmp_path, HOST_NAMESPACE)
    add(tmp_path, 10, "python3", "-c", "spawn")
    titles = ProcessTitles(tmp_path)
    assert titles.title_of(10) == "python3"
    (tmp_path / "10/cmdline").write_bytes(b"VLLM::Worker\0")
    assert titles.title_of(10) == "python3", "same process, same name"
    add(tmp_path, 10, "VLLM::Worker_TP1", name="VLLM::Worker_TP")
    assert titles.title_of(10) == "VLLM::Worker_TP1", "vLLM names a worker late"
    add(tmp_path, 10, "VLLM::Worker_TP1", name="VLLM::Worker_TP", parent=1)
    assert titles.title_of(10) == "VLLM::Worker_TP1"
    add(tmp_path, 10, "python3", "train.py", name="VLLM::Worker_TP", started=99)
    assert titles.title_of(10) == "VLLM", "another process by the same number"


def test_the_end_of_its_parent_leaves_a_child_of_vllm_what_it_was(tmp_path: Path) -> None:
    namespace(tmp_path, HOST_NAMESPACE)
    add(tmp_path, 5, "vllm", "serve", name="vllm")
    add(tmp_path, 6, "python3", "-c", "spawn", parent=5)
    titles = ProcessTitles(tmp_path)
    titles.title_of(6)
    add(tmp_path, 6, "python3", "-c", "spawn", parent=1)
    assert titles.title_of(6) == "child of vllm serve"


def test_what_has_ended_has_no_title(tmp_path: Path) -> None:
    namespace(tmp_path, HOST_NAMESPACE)
    add(tmp_path, 10, name="python3")
    stat = tmp_path / "10/stat"
    stat.write_text(stat.read_text().replace(" S ", " Z "))
    assert ProcessTitles(tmp_path).title_of(10) is None
    stat.write_text("10 (torn")
    assert ProcessTitles(tmp_path).title_of(10) is None


def test_this_very_process(tmp_path: Path) -> None:
    """The kernel's own files: this process is Python, wherever that can be known."""
    titles = ProcessTitles()
    own = titles.title_of(os.getpid())
    if os.readlink("/proc/self/ns/pid") == HOST_NAMESPACE:
        assert own is not None
        assert len(own) <= 15
    else:
        assert own is None
