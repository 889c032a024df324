"""What tasks are given by the driver: it is data wherever it has been in a file, and an altered file is refused."""

import ast
import contextlib
import os
import pickle
from functools import partial
from pathlib import Path

import pytest

import dbspark
from dbspark.errors import CorruptFileError
from dbspark.runtime import exchange as superstep
from dbspark.runtime.exchange import JobInputs, SuperstepRunner, TaskInput
from dbspark.runtime.level_plan import Level
from dbspark.runtime.task import TickContext
from dbspark.runtime.unrolled import _FixpointState
from dbspark.storage.files import files_at
from dbspark.storage.manifest import TraceRecord

SERIALIZERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
UNPICKLED = {
    "runtime/exchange.py": {"_cached_levels", "_decode_inputs"},
    "runtime/wire.py": {"verified_code"},
    "sql/identity.py": {"python_function"},
    "kernels/objects.py": {"parse_unit"},
}
"""Where something may be unpickled: the levels and the property of a job, which Spark carries from the driver; levels
that the driver has signed for a worker; functions of the user that plans of the driver's own session hold, where they
are identified; and compiled kernels, which only their owner can have written."""


class CodeOnUnpickling:
    """Pickled, it is code that unpickling runs."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def inputs_at(tmp_path, monkeypatch, inline=0):
    monkeypatch.setattr(superstep, "MAX_PROPERTY_BYTES", inline)
    steps = SuperstepRunner.__new__(SuperstepRunner)
    steps.shards = 2
    context = TickContext(7, 2, partial(files_at, str(tmp_path)))
    records = {"node": {0: (TraceRecord(0, ()),), 1: (TraceRecord(1, ()),)}}

    class Step:
        id = "node"

    rows = [(0, "slot", b"some"), (0, "slot", b""), (1, "é", b"\0")]
    text, file = steps._make_inputs(context, [Level([Step()])], records, rows)
    return superstep._decode_inputs(text), file


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_a_task_gets_its_records_and_rows(tmp_path, monkeypatch, inline):
    inputs, file = inputs_at(tmp_path, monkeypatch, inline)
    assert (file is None) == bool(inline)
    first, second = inputs.of((0, 0)), inputs.of((0, 1))
    assert first == TaskInput({"node": [{"sort_key": 0, "entries": []}]}, [("slot", b"some"), ("slot", b"")])
    assert second == TaskInput({"node": [{"sort_key": 1, "entries": []}]}, [("é", b"\0")])


def test_a_tampered_file_of_inputs_is_refused_and_never_run(tmp_path, monkeypatch):
    inputs, file = inputs_at(tmp_path, monkeypatch)
    path, mark = tmp_path / file, tmp_path / "it has run"
    before = {task: inputs.of(task) for task in inputs.extents}
    whole = path.read_bytes()
    code = pickle.dumps(CodeOnUnpickling(str(mark)))
    pickle.loads(code)
    assert mark.exists()  # so it is code
    mark.unlink()
    altered = [code.ljust(len(whole), b"."), code, b"", whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]]
    for content in altered:
        os.chmod(path, 0o644)
        path.write_bytes(content)
        refused = 0
        for task in inputs.extents:
            with contextlib.suppress(CorruptFileError):
                assert inputs.of(task) == before[task]  # the part of a task that has not been touched
                continue
            with pytest.raises(CorruptFileError, match=f"{file} has been altered"):
                inputs.of(task)
            refused += 1
        assert refused
        assert not mark.exists()
    path.unlink()
    with pytest.raises(CorruptFileError, match="is missing"):
        inputs.of((0, 0))


def test_what_a_fixpoint_carries_is_data():
    carried = _FixpointState(
        3,
        {"trace": [b"one", ["part-1", 64, 3, "abc", 0], b""]},
        {"node": {4: [b"two"], 9: [["part-1", 128, 3, "abc", 0]]}},
        {"name": [b"\0\1"], "empty": []},
    )
    assert _FixpointState.from_bytes(carried.to_bytes(None)) == carried
    assert _FixpointState.from_bytes(_FixpointState().to_bytes(None)) == _FixpointState()


def test_a_pickle_in_place_of_what_a_fixpoint_carries_is_refused(tmp_path):
    mark = tmp_path / "it has run"
    for content in (pickle.dumps(CodeOnUnpickling(str(mark))), b"", _FixpointState(1).to_bytes(None)[:-30]):
        with pytest.raises(CorruptFileError, match="carries from stage to stage is damaged"):
            _FixpointState.from_bytes(content)
    assert not mark.exists()


def test_nothing_is_unpickled_but_what_spark_carries_from_the_driver():
    source = Path(dbspark.__file__).parent
    found = set()
    for path in sorted(source.rglob("*.py")):
        name = str(path.relative_to(source))
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    node.__dict__.setdefault("inside", function.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[-1] for alias in node.names} | {a.name.split(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names} | set((node.module or "").split("."))
            else:
                if isinstance(node, ast.keyword):
                    assert node.arg != "allow_pickle", f"{name}: allow_pickle"
                used = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
                if used in SERIALIZERS and node.attr != "dumps":
                    inside = getattr(node, "inside", None)
                    assert node.attr == "loads", f"{name}:{node.lineno} uses {used}.{node.attr}"
                    assert inside in UNPICKLED.get(name, ()), f"{name}:{node.lineno} unpickles"
                    found.add((name, inside))
                continue
            if names & SERIALIZERS:
                assert name in UNPICKLED, f"{name}:{node.lineno} imports {', '.join(names & SERIALIZERS)}"
                assert not any(alias.asname or alias.name in ("loads", "load") for alias in node.names)
    assert found == {(name, inside) for name, places in UNPICKLED.items() for inside in places}


def test_job_inputs_name_the_file_only_where_there_is_one(tmp_path, monkeypatch):
    inputs, file = inputs_at(tmp_path, monkeypatch, 1 << 20)
    assert isinstance(inputs, JobInputs)
    assert file is None
    assert not list(tmp_path.glob("part-*"))
