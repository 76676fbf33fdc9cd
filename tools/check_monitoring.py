"""Check the Prometheus and Alertmanager files with the programs that will read them.

    python tools/check_monitoring.py

Prints one line a check; exits 1 when a check fails and 2 when promtool or amtool is missing.

Behaviour and wording are checked apart. The tests in `tests/rules` run on a copy of the alerts
without annotations, so that a better sentence breaks none of them; what a sentence must not lose,
the remedies and their order, stands in `alert_words.py`.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from alert_words import LOAD_BEARING_WORDS, MAY_SAY, NEVER_SAID
from rule_files import Rule, RuleFileError, read_rules, without_annotations

ROOT = Path(__file__).resolve().parent.parent
PROMETHEUS_CONFIG = ROOT / "deploy/prometheus/prometheus.yml"
RULES = ROOT / "deploy/prometheus/rules"
ALERTMANAGER_CONFIG = ROOT / "deploy/alertmanager/alertmanager.yml"
ALERTMANAGER_EXAMPLES = ROOT / "deploy/alertmanager/examples"
RULE_TESTS = ROOT / "tests/rules"
RUNBOOKS = ROOT / "docs/runbooks.md"

RULES_IN_THE_CONTAINER = "/etc/prometheus/rules/"
RUNBOOK_URL = "https://github.com/vllm-sidecar/vllm-sidecar/blob/main/docs/runbooks.md"
DEBIAN_PACKAGES = {"promtool": "prometheus", "amtool": "prometheus-alertmanager"}

# It always fires: there is nothing to wait for and nothing to bridge.
WITHOUT_PATIENCE = frozenset({"VllmSidecarWatchdog"})

METRIC = re.compile(r"(?<![\w:])vllm_sidecar_(\w+)(?![\w:])(?:\{([^}]*)\})?")
MATCHED_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
ADDED_BY_PROMETHEUS = frozenset({"job", "instance", "le"})
DECLARING_MODULES = ("sidecar.exposition",)

INLINE_SECRET = re.compile(
    r"^\s*(?:- )?(api_url|routing_key|service_key|smtp_auth_password|auth_password|bearer_token"
    r"|password|credentials):",
    re.MULTILINE,
)

Check = tuple[str, Callable[[], None]]


class CheckError(Exception):
    """A check did not hold; the text says what and where, in one line."""


def main() -> int:
    """Make every check, print a line for each and say by the exit status whether all held."""
    if missing := [tool for tool in DEBIAN_PACKAGES if shutil.which(tool) is None]:
        packages = " ".join(DEBIAN_PACKAGES[tool] for tool in missing)
        print(f"FAIL  {' and '.join(missing)} not found; on Debian: apt-get install {packages}")
        return 2
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, check in checks(Path(folder)):
                try:
                    check()
                except CheckError as problem:
                    failures += 1
                    print(f"FAIL  {name}: {problem}")
                else:
                    print(f"ok    {name}")
        except (RuleFileError, OSError) as problem:
            failures += 1
            print(f"FAIL  {problem}")
    if failures:
        print(f"{failures} failed")
    return 1 if failures else 0


def checks(folder: Path) -> Iterator[Check]:
    """Every check, with the name under which it is reported. `folder` is for working copies."""
    alerts = [
        rule
        for path in sorted(RULES.glob("*.yml"))
        for rule in read_rules(path)
        if rule.kind == "alert"
    ]
    tests = sorted(RULE_TESTS.glob("*.test.yml"))

    yield "prometheus.yml: promtool check config", partial(check_prometheus_config, folder)
    for path in sorted(RULES.glob("*.yml")):
        yield f"{path.name}: promtool check rules", partial(check_rules, path)
    for path in tests:
        yield f"{path.name}: promtool test rules", partial(check_behaviour, path, folder)
    yield "each alert fires in a test and renders", partial(check_rendering, alerts, tests, folder)
    for alert in alerts:
        yield f"{alert.title}: patience, texts, runbook", partial(check_alert, alert)
    yield "each metric and label in the rules and runbooks is declared", check_metrics

    for path in (ALERTMANAGER_CONFIG, *sorted(ALERTMANAGER_EXAMPLES.glob("*.yml"))):
        yield f"{path.name}: amtool check-config", partial(check_alertmanager_config, path)
        yield (
            f"{path.name}: names only alerts that exist",
            partial(check_named_alerts, path, alerts),
        )
    for path in sorted(ALERTMANAGER_EXAMPLES.glob("*.yml")):
        yield f"{path.name}: no secret in it", partial(check_no_secret, path)
    for alert in alerts:
        labels = {"alertname": alert.name, "severity": alert.labels["severity"]}
        yield f"{alert.title}: route", partial(check_route, labels, receiver_of(labels))
    for severity in ("info", "warning", "critical"):
        labels = {"alertname": "AnyOther", "severity": severity}
        yield (
            f"any other alert ({severity}): route",
            partial(check_route, labels, receiver_of(labels)),
        )


# -------------------------------------------------------------------------------------------------
# Prometheus


def check_prometheus_config(folder: Path) -> None:
    """The configuration is valid, and so are the rules that it names, once the path leads there."""
    text = PROMETHEUS_CONFIG.read_text(encoding="utf-8")
    if RULES_IN_THE_CONTAINER not in text:
        raise CheckError(f"rule_files does not name {RULES_IN_THE_CONTAINER}")
    copy = folder / "prometheus.yml"
    copy.write_text(text.replace(RULES_IN_THE_CONTAINER, f"{RULES}/"), encoding="utf-8")
    said = run("promtool", "check", "config", str(copy))
    for path in RULES.glob("*.yml"):
        if str(path) not in said:
            raise CheckError(f"promtool did not look at {path.name}")


def check_rules(path: Path) -> None:
    """The file is valid, and promtool sees as many rules in it as our own reader does."""
    said = run("promtool", "check", "rules", str(path))
    counted = re.search(r"(\d+) rules found", said)
    ours = len(read_rules(path))
    if counted is None or int(counted[1]) != ours:
        raise CheckError(
            f"promtool counts {counted[1] if counted else 'no'} rules, our reader {ours}"
        )


def check_behaviour(test: Path, folder: Path) -> None:
    """The alerts fire, stay silent and resolve when the test says so, whatever their wording."""
    said, fine = try_run("promtool", "test", "rules", str(beside_rules(test, folder, bare=True)))
    if not fine:
        # What promtool prints is long and laid out by it: the first lines name test and minute.
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise CheckError(" ".join(lines[2:8]))


def check_rendering(alerts: list[Rule], tests: list[Path], folder: Path) -> None:
    """Each alert fires in some test, and its annotations become text without an error.

    The tests name no annotations, so on the real rules promtool reports every firing alert as a
    difference and prints it in full: that report is what is read here.
    """
    said = "".join(
        try_run("promtool", "test", "rules", str(beside_rules(test, folder, bare=False)))[0]
        for test in tests
    )
    if "error expanding template" in said:
        raise CheckError("a description has a template that cannot be expanded")
    for alert in alerts:
        if f'summary="{alert.annotations.get("summary")}"' not in said:
            raise CheckError(f"{alert.title} fires in no test")


def beside_rules(test: Path, folder: Path, *, bare: bool) -> Path:
    """A copy of the test with the rule files beside it, `bare` of annotations or as they are."""
    place = folder / ("bare" if bare else "whole")
    place.mkdir(exist_ok=True)
    for path in RULES.glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        (place / path.name).write_text(
            without_annotations(text) if bare else text, encoding="utf-8"
        )
    return Path(shutil.copy(test, place))


# -------------------------------------------------------------------------------------------------
# What people read


def check_alert(alert: Rule) -> None:
    """The alert is patient, says what is wrong and what to do, and links to its runbook."""
    for patience in ("for", "keep_firing_for"):
        if (patience in alert.fields) == (alert.name in WITHOUT_PATIENCE):
            raise CheckError(f"{patience} is missing, or the alert is listed as needing none")
    summary = alert.annotations.get("summary", "")
    if not re.fullmatch(r"(?:[A-Z]|vLLM)[^{}]*\.", summary):
        raise CheckError("the summary is not one fixed sentence with a full stop")
    if alert.annotations.get("runbook_url") != f"{RUNBOOK_URL}#{alert.name.lower()}":
        raise CheckError(f"runbook_url does not end in #{alert.name.lower()}")
    headings = re.findall(r"^#+ (\S+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    if alert.name not in headings:
        raise CheckError(f"{RUNBOOKS.name} has no heading {alert.name}")
    if alert.title not in LOAD_BEARING_WORDS:
        raise CheckError("LOAD_BEARING_WORDS has no row for it")
    rest = description = alert.annotations.get("description", "")
    for words in LOAD_BEARING_WORDS[alert.title]:
        _, found, rest = rest.partition(words)
        if not found:
            raise CheckError(f"the description lacks {words!r}, or has it too early")
    for words in NEVER_SAID:
        if words in description.lower() and words not in MAY_SAY.get(alert.name, ()):
            raise CheckError(f"the description says {words!r}")


def check_metrics() -> None:
    """Rules and runbooks use no metric and no label that the sidecar does not declare."""
    declared = declared_metrics()
    for path in (*sorted(RULES.glob("*.yml")), RUNBOOKS):
        for metric in METRIC.finditer(path.read_text(encoding="utf-8")):
            name, matchers = metric[1], metric[2] or ""
            if name not in declared:
                raise CheckError(f"{path.name} uses vllm_sidecar_{name}, which is not declared")
            unknown = set(MATCHED_LABEL.findall(matchers)) - declared[name] - ADDED_BY_PROMETHEUS
            if unknown:
                raise CheckError(f"{path.name}: vllm_sidecar_{name} has no label {min(unknown)}")


def declared_metrics() -> dict[str, frozenset[str]]:
    """The labels of every published sample name, without the prefix."""
    sys.path.insert(0, str(ROOT))
    declared: dict[str, frozenset[str]] = {}
    for module in DECLARING_MODULES:
        try:
            declarations = importlib.import_module(module).DECLARATIONS
        except (ImportError, AttributeError) as problem:
            raise CheckError(f"cannot read the declarations of {module}: {problem}") from None
        for declaration in declarations:
            suffixes = {"histogram": ("_bucket", "_sum", "_count")}.get(declaration.kind, ("",))
            for suffix in suffixes:
                declared[declaration.name + suffix] = frozenset(declaration.labels)
    return declared


# -------------------------------------------------------------------------------------------------
# Alertmanager


def check_alertmanager_config(path: Path) -> None:
    """The configuration is valid."""
    run("amtool", "check-config", str(path))


def check_no_secret(path: Path) -> None:
    """Secrets come from files: none of the keys that would hold one itself is set."""
    if found := INLINE_SECRET.search(path.read_text(encoding="utf-8")):
        raise CheckError(f"{found[1]} belongs into a file")


def check_named_alerts(path: Path, alerts: list[Rule]) -> None:
    """Routes and inhibitions speak of alerts that exist: a typing error would mute nothing."""
    named = set(re.findall(r"\bVllm\w+", path.read_text(encoding="utf-8")))
    if unknown := named - {alert.name for alert in alerts}:
        raise CheckError(f"there is no alert {min(unknown)}")


def receiver_of(labels: dict[str, str]) -> str:
    """Who should hear of an alert with these labels."""
    if labels["alertname"] == "VllmSidecarWatchdog":
        return "watchdog"
    return {"info": "null", "critical": "webhook-critical"}.get(labels["severity"], "webhook")


def check_route(labels: dict[str, str], receiver: str) -> None:
    """An alert with these labels reaches this receiver and no other."""
    run(
        *("amtool", "config", "routes", "test"),
        f"--config.file={ALERTMANAGER_CONFIG}",
        f"--verify.receivers={receiver}",
        *(f"{name}={value}" for name, value in labels.items()),
    )


# -------------------------------------------------------------------------------------------------


def run(*command: str) -> str:
    """What the command printed; a failure is a failed check, told in one line."""
    said, fine = try_run(*command)
    if not fine:
        raise CheckError(" ".join(said.split()))
    return said


def try_run(*command: str) -> tuple[str, bool]:
    """What the command printed, and whether it succeeded."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr, done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
