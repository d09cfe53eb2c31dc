"""The table of keys is whole: ids, actions, clashes, docs, overrides."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from docs.make_keys import page
from tensordiff.tui.keys import KEYS, OWNERS, WHERES, Key, Where


def owner(where: Where) -> type:
    file, _, name = OWNERS[where].partition(":")
    found: type = getattr(import_module("tensordiff." + file.removesuffix(".py").replace("/", ".")), name)
    return found


def test_ids_are_unique() -> None:
    assert [name for name, count in Counter(key.id for key in KEYS).items() if count > 1] == []


@pytest.mark.parametrize("where", WHERES)
def test_no_key_means_two_things_in_one_part(where: Where) -> None:
    used = Counter(one for key in KEYS if key.where == where for one in key.keys.split(","))
    assert [one for one, count in used.items() if count > 1] == []


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_every_key_has_an_action(key: Key) -> None:
    action = re.fullmatch(r"(screen\.)?(\w+)(?:\(.*\))?", key.action)
    assert action, key.action
    assert hasattr(owner("diff" if action[1] else key.where), f"action_{action[2]}"), key


def test_a_key_of_the_table_does_not_hide_one_of_the_screen_around_it() -> None:
    inner = {one for key in KEYS if key.where == "table" for one in key.keys.split(",")}
    outer = {one for key in KEYS if key.where in ("diff", "app") for one in key.keys.split(",")}
    assert inner & outer == set()


def test_the_page_of_keys_is_up_to_date() -> None:
    assert (Path(__file__).parents[2] / "docs" / "keys.md").read_text("utf-8") == page()
