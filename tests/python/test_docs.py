# SPDX-License-Identifier: Apache-2.0
"""The example of docs/python.md runs, and prints what the page says."""

import runpy
import xml.etree.ElementTree
from pathlib import Path

import zbpp

HERE = Path(__file__).parent


def test_the_example_prints_what_its_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(HERE / "example.py"))
    page = (HERE.parent.parent / "docs" / "python.md").read_text()
    printed = capsys.readouterr().out
    assert printed.count("\n") == 4
    assert f"```text\n{printed}```\n" in page
    order = (tmp_path / "schedule.csv").read_text()
    assert zbpp.verify(order, names["problem"]) == []
    assert xml.etree.ElementTree.parse(tmp_path / "timelines.svg").getroot().get("width") == "1200"


def test_the_page_names_what_there_is():
    page = (HERE.parent.parent / "docs" / "python.md").read_text()
    for name in zbpp.__all__:
        assert f"`{name}" in page or f"zbpp.{name}(" in page, name
