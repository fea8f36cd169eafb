"""The command `review`: serve the review page, or export its answers as labels."""

from __future__ import annotations

import getpass
import secrets
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import quote

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.options import check_free, check_needs
from halflabel.cli.progress import Bar
from halflabel.cli.sequence import (
    after_review,
    after_train,
    join_command,
    remember_fill,
    remembered_fill,
)
from halflabel.cli.terminal import console, plain_table, show_command, show_next, show_written
from halflabel.errors import UserError
from halflabel.images import stored_features
from halflabel.labels import answers as answer_store
from halflabel.labels import formats
from halflabel.labels import names as label_names
from halflabel.questions import choose
from halflabel.report import run_page
from halflabel.review import live_process, live_run, server
from halflabel.review import session as review_session
from halflabel.review import thumbnails as review_thumbnails
from halflabel.runs import folder as run_folder
from halflabel.runs import from_nothing, scores
from halflabel.serve import guard
from halflabel.system.files import refuse_remote
from halflabel.system.format import counted, decimal, percent
from halflabel.system.remote import local_folder
from halflabel.system.reporter import Reporter
from halflabel.system.sockets import is_loopback, open_socket


@app.command()
def review(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `train`; with --classes a new folder.")],
    images: Annotated[Path | None, typer.Argument(metavar="IMAGES", help="The folder with the image files.")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Ask only these questions, from `halflabel next`, without learning meanwhile.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Start without labels: class names separated by commas, or a file with one per line."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="With --classes: the backbone, as for `train` (default: that of `train`).")
    ] = None,
    label: Annotated[str | None, typer.Option("--class", help="Open the page at the photos of this class.")] = None,
    precision: Annotated[
        float | None,
        typer.Option(
            help="How sure the model must be to decide a label by itself.",
            min=0.5,
            max=0.999,
            show_default="that of the last `fill`, else 0.95",
        ),
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="The file for the answers (default: RUN/answers.sqlite).")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="A PostgreSQL database for the answers of a team: postgresql://USER@HOST/DATABASE."),
    ] = None,
    reviewer: Annotated[
        str | None,
        typer.Option(
            "--reviewer",
            "--who",
            help="Name of the person who answers (default: your login name; with --twice or --host each browser asks).",
        ),
    ] = None,
    twice: Annotated[
        float, typer.Option(help="Share of the questions that two people answer, to see how they agree.", min=0, max=1)
    ] = 0.0,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but 127.0.0.1 can be reached from other machines.")
    ] = ("127.0.0.1"),
    tls: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Serve https, with the files of a certificate and its key (PEM).", metavar="CERT KEY"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port (default: that of the last review, 8765, or a free one).", min=0, max=65535)
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Change the secret in the address: the old address is refused.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the answers to this label file (.csv or .parquet) instead of serving the page."),
    ] = None,
    with_labels: Annotated[
        bool, typer.Option("--with-labels", help="With --export: also write the labels of the run, ready for `train`.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --export: overwrite the file.")] = False,
) -> None:
    """Answer questions about images in the browser; the model learns while you click. All data stay on this machine.

    After every 20 answers the model is fitted again and asks what helps it most. One question in ten is a random check,
    from which the page estimates how good the model is. Answers are saved at once. Finish, on the page, trains a new
    run, fills the unknown labels and writes a report; so do: halflabel train --continue RUN, then halflabel fill

    Example: halflabel review runs/first photos/

    Example: halflabel review runs/birds photos/ --classes robin,wren,blackbird
    """
    if classes is not None and export is None:
        _start_without_labels(run, images, classes, backbone)
    else:
        check_needs("--classes NAMES", {"--backbone": backbone is not None})
    refuse_remote(run)
    opened = run_folder.RunFolder.open(run)
    if answers is not None and store is not None:
        raise UserError("--answers and --store name two places for the answers", "give one of them")
    place = store or answers or opened.answers
    if store is not None and "://" not in store:
        raise UserError(f"{store!r} is not the URL of a database", "give postgresql://USER@HOST/DATABASE")
    if export is not None:
        _export(opened, place, export, with_labels, force)
        return
    check_needs("--export FILE", {"--with-labels": with_labels, "--force": force})
    if images is None:
        raise UserError("IMAGES is missing", f"halflabel review {shlex.quote(str(run))} photos/")
    for file in tls or ():
        if not file.is_file():
            raise UserError(f"{file} is not a file", "--tls needs the files of a certificate and its key")
    access = _Access(reviewer, twice, host, port, tls, new_token)
    precision = _chosen_precision(opened, precision)
    _serve(opened, images, questions, place, access, precision, label)


