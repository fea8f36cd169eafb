"""The commands `rules suggest` and `rules check`."""

from __future__ import annotations

from pathlib import Path

from command_line import done, flat


def test_rules_are_suggested_and_checked(tmp_path: Path) -> None:
    labels, rules = tmp_path / "labels.csv", tmp_path / "rules.csv"
    lines = [f"i{n},{1 if n % 4 == 0 else -1},{1 if n % 2 == 0 else -1}" for n in range(600)]
    labels.write_text("\n".join(["image,dog,animal", *lines, "x,1,-1", ""]))
    output = flat(done("rules", "suggest", labels, "--minus-one", "absent"))
    assert f"Next: halflabel rules suggest {labels} --top 10 --minus-one absent --out rules.csv" in output
    output = flat(done("rules", "suggest", labels, "--minus-one", "absent", "--out", rules))
    assert "dog implies animal" in output
    assert rules.read_text() == "dog,implies,animal\n"
    output = flat(done("rules", "check", rules, labels, "--minus-one", "absent"))
    assert "2 entries where known labels break them: x: dog; x: animal" in output
    assert f"Next: halflabel fill RUN PHOTOS --rules {rules}" in output


def test_only_the_strongest_rules_are_shown(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    pairs = [("1,-1", "-1,1")[n >> bit & 1] for n in range(1600) for bit in range(4)]  # a or b, c or d, …
    lines = [",".join([f"i{n}", *pairs[4 * n : 4 * n + 4]]) for n in range(1600)]
    labels.write_text("\n".join(["image,a,b,c,d,e,f,g,h", *lines, ""]))
    done("rules", "suggest", labels, "--minus-one", "absent", "--top", "1", "--out", tmp_path / "rules.csv")
    assert len((tmp_path / "rules.csv").read_text().splitlines()) == 1
