"""Lines of the user's own, and how they are named."""

from __future__ import annotations

import pytest

from graphdoctor.values.finding import Finding, caller_of
from graphdoctor.values.locations import Excerpt, Location, is_library, own_line, path_text
from tests.support.checking import finding

LIBRARY = Location("/usr/lib/python3/dist-packages/torch/nn/functional.py", 3)
OWN = Location("/repo/train.py", 7)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        (LIBRARY.file, True),
        ("site-packages/timm/models.py", True),
        ("C:\\venv\\Lib\\site-packages\\timm\\models.py", True),
        (OWN.file, False),
        ("/repo/my-site-packages/train.py", False),
    ],
)
def test_a_file_of_an_installed_package_is_a_librarys(path: str, is_one: bool) -> None:
    assert is_library(path) is is_one


def test_a_finding_in_a_library_has_the_users_line_that_led_there() -> None:
    assert own_line([None, LIBRARY, OWN, Location("/repo/main.py", 1)]) == OWN
    assert own_line([LIBRARY, None]) is None
    assert caller_of(at(LIBRARY, stack=(LIBRARY, OWN))) == OWN
    assert caller_of(at(OWN, stack=(Location("/repo/main.py", 1),))) is None
    assert caller_of(at(None, stack=(OWN,))) is None


def at(place: Location | None, **changes: object) -> Finding:
    return finding(location=place, **changes)


@pytest.mark.parametrize(("line", "code"), [(9, None), (10, "a"), (12, "c"), (13, None)])
def test_a_findings_code_is_its_line_of_the_excerpt(line: int, code: str | None) -> None:
    excerpt = Excerpt(10, ("a", "b", "c"))
    assert at(Location(OWN.file, line), excerpt=excerpt).code == code


def test_without_a_line_or_an_excerpt_there_is_no_code() -> None:
    assert at(None).code is None
    assert at(OWN, excerpt=None).code is None


def test_a_path_is_relative_only_to_a_folder_that_it_lies_in() -> None:
    assert path_text("/repo/models/net.py", "/repo/") == "models/net.py"
    assert path_text("/repo2/net.py", "/repo") == "/repo2/net.py"
    assert path_text("/repo/net.py") == "/repo/net.py"