class _Access(NamedTuple):
    """Who answers, and how the page is reached."""

    reviewer: str | None
    twice: float
    host: str
    port: int | None
    tls: tuple[Path, Path] | None
    new_token: bool


def _chosen_precision(run: run_folder.RunFolder, given: float | None) -> float:
    """Return the precision of the review, and remember it for the `fill` after it if it is given."""
    options = {"--precision": ["0.95"], **remembered_fill(run)}
    if given is None:
        return float(*options["--precision"])
    remember_fill(run, {**options, "--precision": [f"{given:g}"]})
    return given


def _start_without_labels(run: Path, images: Path | None, classes: str, backbone: str | None) -> None:
    """Start a run folder without labels, unless it was started before with the same classes."""
    names = from_nothing.read_class_names(classes)
    if run_folder.RunFolder(run).is_started:
        if list(run_folder.RunFolder(run).read_labels().classes) != names:
            raise UserError(f"{run} was started with other classes", "leave --classes out, or name another folder")
        return
    if images is None:
        raise UserError("IMAGES is missing", f"halflabel review {shlex.quote(str(run))} photos/ --classes {classes}")
    live_run.start_without_labels(run, images, names, backbone)


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "someone"


def _export(run: run_folder.RunFolder, place: str | Path, out: Path, with_labels: bool, force: bool) -> None:

    if isinstance(place, Path) and not place.exists():
        raise UserError(
            f"there are no answers yet ({place})", f"halflabel review {shlex.quote(str(run.folder))} photos/"
        )
    check_free(out, force)
    labels = run.read_rows()
    with closing(answer_store.AnswerStore(place)) as store:
        rows = store.label_rows(labels.images, labels.classes)
        current = store.current()
    groups = list(answer_store.group_by_entry(current).values())
    unsure = sum(item.value == 0 for item in answer_store.holding_answers(current))
    present = int((rows.value > 0).sum())
    formats.write(labels.append(rows) if with_labels else rows.drop_unused_names(), out)
    content = f"{counted(len(rows), 'answer')}, {present} present and {len(rows) - present} absent"
    show_written(out, f": {content}; {unsure} unsure left out")
    _show_agreement(groups)
    if with_labels:
        config = run.read_config()
        method = str(config.get("method", "an"))
        show_next("train", out, str(config.get("images") or "photos/"), "--method", method)
    else:
        show_next("train", "--continue", run.folder, "--answers", out)


def _show_agreement(groups: Sequence[Sequence[answer_store.Answer]]) -> None:
    """Print how people agree who answered the same questions; nothing if there are none."""
    agreement = answer_store.measure_agreement(groups)
    if not agreement:
        return
    table = plain_table("Do people agree?", numbers=("answered by two", "equal", "Cohen's κ"))
    for label, item in agreement.items():
        kappa = "—" if item.kappa is None else decimal(item.kappa, 2)
        table.add_row(escape(label) or "[bold]all[/]", str(item.pairs), percent(item.equal, item.pairs), kappa)
    console.print(table)
    errors = (
        f"{escape(who)} {percent(error, 1)}" for who, error in sorted(answer_store.expected_errors(groups).items())
    )
    console.print(f"Expected errors: {', '.join(errors)}")
    if conflicts := sum(map(answer_store.is_conflict, groups)):
        console.print(
            f"{counted(conflicts, 'conflict is', 'conflicts are')} not settled: the answer of the more reliable person "
            "holds, or neither. Settle them on the review page, under Conflicts."
        )


def _page_address(access: _Access, port: int, token: str, label: str | None) -> str:
    """Return the address of the review page, on the class `label` if one is named."""

    host = f"[{access.host}]" if ":" in access.host else access.host
    page = "" if label is None else f"&class={quote(label, safe='')}"
    return f"{'https' if access.tls else 'http'}://{host}:{port}/#{token}{page}"


