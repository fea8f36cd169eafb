"""The commands that show a run and ask people: `report`, `next` and `review`."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from rich.markup import escape

from halflabel.cli import show
from halflabel.cli.fill import fill_words, remember_fill, remembered_fill, words_after_review
from halflabel.cli.options import (
    ImageFolder,
    RunArgument,
    argument,
    check_free,
    check_image_folder,
    check_needs,
    command,
    option,
)
from halflabel.cli.progress import Bar
from halflabel.cli.show import console, join_command, plain_table
from halflabel.errors import UserError
from halflabel.filling import run as fill_run
from halflabel.images import stored_features
from halflabel.labels import answers as answer_store
from halflabel.labels import formats
from halflabel.labels import names as label_names
from halflabel.questions import choose, next
from halflabel.report import comparison_page, layout, run_facts, run_page
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


@command()
def review(
    run: Annotated[Path, argument("RUN", "A run folder of `train`; with --classes a new folder.")],
    images: Annotated[Path | None, argument("IMAGES", "The folder with the image files.")] = None,
    questions: Path | None = option(None, "Ask only these questions, from `next`, without learning meanwhile."),
    classes: str | None = option(None, "Start without labels: class names with commas, or a file with one per line."),
    backbone: str | None = option(None, "With --classes: the backbone, as for `train` (default: that of `train`)."),
    label: str | None = option(None, "Open the page at the photos of this class.", "--class"),
    precision: float | None = option(
        None,
        "How sure the model must be to decide a label by itself.",
        min=0.5,
        max=0.999,
        show_default="that of the last `fill`, else 0.95",
    ),
    answers: Path | None = option(None, "The file for the answers (default: RUN/answers.sqlite)."),
    store: str | None = option(None, "A PostgreSQL database for the answers: postgresql://USER@HOST/DATABASE."),
    reviewer: str | None = option(None, "Who answers (default: your login; with --twice or --host browsers ask)."),
    twice: float = option(0.0, "Share of the questions that two people answer, to see how they agree.", min=0, max=1),
    host: str = option("127.0.0.1", "Address to listen on; any but 127.0.0.1 can be reached from other machines."),
    tls: tuple[Path, Path] | None = option(None, "Serve https: a certificate and its key (PEM).", metavar="CERT KEY"),
    port: int | None = option(None, "Port (default: that of the last review, 8765, or a free one).", min=0, max=65535),
    new_token: bool = option(False, "Change the secret in the address: the old address is refused.", "--new-token"),
    export: Path | None = option(None, "Write the answers to this label file instead of serving the page."),
    with_labels: bool = option(False, "With --export: also write the labels of the run.", "--with-labels"),
    force: bool = option(False, "With --export: overwrite the file.", "--force"),
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
        raise UserError("IMAGES is missing", join_command("review", run, "photos/"))
    for file in tls or ():
        if not file.is_file():
            raise UserError(f"{file} is not a file", "--tls needs the files of a certificate and its key")
    last_fill = remembered_fill(opened)
    if precision is not None:
        remember_fill(opened, {**last_fill, "precision": precision})
    precision = precision or last_fill.get("precision", 0.95)
    _serve(opened, images, questions, place, _Page(reviewer, twice, host, port, tls, new_token, precision, label))


class _Page(NamedTuple):
    """Who answers, how the page is reached, and what it shows first."""

    reviewer: str | None
    twice: float
    host: str
    port: int | None
    tls: tuple[Path, Path] | None
    new_token: bool
    precision: float
    label: str | None

    def address(self, port: int, token: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        label = "" if self.label is None else f"&class={quote(self.label, safe='')}"
        return f"{'https' if self.tls else 'http'}://{host}:{port}/#{token}{label}"


def _start_without_labels(run: Path, images: Path | None, classes: str, backbone: str | None) -> None:
    """Start a run folder without labels, unless it was started before with the same classes."""
    names = from_nothing.read_class_names(classes)
    if run_folder.RunFolder(run).is_started:
        if list(run_folder.RunFolder(run).read_labels().classes) != names:
            raise UserError(f"{run} was started with other classes", "leave --classes out, or name another folder")
        return
    if images is None:
        raise UserError("IMAGES is missing", join_command("review", run, "photos/", "--classes", classes))
    live_run.start_without_labels(run, images, names, backbone)


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "someone"


def _export(run: run_folder.RunFolder, place: str | Path, out: Path, with_labels: bool, force: bool) -> None:
    if isinstance(place, Path) and not place.exists():
        fix = join_command("review", run.folder, "photos/")
        raise UserError(f"there are no answers yet ({place})", fix)
    check_free(out, force)
    labels = run.read_rows()
    with closing(answer_store.AnswerStore(place)) as store:
        rows = store.label_rows(labels.images, labels.classes)
        current = store.current()
    unsure = sum(item.value == 0 for item in answer_store.holding_answers(current))
    present = int((rows.value > 0).sum())
    formats.write(labels.append(rows) if with_labels else rows.drop_unused_names(), out)
    content = f"{counted(len(rows), 'answer')}, {present} present and {len(rows) - present} absent"
    show.written(out, f": {content}; {unsure} unsure left out")
    _show_agreement(list(answer_store.group_by_entry(current).values()))
    if with_labels:
        config = run.read_config()
        show.next_command("train", out, config.get("images") or "photos/", "--method", config.get("method", "an"))
    else:
        show.next_command("train", "--continue", run.folder, "--answers", out)


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
    errors = sorted(answer_store.expected_errors(groups).items())
    console.print(f"Expected errors: {', '.join(f'{escape(who)} {percent(error, 1)}' for who, error in errors)}")
    if conflicts := sum(map(answer_store.is_conflict, groups)):
        console.print(
            f"{counted(conflicts, 'conflict is', 'conflicts are')} not settled: the answer of the more reliable person "
            "holds, or neither. Settle them on the review page, under Conflicts."
        )


def _serve(run: run_folder.RunFolder, images: Path, questions: Path | None, place: str | Path, page: _Page) -> None:
    # Scoring images may take long: mistakes are reported before.
    images, labels = local_folder(images), run.read_labels()
    has_labels = labels.known > 0
    if page.label is not None and page.label not in labels.classes:
        raise UserError(f"the run has no class {page.label!r}", "name a class of its labels")
    if has_labels:
        run.check_finished()
    chosen, further = _read_questions(run, images, questions) if questions is not None else (None, None)
    hindrance = live_process.live_hindrance(run)
    is_live = chosen is None and hindrance is None
    is_local = is_loopback(page.host)
    address_file = (place if isinstance(place, Path) else run.answers).with_suffix(".address.json")
    last = server.read_address(address_file)
    ports = [*([] if last is None else [last.port]), server.PORT, 0] if page.port is None else [page.port]
    with open_socket(page.host, *ports) as listening, ExitStack() as stack:
        with Bar("scores") as bar:
            scored = scores.scored_images(run, images, Reporter(bar), further)
        store = stack.enter_context(closing(answer_store.AnswerStore(place)))
        if chosen is None:
            chosen = choose.choose_questions(
                scored.scores,
                scored.table,
                scored.thresholds,
                200,
                features=scored.features,
                skip=answer_store.answered_entries(place, scored.table),
                control=0.0 if is_live else 0.1,  # the live queue has its own random checks
            )
        if not chosen and has_labels and not any(store.count()):
            raise UserError("there is nothing to ask", "all entries of the run's labels are known or answered")
        for_fill = questions is not None and questions.resolve() == run.control.resolve()
        after: list[Any] = []
        if has_labels:
            elsewhere = {} if place == run.answers else {"place": place}
            about = {"is_control": for_fill, "all_photos": further is not None}
            after = words_after_review(run.folder, images, **(elsewhere or about))
        session = review_session.ReviewSession(
            scored,
            chosen,
            store,
            who=page.reviewer or _login(),
            asks_name=page.reviewer is None and (page.twice > 0 or not is_local),
            run=run.folder.resolve().name,
            live=is_live,
            for_fill=for_fill,
            next_command=join_command(*after) if after else "",
            twice=page.twice,
        )
        thumbnails = review_thumbnails.Thumbnails(images, scored.paths)
        token = secrets.token_urlsafe(32) if last is None or page.new_token else last.token
        number = listening.getsockname()[1]
        server.keep_address(address_file, server.Address(token, number))
        if not is_local and page.tls is None:
            console.print(
                f"[bold yellow]warning:[/] {escape(page.host)} can be reached from other machines, and the page is not "
                "encrypted: whoever sees the address or the network can see your photos and answer for you "
                "(--tls CERT KEY encrypts it)"
            )
        live = None
        if is_live:
            setup = live_process.LiveSetup(run.folder, images, page.precision, run_page.write_report)
            live = stack.enter_context(closing(live_process.LiveLoop(session, setup)))
        app = server.make_app(
            session,
            thumbnails,
            review_thumbnails.ClassMaps(run.folder, thumbnails) if run.weights.exists() else None,
            token=token,
            host=page.host,
            port=number,
            layout=run / "map.npz",
            live=live,
            tls=page.tls is not None,
        )
        what = "The model learns while you answer." if is_live else f"{counted(len(chosen), 'question')}."
        # Plain print: no line break and no markup in an address that people click on or copy.
        print(f"{what} Open  {page.address(number, token)}", flush=True)
        if hindrance is not None and questions is None:
            console.print(f"The model does not learn meanwhile: {hindrance}.")
        console.print(f"Answers are saved to {escape(store.name)}. Ctrl-C stops the server.")
        try:
            guard.run_server(app, listening, patience=2, tls=page.tls)
        finally:  # Ctrl-C is the usual end
            if after and store.count()[0]:
                finished = {} if live is None else (live.finish or {}).get("result", {})
                answered = len(store.label_rows(scored.table.images, scored.table.classes))
                if finished.get("answers") == answered:  # the page has trained the next run already
                    filled = finished["filled"]
                    after = ["inspect", Path(filled)] if filled else fill_words(Path(finished["run"]), images)
                show.next_command(*after)


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


@command()
def report(
    run: Annotated[Path, argument("RUN", "The output folder of `train`, `compare` or `study`.")],
    images: Path | None = option(None, "The image folder: adds galleries of labels to check."),
    out: Path | None = option(None, "The HTML file to write (default: RUN/report.html)."),
    maps: bool = option(False, "Colour where the model sees the class in each photo; takes longer.", "--maps"),
) -> None:
    """Write an HTML report of a run: the known labels, the training, the evaluation and labels to check.

    For a comparison or a study, the report shows its rows with intervals. The page needs no network and contains no
    folder names of this machine. With --images it contains small copies of some images.

    Example: halflabel report runs/first --images photos/
    """
    if out is not None:
        layout.check_page_path(out)
    is_comparison = run_facts.is_comparison(run) and not (run / "config.yaml").exists()
    if is_comparison:
        if images is not None:
            raise UserError("the page of a comparison or study shows no images", "leave --images out")
        page = layout.write_page(out or run / "report.html", lambda: comparison_page.build_comparison(run))
    else:
        refuse_remote(run)
        opened = run_folder.RunFolder.open(run)
        check_image_folder(images)
        with Bar("scores") as bar:
            page = run_page.write_report(opened, out, images=images, maps=maps, reporter=Reporter(bar))
    show.written(page.path, f" ({page.size / 1000:.0f} kB)")
    if is_comparison:
        return
    if images is None:
        show.next_command("report", run, "--images", "PHOTOS", why="galleries of likely missing and wrong labels")
    elif fill_run.has_only_positives(opened):  # `fill` asks the questions that it needs first
        show.next_command(*fill_words(run, images), why="missing labels")
    else:
        show.next_command("next", run, images, why="the questions that help the model most")


@command("next")
def next_command(
    run: RunArgument,
    images: ImageFolder,
    count: int = option(200, "Number of questions.", min=1),
    out: Path = option(Path("questions.csv"), "The CSV file of questions to write."),
    wrong: bool = option(False, "Ask about known labels that look wrong instead of unknown labels.", "--wrong"),
    disagree: Path | None = option(
        None,
        "Ask where this run differs most from another run or from a CSV file image,class,probability.",
        metavar="RUN|FILE",
    ),
    control: float = option(0.1, "Share of questions drawn at random, for unbiased estimates.", min=0, max=1),
    per_image: int = option(2, "Largest number of questions about one image.", min=1),
) -> None:
    """Choose the labels to ask a person for next: those that are likely to improve the model most.

    Likely missing labels come first, rare classes before common ones, without near-duplicates; a random share gives
    unbiased estimates. Entries that were answered in `halflabel review` are left out.

    Example: halflabel next runs/first photos/ --count 500
    """
    refuse_remote(run)
    opened = run_folder.RunFolder.open(run)
    choose.refuse_other_content(out)
    if wrong and disagree is not None:
        raise UserError("--wrong and --disagree ask different questions", "give one of them")
    with Bar("scores") as bar:
        how = {"wrong": wrong, "disagree": disagree, "control": control, "per_image": per_image}
        chosen = next.next_questions(opened, images, count, **how, reporter=Reporter(bar))  # type: ignore[arg-type]
    if wrong and chosen.crossfitted:
        console.print("Each label was scored by a head that was trained without it")
    elif wrong:
        console.print(
            f"{counted(chosen.held_out, 'held-out image is', 'held-out images are')} scored without bias; the others "
            "by a model that has seen their labels and rarely contradicts them: the column `why` says which"
        )
    questions = chosen.questions
    choose.write_questions(questions, chosen.table, out)
    choose.record_questions(questions, chosen.table, opened.asked)
    if not questions:
        nothing = "No label looks wrong" if wrong else "Nothing is unknown: there is nothing to ask"
        console.print("They differ nowhere" if disagree is not None else nothing)
        return
    classes = len({item.column for item in questions})
    content = f"{counted(len(questions), 'question')} on {counted(classes, 'class', 'classes')}"
    content += f", {sum(item.is_control for item in questions)} of them drawn at random"
    show.written(out, f": {content}")
    show.next_command("review", run, images, "--questions", out)
