"""The check of other people's rules and dashboards."""
