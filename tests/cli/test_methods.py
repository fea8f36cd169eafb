"""The command methods."""

from __future__ import annotations

from pathlib import Path

from command_line import done, refused


def test_methods_are_listed_and_unknown_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image,class,value,source,score\na,cat,1,me,\n")
    assert "Binary cross-entropy on the known entries" in " ".join(done("methods").split())
    assert "did you mean bce" in refused("methods", "bcee")
    words = ["compare", tmp_path / "labels.csv", tmp_path, "--methods", "an,nope"]
    assert "no method is called 'nope'" in refused(*words)


def test_the_page_of_a_method_is_wrapped_at_the_width_of_the_screen() -> None:
    page = done("methods", "bn-bce")
    assert "With all\nlabels known" not in page
    assert "    L = Σ_known BCE / number of known entries in the batch\n" in page
    assert "relabel_at=\n" in done("methods", "curriculum")


def test_methods_lists_every_rule_of_auto() -> None:
    from halflabel.fitting.auto import RULES

    listed = " ".join(done("methods", "auto").split())
    assert listed in " ".join(done("methods").split())
    assert listed.count(" labels") >= len(RULES)
    for rule in RULES:
        _, found, listed = listed.partition(f"{rule.choices[0].method} for {' and '.join(rule.regimes)} labels")
        assert found, f"not listed, or not in order: {rule}"
        assert all(condition in listed for condition in rule.conditions())


def test_methods_lists_all_and_shows_one() -> None:
    from halflabel.methods.base import recipe, recipes

    text = done("methods")
    assert all(name in text for name in recipes())
    assert "an-ls  " in text.partition("learn from any labels")[0]
    assert "softmax" in text.partition("exactly one present class")[2]
    page = done("methods", "em")
    assert " ".join(recipe("em").page.split()) in " ".join(page.split())
    assert "alpha=0.2" in page
