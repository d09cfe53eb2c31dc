"""The page in a real browser, where one is installed: it draws itself, and no name in it runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tensordiff.report import write_report
from tests import processes
from tests.making import numbers
from tests.report.comparisons import HOSTILE, compared, samples

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed; apt-get install chromium")


def opened(path: Path) -> str:
    """The page as it stands after its script ran."""
    assert BROWSER
    command = (BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent / 'profile'}",
               "--window-size=1400,1000", "--dump-dom", path.as_uri())  # fmt: skip
    done = processes.run(command)
    return done.stdout


def test_the_page_draws_itself(tmp_path: Path) -> None:
    write_report(*samples(), tmp_path / "r.html")
    text = opened(tmp_path / "r.html")
    assert re.search(r'<html[^>]* data-ready="\d+"', text)
    assert text.count('class="row') > 20
    assert 'class="row picked"' in text
    assert re.search(r'<div id="detail"[^>]*><div><strong class="mono">layers.1.mlp.act_fn</strong>', text)
    assert "5 diverges" in text


DRIVEN = """
const said = (name, value) => document.body.append(make("output", name, JSON.stringify(value)));
const names = () => [...document.querySelectorAll("tr.row td:nth-child(3)")].map((cell) => cell.textContent);
const heading = (name) => document.querySelector(`[data-name="${name}"] button`);
heading("rel_l2").click();
said("sorted", names().slice(0, 2));
heading("rel_l2").click();
said("ascending", [heading("rel_l2").parentElement.getAttribute("aria-sort"), names()[0]]);
heading("index").click();
byId("filter").value = "ACT_FN";
byId("filter").dispatchEvent(new Event("input"));
said("filtered", names());
byId("filter").value = "";
byId("filter").dispatchEvent(new Event("input"));
document.querySelector(".chip.agrees").click();
said("faults", names().length);
byId("scroll").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
said("picked", document.querySelector("#detail strong").textContent);
const box = byId("plot").getBoundingClientRect();
const place = (x) => ({ clientX: box.left + x, clientY: box.top + 50 });
const at = (kind, x) => byId("plot").dispatchEvent(new PointerEvent(kind, place(x)));
at("pointerdown", 400); at("pointermove", 700); at("pointerup", 700);
said("zoomed", view.from > 0 && view.to < count - 1);
byId("plot").dispatchEvent(new MouseEvent("dblclick"));
said("whole", [view.from, view.to]);
"""


def test_the_page_can_be_driven(tmp_path: Path) -> None:
    write_report(*samples(), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    head, _, tail = text.rpartition("</script>")
    (tmp_path / "driven.html").write_text(f"{head}{DRIVEN}</script>{tail}")
    said = dict(re.findall(r'<output class="(\w+)">([^<]*)</output>', opened(tmp_path / "driven.html")))
    found = {name: json.loads(value.replace("&quot;", '"')) for name, value in said.items()}
    assert found["sorted"] == ["layers.1.mlp.act_fn", "layers.1.mlp.down_proj input_0"]
    assert found["ascending"] == ["ascending", "embed_tokens input_0"]
    assert found["filtered"] == [f"layers.{k}.mlp.act_fn{port}" for k in (0, 1) for port in (" input_0", "")]
    assert found["faults"] == 11
    assert found["picked"] == "layers.1.mlp.down_proj input_0"
    assert found["zoomed"] is True
    assert found["whole"] == [0, 75]


def test_a_script_that_is_not_the_page_s_does_not_run(tmp_path: Path) -> None:
    write_report(*samples(), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text().replace("</body>", "<script>document.title = 'owned'</script></body>")
    (tmp_path / "owned.html").write_text(text)
    assert "<title>diverges: candidate against reference</title>" in opened(tmp_path / "owned.html")


def test_only_rows_in_sight_are_in_the_page(tmp_path: Path) -> None:
    many = {f"layers.{i}.mlp": numbers(2, seed=i) for i in range(2000)}
    write_report(*compared(many, many), tmp_path / "r.html")
    text = opened(tmp_path / "r.html")
    assert re.search(r'data-ready="\d+"', text)
    assert 20 < text.count('<tr class="row') < 100
    assert ">2000 pairs<" in text


def test_names_are_shown_and_do_nothing(tmp_path: Path) -> None:
    a = numbers(2, 6)
    reference = dict.fromkeys(HOSTILE, a)
    write_report(*compared(reference, {name: -array for name, array in reference.items()}), tmp_path / "r.html")
    text = opened(tmp_path / "r.html")
    assert re.search(r'data-ready="\d+"', text)
    body = text.partition('<tbody id="body">')[2].partition("</tbody>")[0]
    assert body.count('<tr class="row') == len(HOSTILE)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body
    assert not re.search(r"<(script|img|svg|b)\b", body)
