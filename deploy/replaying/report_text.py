"""A report for people: a table of counts, and the first requests that differ."""

from headrace.deploy.dead_letter_text import printable
from headrace.deploy.replaying.comparison import Outcome
from headrace.deploy.replaying.judging import Row
from headrace.deploy.replaying.report import MAX_SHOWN, Report

_COMPARED = (Outcome.EXACT, Outcome.DRIFT, Outcome.DIFFERENT)


def report_text(report: Report) -> str:
    """Whole lines, without escapes of strangers."""
    lines = [f"{'requests':<16}{len(report.rows):>8}", f"{'compared':<16}{report.num_compared:>8}"]
    for outcome in _COMPARED:
        count = report.counts[outcome]
        share = f"{count / report.num_compared:>9.2%}" if report.num_compared else ""
        lines.append(f"  {outcome:<14}{count:>8}{share}")
    lines.append(f"{Outcome.NOT_COMPARABLE:<16}{report.counts[Outcome.NOT_COMPARABLE]:>8}")
    lines += [f"  {reason}: {count}" for reason, count in report.reasons.most_common()]
    for name, model, prints in zip(
        ("recorded", "now"), report.models(), report.fingerprints(), strict=True
    ):
        lines.append(f"{name:<16}{printable(model)}, fingerprint {_joined(prints)}")
    for row in report.differing[:MAX_SHOWN]:
        lines += _row_lines(row)
    if (more := len(report.differing) - MAX_SHOWN) > 0:
        lines.append(f"… and {more} more (--report FILE has all)")
    return "\n".join(lines) + "\n"


def _row_lines(row: Row) -> list[str]:
    verdict, parting = row.verdict, row.verdict.parting
    where = "" if parting is None else f", first at token {parting.token}"
    detail = f" ({verdict.detail})" if verdict.detail else ""
    lines = ["", f"{printable(row.asked.request_id)}: {verdict.outcome}: {verdict.reason}{where}"]
    lines[-1] += printable(detail)
    if parting is not None:
        lines.append(f"  recorded  {_quoted(parting.recorded)}")
        lines.append(f"  now       {_quoted(parting.answered)}")
    return lines


def _quoted(text: str) -> str:
    """On one line, whatever stands in it."""
    return printable(repr(text))


def _joined(names: list[str]) -> str:
    return ", ".join(names) or "none"
