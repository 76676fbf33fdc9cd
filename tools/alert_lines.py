"""Where the alerts draw their lines, for the dashboards to draw them in the same place.

A test compares these with the files in `deploy/prometheus/rules` and, where an alert waits for a
verdict, with that verdict.
"""

PREEMPTED_PER_FINISHED = 0.1
PREEMPTED_PER_SECOND = 0.1
KV_FULL = 0.9
KV_SATURATED = 0.95
THROUGHPUT_LEFT = 0.75
"""Below this share of the best rate the alert on preemptions becomes critical."""
FRAGMENTED = 0.15
HEADROOM_LOW = 0.01
HOST_LOW = 0.1
HOST_CRITICAL = 0.03
OLD_SECONDS = 30

KV_UNDERUSED = 0.5
"""No alert: the line that under-use is counted from."""
