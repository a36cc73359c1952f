"""What is installed, and who may import whom."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

import kvexact

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {"refmodel": "kvexact/refmodel", "impl": "kvexact/impl", "fuzz": "kvexact/fuzz"}
#: A folder of a machine that this project was written or built on.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:work|home|root|Users|mnt|data)/")

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    names = listed.stdout.decode().split("\0")
    return [name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def sources(*folders: str) -> list[str]:
    return [name for name in tracked() if name.endswith(".py") and name.split("/")[0] in folders]


def imports(name: str, *, anywhere: bool = True) -> Iterator[str]:
    """Modules that a file imports; without ``anywhere`` only those it imports when it is loaded."""
    tree = ast.parse((ROOT / name).read_text())
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import loads a module twice"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, *packages: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in a wheel built from what git tracks, or in the one that KVEXACT_WHEEL names."""
    if "KVEXACT_WHEEL" in os.environ:
        return names_in(Path(os.environ["KVEXACT_WHEEL"]))
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "tree" / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder],
        cwd=folder / "tree",
        check=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    (path,) = folder.glob("*.whl")
    return names_in(path)


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_holds_what_git_tracks(wheel: list[str]) -> None:
    expected = set()
    for name in tracked():
        top, _, rest = name.partition("/")
        if top in FOLDERS:
            expected.add(f"{FOLDERS[top]}/{rest}")
        elif top == "src":
            expected.add(rest)
    assert {name for name in wheel if ".dist-info/" not in name} == expected


def test_wheel_adds_one_import_name(wheel: list[str]) -> None:
    assert {PurePosixPath(name).parts[0] for name in wheel} == {
        "kvexact",
        f"kvexact-{kvexact.__version__}.dist-info",
    }


def test_every_package_is_listed() -> None:
    found = {"kvexact"}
    for name in tracked():
        top, _, rest = name.partition("/")
        if top in FOLDERS and rest.endswith("__init__.py"):
            found.add(str(PurePosixPath(FOLDERS[top], rest).parent).replace("/", "."))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_version_is_said_once() -> None:
    assert PROJECT["project"]["version"] == kvexact.__version__


@pytest.mark.parametrize("name", kvexact.__all__)
def test_public_name_exists(name: str) -> None:
    assert getattr(kvexact, name) is not None


def test_public_names_are_loaded_when_asked_for() -> None:
    code = "import kvexact, sys; assert not {'numpy', 'torch', 'hypothesis'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = kvexact.missing


def test_plugin_is_quick_to_load() -> None:
    allowed = ("pytest", *sys.stdlib_module_names)
    loaded = set(imports("fuzz/plugin.py", anywhere=False))
    assert {module for module in loaded if not within(module, *allowed)} == set()


@pytest.mark.parametrize("name", ["refmodel/spec.py", "refmodel/ops.py"])
def test_plain_data_computes_nothing(name: str) -> None:
    """Model and engine share these files; arithmetic here would be a bug in both."""
    tree = ast.parse((ROOT / name).read_text())
    found = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if (isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in ("sum", "divmod", "round"))
    }
    assert found <= {"2 ** 62", "2.0 ** (-100)", "2.0 ** 100"}  # bounds of what may be said


def test_model_stands_alone() -> None:
    allowed = ("kvexact.refmodel", "numpy", *sys.stdlib_module_names)
    found = {
        (name, module)
        for name in sources("refmodel")
        for module in imports(name)
        if not within(module, *allowed)
    }
    assert found == set()


PLAIN_DATA = tuple(
    f"kvexact.refmodel.{name}" for name in ("spec", "ops", "timed_ops", "serving_ops", "answer")
)


def test_implementations_share_only_plain_data_with_the_model() -> None:
    found = {
        (name, module)
        for name in sources("impl")
        for module in imports(name)
        if within(module, "kvexact.fuzz", "kvexact.refmodel") and not within(module, *PLAIN_DATA)
    }
    assert found == set()


def test_imports_are_absolute_and_through_the_installed_name() -> None:
    found = {
        (name, module)
        for name in sources("refmodel", "impl", "fuzz", "src", "tests")
        for module in imports(name)
        if within(module, *FOLDERS)
    }
    assert found == set()


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    found = []
    for name in tracked():
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []
