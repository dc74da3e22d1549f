"""What scripts/bench does besides timing: arithmetic, what other programs say, trees, and the report."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmark import BenchError, LeftOutError, trees
from benchmark.contest import absent, emptied, first_word, replaced, size_bytes
from benchmark.costs import many_figures, paired_excess
from benchmark.machine import Quiet, busy_ticks, children_of, descendants_of, is_disturbed, process_cpu_s
from benchmark.plot import Bar, bars, scale_of, svg
from benchmark.processes import CommandError, Sampler, pss_bytes, role_of, run
from benchmark.records import BUDGETS, FigureBudget, RatioBudget, Record, Row, lines, rows
from benchmark.report import BEGIN, END, Result, from_json, markdown, text, to_json, value_text, with_figures
from benchmark.sandbox import Traffic, check_equal, option_names, rsync_traffic, sandlift_traffic
from sandlift.payload import local_argv
from support.needs import require

ROOT = Path(__file__).resolve().parents[2]
TINY = trees.Scale(quick_files=120, million_files=60, commits=50, huge_mib=3, sparse_mib=256, bulk_mib=2)


def record(name: str, number: int, wall_s: float, *, group: str = "capture", disturbed: bool = False) -> Record:
    return Record(
        group=group,
        tree="reference",
        name=name,
        round=number,
        wall_s=wall_s,
        cpu_s=wall_s / 4,
        sent_bytes=1,
        received_bytes=10 * number,
        disturbed=disturbed,
    )


FASTER = RatioBudget(work="w", group="capture", subject="us", peer="them", at_most=0.8)


class TestScript:
    def test_help(self) -> None:
        done = subprocess.run([ROOT / "scripts" / "bench", "--help"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        for option in ("--quick", "--json", "--plot", "--readme", "--from", "--loop"):
            assert option in done.stdout

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (["--only", "typo"], "--only is of capture,"),
            (["--rounds", "0"], "--rounds is at least 1"),
            (["--only", "unchanged"], "unchanged needs capture"),
            (["--quick", "--enforce"], "judges no budget"),
        ],
    )
    def test_what_it_refuses(self, words: list[str], why: str) -> None:
        done = subprocess.run([ROOT / "scripts" / "bench", *words], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr

    def test_an_old_result_is_shown_again(self, tmp_path: Path) -> None:
        (tmp_path / "r.json").write_text(to_json(RESULT))
        (tmp_path / "README").write_text(f"a\n{BEGIN}\nold\n{END}\nb\n")
        files = {"--from": "r.json", "--plot": "docs/p.svg", "--readme": "README"}
        words = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
        done = subprocess.run([ROOT / "scripts" / "bench", *words], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == text(RESULT)
        assert (tmp_path / "docs" / "p.svg").read_text() == svg(RESULT)
        assert (tmp_path / "README").read_text() == f"a\n{BEGIN}\n{markdown(RESULT)}{END}\nb\n"
        enforced = subprocess.run([ROOT / "scripts" / "bench", *words, "--enforce"], capture_output=True, timeout=60)
        assert enforced.returncode == 1


class TestRatios:
    def test_they_are_medians_of_the_rounds(self) -> None:
        pairs = [(1.0, 2.0), (8.0, 10.0), (3.0, 3.0)]
        records = [
            each
            for number, (us, them) in enumerate(pairs)
            for each in (record("us", number, us), record("them", number, them), record("other", number, 1.0))
        ]
        (row,) = rows(records, {}, [FASTER])
        assert (row.value, row.lowest, row.highest, row.count, row.is_kept) == (0.8, 0.5, 1.0, 3, True)
        assert row.cpu == 0.8
        (row,) = rows(records, {}, [replace(FASTER, at_most=0.79)])
        assert not row.is_kept
        (row,) = rows(records, {}, [replace(FASTER, at_most=None)])
        assert row.is_kept

    def test_only_rounds_in_which_both_ran_count(self) -> None:
        records = [record("us", 0, 1.0), record("us", 1, 3.0), record("them", 1, 6.0), record("them", 2, 9.0)]
        (row,) = rows(records, {}, [FASTER])
        assert (row.value, row.count) == (0.5, 1)
        assert rows(records[:1], {}, [FASTER]) == []

    def test_other_groups_and_trees_do_not_count(self) -> None:
        records = [record("us", 0, 1.0, group="restore"), record("them", 0, 2.0)]
        assert rows(records, {}, [FASTER]) == []
        assert rows([record("us", 0, 1.0), replace(record("them", 0, 2.0), tree="git")], {}, [FASTER]) == []

    def test_quiet_rounds_count_before_disturbed_ones(self) -> None:
        records = [
            record("us", 0, 9.0, disturbed=True),
            record("them", 0, 1.0),
            record("us", 1, 1.0),
            record("them", 1, 2.0),
        ]
        (row,) = rows(records, {}, [FASTER])
        assert (row.value, row.count, row.disturbed) == (0.5, 1, 0)
        (row,) = rows(records[:2], {}, [FASTER])
        assert (row.value, row.count, row.disturbed) == (9.0, 1, 1)

    def test_figures(self) -> None:
        budget = FigureBudget(work="memory", figure="helper", at_most=64, unit="MiB")
        (row,) = rows([], {"helper": [70.0, 50.0, 60.0]}, [budget])
        assert (row.value, row.lowest, row.highest, row.is_kept, row.unit) == (60.0, 50.0, 70.0, True, "MiB")
        assert rows([], {}, [budget]) == []

    def test_lines_are_medians_of_each_contestant(self) -> None:
        (us, them) = lines([record("us", 0, 1.0), record("them", 0, 5.0), record("us", 1, 2.0), record("us", 2, 9.0)])
        assert (us.name, us.wall_s, us.lowest_s, us.highest_s, us.count, us.wire_bytes) == ("us", 2.0, 1.0, 9.0, 3, 11)
        assert (them.name, them.count) == ("them", 1)

    def test_each_budget_is_one_row(self) -> None:
        keys = [(b.figure,) if isinstance(b, FigureBudget) else (b.group, b.tree, b.subject, b.peer) for b in BUDGETS]
        assert len(set(keys)) == len(keys)

    def test_an_excess_is_over_the_median(self) -> None:
        assert paired_excess([5.0, 9.0], [1.0, 3.0, 2.0]) == [3.0, 7.0]


RESULT = Result(
    reference="npm",
    rounds=2,
    machine={"processors": "2", "rsync": "3.5.0"},
    trees={"reference": {"files": 22_000, "entries": 24_000, "bytes": 400_000_000}},
    records=[
        record("sandlift", 0, 4.0),
        record("ssh tar c | zstd -1", 0, 5.0),
        record("rsync -a", 0, 4.0),
        record("sandlift", 0, 3.0, group="backup"),
        record("restic backup", 0, 6.0, group="backup"),
    ],
    figures={"helper, reference": [33.3], "unchanged bytes": [0.004]},
    left_out=["borg create: missing: apt-get install borgbackup"],
)


class TestReport:
    def test_json_and_back(self) -> None:
        assert from_json(to_json(RESULT)) == RESULT
        assert [row.work for row in RESULT.over] == ["first capture"]
        assert replace(RESULT, reference="quick").over == []

    @pytest.mark.parametrize("broken", ["", "[]", "{}", '{"schema": 1}', '{"schema": 2, "records": []}'])
    def test_what_is_no_result(self, broken: str) -> None:
        with pytest.raises(BenchError):
            from_json(broken)

    def test_the_text_names_all(self) -> None:
        shown = text(RESULT)
        assert re.search(
            r"first capture +ssh tar c \| zstd -1 +0\.80 x +0\.80 +0\.80 +0\.85 +0\.80 +1$", shown, re.MULTILINE
        )
        assert re.search(r"first capture +rsync -a +1\.00 x .* OVER$", shown, re.MULTILINE)
        assert shown.endswith("left out: borg create: missing: apt-get install borgbackup\n")
        assert "OVER" not in text(replace(RESULT, reference="quick"))

    def test_the_table_holds_what_has_a_budget(self) -> None:
        table = [line for line in markdown(RESULT).splitlines() if line.startswith("|")]
        assert table == [
            "| work | against | figure | at most |",
            "| --- | --- | --- | --- |",
            r"| first capture | `ssh tar c \| zstd -1` | 0.80 x | 0.85 |",
            "| first capture | `rsync -a` | 1.00 x (over) | 0.95 |",
            "| nothing changed, bytes of the workspace |  | 0.0040 % | 0.1 |",
            "| helper memory |  | 33.3 MiB | 64 |",
        ]

    def test_the_table_says_when_rows_were_disturbed(self) -> None:
        noisy = replace(RESULT, records=[replace(each, disturbed=True) for each in RESULT.records])
        assert "disturbed" not in markdown(RESULT)
        assert "disturbed every round of 2 of these rows" in " ".join(markdown(noisy).split())

    def test_a_readme_without_marks(self) -> None:
        with pytest.raises(BenchError, match="has no lines"):
            with_figures(f"{END} {BEGIN}", "table")

    def test_the_readme_has_them(self) -> None:
        assert "| x |" in with_figures((ROOT / "README.md").read_text(), "| x |\n")

    @pytest.mark.parametrize(
        ("value", "unit", "expected"),
        [
            (0.853, "x", "0.85 x"),
            (31.83, "KiB", "31.8 KiB"),
            (631.3, "MiB", "631 MiB"),
            (0.0042, "%", "0.0042 %"),
            (0.3, "%", "0.30 %"),
        ],
    )
    def test_figures_for_people(self, value: float, unit: str, expected: str) -> None:
        assert value_text(value, unit) == expected


class TestPlot:
    def test_the_bars(self) -> None:
        assert bars(RESULT) == [
            Bar(label="first capture / ssh tar c | zstd -1", ratio=0.8, at_most=0.85, kind="kept"),
            Bar(label="first capture / rsync -a", ratio=1.0, at_most=0.95, kind="over"),
            Bar(label="local capture / restic backup", ratio=0.5, at_most=None, kind="free"),
        ]
        assert {bar.kind for bar in bars(replace(RESULT, reference="quick"))} == {"free"}

    def test_the_scale_fits_bars_and_budgets_up_to_a_bound(self) -> None:
        bar = Bar(label="", ratio=0.5, at_most=None, kind="free")
        assert scale_of([]) == scale_of([bar]) == 1.2
        assert scale_of([replace(bar, at_most=1.3)]) == pytest.approx(1.365)
        assert scale_of([replace(bar, ratio=50.0)]) == 2.0

    def test_the_picture(self) -> None:
        root = ElementTree.fromstring(svg(RESULT))
        name = "{http://www.w3.org/2000/svg}"
        widths = [(each.get("class"), float(each.get("width") or 0)) for each in root.iter(f"{name}rect")]
        assert [kind for kind, _ in widths] == ["kept", "over", "free"]
        assert widths[0][1] / widths[1][1] == pytest.approx(0.8, rel=0.01)
        assert widths[2][1] / widths[1][1] == pytest.approx(0.5, rel=0.01)
        (one,) = (each for each in root.iter(f"{name}line") if each.get("class") == "one")
        bar = next(root.iter(f"{name}rect"))
        assert float(one.get("x1") or 0) - float(bar.get("x") or 0) == pytest.approx(widths[1][1], rel=0.01)
        assert [each.text for each in root.iter(f"{name}text")][3::2] == ["0.80", "1.00", "0.50"]


class TestAnswers:
    def test_rsync(self) -> None:
        output = (
            b"\nNumber of files: 22,254\n\nTotal bytes sent: 1,034\nTotal bytes received: 401,487,123\n\nsent 1.2K\n"
        )
        assert rsync_traffic(output) == Traffic(sent=1034, received=401_487_123)
        assert rsync_traffic(output).total == 401_488_157
        with pytest.raises(BenchError, match="no bytes received"):
            rsync_traffic(b"Total bytes sent: 5\n")

    def test_rsync_as_it_runs(self, tmp_path: Path) -> None:
        require("rsync")
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "file").write_bytes(os.urandom(100_000))
        done = run(["rsync", "-a", "--stats", f"{tmp_path}/a/", f"{tmp_path}/b/"])
        assert 100_000 < rsync_traffic(done.stdout).total < 110_000

    def test_sandlift(self) -> None:
        assert sandlift_traffic(b'{"wire": {"sent": 3, "received": 4}}') == Traffic(sent=3, received=4)

    def test_options(self) -> None:
        assert option_names("  --like REF    of --base\n  -v, --verbose  Show.\n  x --no\n") == {"--like", "--verbose"}

    def test_many(self) -> None:
        output = (
            "   1 at once:   5.00 captures/s,    90 ms of processor each, 4 threads, 9 descriptors, 0 failures\n"
            " 200 at once:   8.00 captures/s,    90 ms of processor each, 99 threads, 99 descriptors, 2 failures\n"
            "  throughput: 1.60 x one alone, 0.80 x the best of (1, 2, 4, 8)\n"
            "  coroutines:   8.00 captures/s,    90 ms of processor each, 99 threads, 99 descriptors, 1 failures\n"
            "  event loop: 12 ms without a turn at most; an idle one in another process 3 ms\n"
        )
        assert many_figures(output) == {"many failures": 3, "many slowdown": 1.25, "many event loop": 12}
        assert many_figures("1 failures\n") == {}


class TestMachine:
    def test_busy_time_leaves_idle_and_waiting_out(self) -> None:
        assert busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 9 9 9 9\n") == 1 + 2 + 4 + 8 + 16 + 32

    @pytest.mark.parametrize(
        ("foreign_s", "wall_s", "expected"),
        [(5.0, 0.4, False), (0.09, 0.6, False), (0.15, 1.0, False), (0.17, 1.0, True), (0.5, 4.0, False), (2, 4, True)],
    )
    def test_what_counts_as_disturbed(self, foreign_s: float, wall_s: float, expected: bool) -> None:
        assert is_disturbed(foreign_s, wall_s, processors=2) == expected

    def test_waiting_ends_with_the_allowance(self) -> None:
        clock = [0.0]

        def busy() -> float:
            clock[0] += 100.0
            return clock[0]

        slept: list[float] = []
        quiet = Quiet(allowance_s=3.0, longest_wait_s=2.0, sleep=slept.append, read_busy_s=busy)
        quiet.wait()
        assert (sum(slept), quiet.allowance_s) == (2.0, 1.0)
        assert quiet.may_repeat(0.75)
        assert not quiet.may_repeat(0.5)
        quiet.wait()
        quiet.wait()
        assert (sum(slept), quiet.allowance_s) == (2.25, 0.0)

    def test_waiting_ends_when_it_is_quiet(self) -> None:
        slept: list[float] = []
        quiet = Quiet(allowance_s=3.0, longest_wait_s=2.0, sleep=slept.append, read_busy_s=lambda: 0.0)
        quiet.wait()
        assert slept == [0.25]

    def test_descendants(self) -> None:
        code = "import subprocess, sys; subprocess.run(['sh', '-c', 'read x; exit 0'])"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
            assert process.pid in children_of(os.getpid())
            while not (below := descendants_of(process.pid)):
                assert process.poll() is None
            assert process.pid not in below
            assert set(below) <= set(descendants_of(os.getpid()))
            process.communicate(b"\n", timeout=20)

    def test_processor_time_of_ended_and_of_living_processes(self) -> None:
        burn = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read(1)"
        script = '"$0" -c "$1" </dev/null >/dev/null; "$0" -c "$1"; exit 0'
        with subprocess.Popen(
            ["sh", "-c", script, sys.executable, burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            # Of one that has ended and one that lives, each to a tick or two.
            assert 0.5 < process_cpu_s(process.pid) < 3
            process.communicate(b"x", timeout=20)
        assert process_cpu_s(process.pid) == 0.0


class TestProcesses:
    def test_a_failure_is_told_with_its_words(self) -> None:
        with pytest.raises(CommandError, match="exit status 3: .*\nwhy") as caught:
            run("echo why >&2; exit 3")
        assert isinstance(caught.value, BenchError)
        with pytest.raises(CommandError, match="exit status 1"):
            run("false | cat")
        with pytest.raises(CommandError, match="is missing"):
            run(["no-such-program"])
        assert run("echo $X", env={"X": "y"}).stdout == b"y\n"

    @pytest.mark.parametrize(
        ("words", "is_command", "expected"),
        [
            (local_argv("/usr/bin/python3"), False, "helper"),
            (["/x/bin/python", "/x/bin/sandlift", "capture"], True, "host"),
            (["ssh", "-S", "none"], False, "other"),
            (["/x/bin/python", "other.py"], False, "other"),
            ([""], False, "other"),
        ],
    )
    def test_roles(self, words: list[str], is_command: bool, expected: str) -> None:
        assert role_of("\0".join([*words, ""]).encode(), is_command=is_command) == expected

    def test_pss(self) -> None:
        assert pss_bytes("00400000-7ff [rollup]\nRss:  9 kB\nPss:       12 kB\nPss_Dirty: 3 kB\n") == 12 * 1024

    def test_memory_of_host_and_helper_is_told_apart(self) -> None:
        code = "held = b'x' * {}; import sys, subprocess; {}"
        helper = [sys.executable, "-S", "-c", code.format(60 << 20, "sys.stdin.read(1)")]
        host = code.format(20 << 20, f"child = subprocess.Popen({helper!r}); print(flush=True); child.wait()")
        with subprocess.Popen([sys.executable, "-c", host], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            sampler = Sampler(server_pid=0)
            with sampler.watching(process.pid):
                while sampler.memory.helper_bytes < 60 << 20:
                    assert process.poll() is None
                process.communicate(b"x", timeout=20)
        assert 60 << 20 < sampler.memory.helper_bytes < 100 << 20
        assert 20 << 20 < sampler.memory.host_bytes < 60 << 20


def snapshot(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


class TestTrees:
    def test_one_file_in_a_hundred_changes_and_no_size(self, tmp_path: Path) -> None:
        for number in range(300):
            (tmp_path / f"f{number:03}").write_bytes(b"x" * number)
        before = snapshot(tmp_path)
        trees.change_some(tmp_path)
        after = snapshot(tmp_path)
        # f000 is empty and cannot change.
        assert [name for name in sorted(before) if before[name] != after[name]] == ["f100", "f200"]
        assert {name: len(data) for name, data in before.items()} == {name: len(data) for name, data in after.items()}

    @pytest.mark.parametrize(
        ("role", "files", "size"),
        [
            ("quick", 120, None),
            ("million", 60, 720),
            ("huge", 2, 3 << 20),
            ("sparse", 1, 256 << 20),
            ("bulk", 1, 2 << 20),
        ],
    )
    def test_each_is_made_once_and_alike(self, tmp_path: Path, role: str, files: int, size: int | None) -> None:
        (tmp_path / "other").mkdir()
        tree = trees.ready(tmp_path, role, TINY)
        assert tree.facts.files == files
        assert size is None or tree.facts.bytes == size
        assert tree.facts == trees.facts_of(tree.path)
        assert trees.ready(tmp_path, role, TINY) == tree
        again = trees.ready(tmp_path / "other", role, TINY)
        assert (again.path.name, snapshot(again.path)) == (tree.path.name, snapshot(tree.path))
        assert sorted(os.listdir(tmp_path)) == sorted(["other", tree.path.name, f"{tree.path.name}.facts.json"])

    def test_holes_blocks_and_lengths(self, tmp_path: Path) -> None:
        sparse = trees.ready(tmp_path, "sparse", TINY)
        assert (sparse.path / "disk.img").stat().st_blocks * 512 < 3 << 20
        bulk = (trees.ready(tmp_path, "bulk", TINY).path / "bulk.bin").read_bytes()
        assert bulk[: 1 << 20] != bulk[1 << 20 :]
        facts = trees.ready(tmp_path, "million", TINY).facts
        assert (facts.directories, facts.blocks) == (3, 60)
        # "d000" and "d000/f000000", each with its NUL.
        assert facts.path_bytes == 3 * 5 + 60 * 13
        assert facts.table_bytes == facts.path_bytes + 36 * 63 + 32 * 60

    def test_a_repository_with_its_history(self, tmp_path: Path) -> None:
        require("git")
        tree = trees.ready(tmp_path, "git", TINY)
        git = ["git", "-C", str(tree.path)]
        assert run([*git, "rev-list", "--count", "HEAD"]).stdout == b"50\n"
        assert run([*git, "status", "--porcelain"]).stdout == b""
        counted = dict(line.split(": ") for line in run([*git, "count-objects", "-v"]).stdout.decode().splitlines())
        assert counted["packs"] == "1"
        assert int(counted["count"]) > 30

    def test_what_does_not_fit_is_left_out(self, tmp_path: Path) -> None:
        with pytest.raises(LeftOutError, match=r"the bulk tree needs [\d,]+ MiB in .*, [\d,]+ are free"):
            trees.ready(tmp_path, "bulk", replace(TINY, bulk_mib=1 << 40))
        assert os.listdir(tmp_path) == []

    def test_what_cannot_be_made_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(folder: Path, _: trees.Scale) -> None:
            (folder / "half").touch()
            run("exit 9")

        monkeypatch.setitem(trees.RECIPES, "quick", (fail, *trees.RECIPES["quick"][1:]))
        with pytest.raises(LeftOutError, match="the quick tree cannot be made: exit status 9"):
            trees.ready(tmp_path, "quick", TINY)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("spoil", ["content", "mode", "time", "extra", "missing", "link"])
    def test_a_restore_that_is_not_equal_is_noticed(self, tmp_path: Path, spoil: str) -> None:
        require("rsync")
        tree, restored = tmp_path / "tree", tmp_path / "restored"
        (tree / "sub").mkdir(parents=True)
        (tree / "sub" / "a").write_bytes(b"abc")
        (tree / "link").symlink_to("sub/a")
        shutil.copytree(tree, restored, symlinks=True)
        check_equal(tree, restored)
        file = restored / "sub" / "a"
        status = file.stat()
        if spoil == "content":
            file.write_bytes(b"abd")
            os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns))
        elif spoil == "mode":
            file.chmod(0o600)
        elif spoil == "time":
            os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns - 1_000_000_000))
        elif spoil == "extra":
            (restored / "more").write_bytes(b"")
        elif spoil == "missing":
            file.unlink()
        else:
            (restored / "link").unlink()
            (restored / "link").symlink_to("sub")
        with pytest.raises(BenchError, match="not what was captured"):
            check_equal(tree, restored)


class TestPreparations:
    def test_what_they_leave(self, tmp_path: Path) -> None:
        folder, file = tmp_path / "folder", tmp_path / "file"
        emptied(folder)()
        (folder / "x").write_bytes(b"123")
        file.touch()
        replaced(tmp_path / "copy", folder)()
        replaced(tmp_path / "copy", folder)()
        assert snapshot(tmp_path / "copy") == {"x": b"123"}
        assert size_bytes(folder) == 3
        emptied(folder)()
        absent(file, tmp_path / "copy", tmp_path / "never")()
        assert os.listdir(tmp_path) == ["folder"]
        assert os.listdir(folder) == []

    def test_the_first_word(self) -> None:
        assert (first_word("zstd -dc x | tar x"), first_word(["borg", "create"])) == ("zstd", "borg")


def test_rows_without_budget_are_never_over() -> None:
    row = Row(work="w", against="", value=1e9, lowest=0, highest=0, at_most=None, unit="x", count=1)
    assert row.is_kept
