"""What Slurm cannot do, or a Slurm that is not there, is one clear line."""

import subprocess
from pathlib import Path

import pytest

import throw_away_slurm
from command_line import CliRunner
from slimsched.core.config import ConfigError, SlimError, UnknownNameError
from slimsched.jobs.slurm import controller
from slimsched.jobs.slurm.wire import SlurmClient, SlurmError, SlurmNode, SlurmUnreachableError
from throw_away_slurm import ThrowAwaySlurm

ROOT = Path(__file__).parents[3]


def failure(*command: str) -> SlimError:
    result = CliRunner().invoke(["jobs", *command])
    assert isinstance(result.exception, SlimError), result.output
    assert "\n" not in str(result.exception)
    return result.exception


@pytest.mark.parametrize("command", [["run"], ["run", "--dry-run"], ["victims", "--gpus=4"]])
def test_without_slurms_commands_each_command_says_what_to_install(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failure(*command)
    assert isinstance(error, SlurmError)
    assert "is not installed; install Slurm's client" in str(error)


def test_submitting_without_slurm_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "'sbatch' is not installed" in str(failure("submit", "--gpus=4", "train.sh"))


def test_a_throw_away_slurm_without_daemons_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("throw_away_slurm._path", lambda: str(tmp_path))
    assert throw_away_slurm.main(["up", "--folder", str(tmp_path / "slurm")]) == 2
    assert "apt install slurmctld slurmd slurm-client munge" in capsys.readouterr().err


def test_stopping_a_throw_away_slurm_that_is_not_there_is_one_line() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "local-slurm", "down", "--folder", "/nonexistent"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "throw_away_slurm.py: no throw-away Slurm lives in /nonexistent; name its folder with --folder\n"
    )


def test_a_folder_that_is_not_this_users_is_no_home_for_a_throw_away_slurm(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir()
    (home / "slurm.conf").write_text("Prolog=/tmp/somebody-elses-program\n")
    link.symlink_to(home)
    assert throw_away_slurm.main(["down", "--folder", str(link)]) == 2
    assert "is not a folder of this user" in capsys.readouterr().err
    assert (home / "slurm.conf").exists()
    (home / "slurm.conf").unlink()
    with pytest.raises(SlurmError, match="is not a folder of this user; name another one"):
        ThrowAwaySlurm(link).check_owner()
    ThrowAwaySlurm(tmp_path / "new").check_owner()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_mistakes_in_the_options_are_found_before_slurm_is_asked() -> None:
    assert isinstance(failure("run", "--engine=nomad"), UnknownNameError)
    assert isinstance(failure("run", "--policy=nope"), UnknownNameError)
    assert isinstance(failure("run", "--network=nope"), UnknownNameError)
    assert isinstance(failure("run", "--speed=0"), ConfigError)
    assert isinstance(failure("submit", "--gpus=4", "--model=nope", "train.sh"), UnknownNameError)
    assert isinstance(failure("victims"), ConfigError)


def test_a_controller_that_ends_while_it_is_asked_counts_as_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 'Unexpected message received for job 20' >&2\nexit 1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmUnreachableError, match="does not answer"):
        SlurmClient().release("20")


class Described(SlurmClient):
    """A Slurm known by its description alone."""

    def __init__(
        self, *, version: tuple[int, int] = (22, 5), select: str = "cons_tres", gpus: int = 8
    ) -> None:
        super().__init__()
        self._version, self._select, self._gpus = version, select, gpus

    def version(self) -> tuple[int, int]:
        return self._version

    def configuration(self) -> dict[str, str]:
        return {"SelectType": f"select/{self._select}", "ClusterName": "c", "AuthInfo": "(null)"}

    def nodes(self) -> list[SlurmNode]:
        return [SlurmNode(name="n1", gpus=self._gpus, usable=True, partitions=("main",))]

    def racks(self) -> dict[str, str]:
        return {}


def test_a_slurm_that_cannot_be_driven_is_refused() -> None:
    with pytest.raises(SlurmError, match="too old; 22"):
        controller.check(Described(version=(21, 8)))
    with pytest.raises(SlurmError, match="set SelectType=select/cons_tres"):
        controller.check(Described(select="linear"))
    with pytest.raises(SlurmError, match="no machine has GPUs"):
        controller.check(Described(gpus=0))
    with pytest.raises(SlurmError, match="no partition 'gpu' in Slurm; known: main"):
        controller.check(Described(), partition="gpu")


def test_what_will_hurt_is_said_beforehand() -> None:
    racks, requeue = controller.check(Described()).warnings
    assert "all machines count as one rack" in racks
    assert "cannot start again for 120 s" in requeue