def _serve(
    run: run_folder.RunFolder,
    images: Path,
    questions: Path | None,
    place: str | Path,
    access: _Access,
    precision: float,
    label: str | None,
) -> None:

    # Scoring images may take long: mistakes are reported before.
    images = local_folder(images)
    has_labels = run.read_labels().known > 0
    if label is not None and label not in run.read_labels().classes:
        raise UserError(f"the run has no class {label!r}", "name a class of its labels")
    if has_labels:
        run.check_finished()
    chosen, further = _read_questions(run, images, questions) if questions is not None else (None, None)
    hindrance = live_process.live_hindrance(run)
    is_live = chosen is None and hindrance is None
    host = access.host
    is_local = is_loopback(host)
    address_file = (place if isinstance(place, Path) else run.answers).with_suffix(".address.json")
    last = server.read_address(address_file)
    earlier_port = [] if last is None else [last.port]
    ports = [*earlier_port, server.PORT, 0] if access.port is None else [access.port]
    with open_socket(host, *ports) as listening, ExitStack() as stack:
        with Bar("scores") as bar:
            scored = scores.scored_images(run, images, Reporter(bar), further)
        store = stack.enter_context(closing(answer_store.AnswerStore(place)))
        if chosen is None:
            chosen = _choose_questions(scored, place, is_live)
        if not chosen and has_labels and not any(store.count()):
            raise UserError("there is nothing to ask", "all entries of the run's labels are known or answered")
        for_fill = questions is not None and questions.resolve() == run.control.resolve()
        after = ""
        if has_labels and place != run.answers:
            after = after_review(run.folder, images, place=place)
        elif has_labels:
            after = after_review(run.folder, images, is_control=for_fill, all_photos=further is not None)
        session = review_session.ReviewSession(
            scored,
            chosen,
            store,
            who=access.reviewer or _login(),
            asks_name=access.reviewer is None and (access.twice > 0 or not is_local),
            run=run.folder.resolve().name,
            live=is_live,
            for_fill=for_fill,
            next_command=after,
            twice=access.twice,
        )
        thumbnails = review_thumbnails.Thumbnails(images, scored.paths)
        token = secrets.token_urlsafe(32) if last is None or access.new_token else last.token
        number = listening.getsockname()[1]
        server.keep_address(address_file, server.Address(token, number))
        if not is_local and access.tls is None:
            _warn_not_encrypted(host)
        live = None
        if is_live:
            setup = live_process.LiveSetup(run.folder, images, precision, run_page.write_report)
            live = stack.enter_context(closing(live_process.LiveLoop(session, setup)))
        app = server.make_app(
            session,
            thumbnails,
            token=token,
            host=host,
            port=number,
            layout=run / "map.npz",
            live=live,
            tls=access.tls is not None,
        )
        about = "The model learns while you answer." if is_live else f"{counted(len(chosen), 'question')}."
        # Plain print: no line break and no markup in an address that people click on or copy.
        print(f"{about} Open  {_page_address(access, number, token, label)}", flush=True)
        if hindrance is not None and questions is None:
            console.print(f"The model does not learn meanwhile: {hindrance}.")
        console.print(f"Answers are saved to {escape(store.name)}. Ctrl-C stops the server.")
        try:
            guard.run_server(app, listening, patience=2, tls=access.tls)
        finally:  # Ctrl-C is the usual end
            if after and store.count()[0]:
                finished = {} if live is None else (live.finish or {}).get("result", {})
                answered = len(store.label_rows(scored.table.images, scored.table.classes))
                if finished.get("answers") == answered:  # the page has trained the next run already
                    filled = finished["filled"]
                    then = after_train(Path(finished["run"]), images, is_continued=True)
                    after = join_command("inspect", Path(filled)) if filled else then
                show_command(after)


def _read_questions(
    run: run_folder.RunFolder, images: Path, path: Path
) -> tuple[list[choose.Question], label_names.Names | None]:
    """Return the questions of a file, and those of its photos that the labels of the run do not list, if any."""
    rows = run.read_rows()
    asked = list(dict.fromkeys(image for image, _ in choose.asked_entries(path)))
    if (rows.images.index(asked) >= 0).all():
        return choose.read_questions(path, run.read_labels()), None
    unlisted = set(stored_features.unlisted_images(rows.images, images))
    further = label_names.Names(image for image in asked if image in unlisted)
    return choose.read_questions(path, rows.with_images(further).training), further


def _choose_questions(scored: scores.ScoredImages, place: str | Path, is_live: bool) -> list[choose.Question]:
    """Choose 200 questions that have no answer yet."""
    return choose.choose_questions(
        scored.scores,
        scored.table,
        scored.thresholds,
        200,
        features=scored.features,
        skip=answer_store.answered_entries(place, scored.table),
        control=0.0 if is_live else 0.1,  # the live queue has its own random checks
    )


def _warn_not_encrypted(host: str) -> None:
    console.print(
        f"[bold yellow]warning:[/] {escape(host)} can be reached from other machines, and the page is not "
        "encrypted: whoever sees the address or the network can see your photos and answer for you "
        "(--tls CERT KEY encrypts it)"
    )
