"""A check of other people's Prometheus rules and Grafana dashboards that use vLLM's metrics."""

from sidecar.rule_check.files import check_files
from sidecar.rule_check.finding import Code, Finding
from sidecar.rule_check.report import run
from sidecar.rule_check.source import RuleFileError

__all__ = ["Code", "Finding", "RuleFileError", "check_files", "run"]
