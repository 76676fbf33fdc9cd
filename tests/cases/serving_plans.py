"""Recordings about queues, KV blocks and pages. Figures are the report's unless a comment says so.

Where a report gives none (often: the size of the pool, lengths of requests, the model's name), a
neutral one stands that fits the others.
"""

from __future__ import annotations

from cases.pages import Server
from cases.tracks import EPOCH, Plan, Stretch, Track, gpu

STARTED = EPOCH - 3600.0
"""`process_start_time_seconds` where a page has it: an hour before the recording."""

PLANS: dict[str, Plan] = {}

# C07: pool of 1.3 x 32,000 tokens = 2,600 blocks; usage and demand as told, rates chosen. V1 0.7.3
# has neither a preemption counter nor cache_config_info; the log beside it has the pool.
PLANS["C07"] = Plan(
    Server((0, 7, 3), started_at=STARTED),
    [
        Track(
            "q32fp8",
            [
                Stretch(120, 2, 0, (0.88, 0.995), 40, 0, 0, every=5),
                Stretch(
                    60,
                    (2, 2, 2, 1, 2),
                    (1, 1, 2, 3, 3, 4),
                    (0.998, 0.999, 1.0),
                    25,
                    finished=0.02,
                ),
            ],
            mean_prompt=2000,
            mean_generation=12000,
            before=12,
            resident=(4000, 32600),
        )
    ],
    ("--max-num-seqs", "20", "--max-model-len", "32000", "--gpu-memory-utilization", "0.95"),
    max_model_len=32000,
)

# C08: rows 91.2 to 91.9 % and 239-241 tokens/s are the report's; 0.038 points a second at that
# rate make a pool of 630,000 tokens. The collapse ("dramatically breaks") is set to 70 tokens/s.
PLANS["C08"] = Plan(
    Server((0, 10, 0), started_at=STARTED, blocks=39_400, max_model_len=131072),
    [
        Track(
            "m",
            [
                Stretch(225, 8, 0, (0.912, 0.998), 240, 0, 0, every=5, phase="8 clients"),
                Stretch(
                    60,
                    (8, 7, 7, 7),
                    (0, 1, 1, 1),
                    (1.0, 0.972, 0.984, 0.993),
                    70,
                    0,
                    0,
                    preempted=0.25,
                    every=1,
                    phase="pool full",
                ),
            ],
            mean_prompt=32000,
            mean_generation=8000,
            before=9,
            resident=(256000, 318000),
        )
    ],
    max_model_len=131072,
)

# C09: no figures in the report. Preemptions show in the counter alone; the log has no word.
PLANS["C09"] = Plan(
    Server((0, 20, 2), started_at=STARTED, blocks=4_001),
    [
        Track(
            "m",
            [
                Stretch(30, 64, 0, (0.80, 0.955), 2600),
                Stretch(
                    60,
                    (52, 50, 51, 49),
                    (12, 14, 13, 15),
                    (0.98, 0.99, 1.0),
                    1800,
                    preempted=0.6,
                ),
            ],
            mean_prompt=600,
            mean_generation=900,
            before=900,
            resident=(38000, 13000),
        )
    ],
    max_model_len=8192,
)

# C10: 1,538 preemptions for 19,801 finished requests, which is 0.0777; 10 requests/s is chosen.
PLANS["C10"] = Plan(
    Server((0, 15, 0), started_at=STARTED, blocks=8_001),
    [
        Track(
            "m",
            [
                Stretch(
                    120,
                    (100, 99, 100, 101, 100),
                    (1, 2, 1, 0, 1),
                    (0.94, 0.96, 0.985, 0.97, 0.955),
                    3000,
                    finished=10.0,
                    preempted=0.777,
                )
            ],
            mean_prompt=950,
            mean_generation=300,
            before=4000,
            resident=(95000, 15000),
        )
    ],
    max_model_len=8192,
)

# C11: preemptions far outrun finished requests; how far is chosen, and so are the rates.
PLANS["C11"] = Plan(
    Server((0, 10, 2), started_at=STARTED, blocks=6_001, max_model_len=131072),
    [
        Track(
            "m",
            [
                Stretch(20, 4, 0, (0.70, 0.90), 120, 0, 0),
                Stretch(90, (4, 5), (1, 0), (0.96, 1.0, 0.98), 60, 0, finished=0.05, preempted=3.0),
            ],
            mean_prompt=6000,
            mean_generation=1200,
            before=60,
            resident=(52000, 15000),
            budget=8192,
        )
    ],
    ("--max-num-batched-tokens", "8192"),
    max_model_len=131072,
)

# C12: usage above 90 %, requests run, all new ones wait, no token comes. Counts are chosen.
PLANS["C12"] = Plan(
    Server((0, 7, 2), v0=True, blocks=5_000),
    [
        Track(
            "m",
            [
                Stretch(20, 12, (0, 0, 1), (0.90, 0.93), 300),
                Stretch(70, 12, tuple(range(2, 37)), (0.93, 0.93), 0, 0, 0),
            ],
            mean_prompt=4000,
            mean_generation=1200,
            before=300,
            resident=(48000, 20000),
        )
    ],
)

# C13: 73.8, then 86.1 %, 2 running groups (many sequences each), 98 pending, one SWAP preemption
# in the log, then nothing moves: gauges stay at the last step's values.
PLANS["C13"] = Plan(
    Server((0, 6, 3), v0=True, blocks=20_000),
    [
        Track(
            "m",
            [
                Stretch(10, 2, 98, (0.738, 0.861), 7200, 0, 0),
                Stretch(80, 2, 98, (0.861, 0.861), 0, 0, 0),
            ],
            mean_prompt=300,
            mean_generation=1500,
            before=2,
            resident=(600, 210000),
        )
    ],
)

# C14: one preemption forced by priority while the pool is far from full ("far" is set to 35 %).
PLANS["C14"] = Plan(
    Server((0, 6, 3), v0=True, blocks=6_000),
    [
        Track(
            "m",
            [
                Stretch(20, 10, 0, (0.33, 0.35, 0.34), 400),
                Stretch(2, 10, 1, (0.35, 0.35), 400, preempted=0.5),
                Stretch(40, 10, (0, 1, 0, 0), (0.34, 0.36, 0.35), 400),
            ],
            mean_prompt=2500,
            mean_generation=600,
            before=200,
            resident=(25000, 8000),
        )
    ],
    ("--scheduling-policy", "priority"),
)

# C15: 4 running, 0 pending, 15.6 %, 6,501 prompt tokens/s; generation is chosen.
PLANS["C15"] = Plan(
    Server((0, 5, 3), v0=True, started_at=STARTED, blocks=5_000),
    [
        Track(
            "m",
            [Stretch(60, 4, 0, (0.156, 0.152, 0.158), 65, 6501, finished=2.167)],
            mean_prompt=3000,
            mean_generation=30,
            before=2000,
            resident=(12000, 60),
            budget=4096,
        )
    ],
)

# C16: the same load on one GPU, then (restarted) on two: the pool grows four times, the share
# falls. Load and pool sizes are chosen for llama2-7b on 24 GB cards.
PLANS["C16"] = Plan(
    Server((0, 6, 3), v0=True, blocks=830),
    [
        Track(
            "m",
            [
                Stretch(40, 8, 0, (0.42, 0.44, 0.43), 240, phase="one GPU"),
                Stretch(
                    40,
                    8,
                    0,
                    (0.101, 0.106, 0.104),
                    300,
                    restarted=True,
                    gap=120,
                    arrived=8,
                    phase="two GPUs",
                    server=Server((0, 6, 3), v0=True, blocks=3_450),
                ),
            ],
            mean_prompt=500,
            mean_generation=400,
            before=40,
            resident=(4000, 1600),
        )
    ],
)

# C17: limits are the report's (64 sequences, 4,096 tokens a step, TP4), "low", "few" and "many"
# are not: 12 %, about 10 running, about 150 waiting, prompts as long as a step. 0.6.3 has no step
# histogram; the page is that of 0.6.4, the first that could show this.
PLANS["C17"] = Plan(
    Server((0, 6, 4), v0=True, blocks=20_000),
    [
        Track(
            "m",
            [
                Stretch(
                    60,
                    (9, 12, 7, 14, 10, 8, 13, 11),
                    (150, 152, 149, 153, 151, 155, 154, 156),
                    (0.10, 0.13, 0.11, 0.14, 0.12),
                    110,
                    6000,
                    finished=1.54,
                )
            ],
            mean_prompt=3900,
            mean_generation=71,
            before=700,
            resident=(39000, 400),
            budget=4096,
        )
    ],
    (
        "--tensor-parallel-size",
        "4",
        "--max-num-seqs",
        "64",
        "--max-num-batched-tokens",
        "4096",
    ),
)

# C18: the four rows of the log, longer; the pool is chosen.
PLANS["C18"] = Plan(
    Server((0, 7, 3), v0=True, blocks=60_000),
    [
        Track(
            "m",
            [
                Stretch(
                    60,
                    600,
                    tuple(range(4475, 4445, -1)),
                    (0.592, 0.590, 0.593),
                    3200,
                    237,
                    finished=0.47,
                )
            ],
            mean_prompt=505,
            mean_generation=6800,
            before=6000,
            resident=(303000, 260000),
            hit_ratio=0.92,
            prefix_caching=True,
        )
    ],
    ("--max-num-seqs", "600", "--enable-prefix-caching"),
)

# C20: slopes and rates are the report's rows; they make a pool of 1.18 million tokens. Earlier
# requests and the context length are chosen.
PLANS["C20"] = Plan(
    Server((0, 13, 0), started_at=STARTED, blocks=73_501, max_model_len=131072),
    [
        Track(
            "m",
            [
                Stretch(40, 1, 0, (0.033, 0.038), 146.5, 0, 0, every=5),
                Stretch(200, 1, 0, (0.038, 0.060), 131, 0, 0, every=5),
                Stretch(40, 1, 0, (0.060, 0.064), 118, 0, 0, every=5),
                Stretch(20, 0, 0, (0.0, 0.0), 0, 0, 0, every=5, ended=1, ended_tokens=(800, 74780)),
            ],
            mean_prompt=700,
            mean_generation=350,
            before=400,
            resident=(800, 38000),
        )
    ],
    ("--max-model-len", "131072"),
    max_model_len=131072,
)

# C21: the three rows, then 88-100 % held (for ten minutes instead of six hours); few finish.
PLANS["C21"] = Plan(
    Server((0, 10, 2), started_at=STARTED, blocks=25_001, max_model_len=32768),
    [
        Track(
            "m",
            [
                Stretch(10, 38, 0, (0.885, 0.898), 852, 138.6, 0, every=5),
                Stretch(10, 39, 0, (0.898, 0.932), 795, 1386, 0, every=5),
                Stretch(
                    600,
                    (38, 39, 39, 38),
                    0,
                    (0.955, 0.962, 0.974, 0.985, 0.978),
                    850,
                    300,
                    finished=0.2,
                    every=10,
                ),
            ],
            mean_prompt=1500,
            mean_generation=4250,
            before=500,
            resident=(60000, 290000),
            hit_ratio=0.424,
            prefix_caching=True,
        )
    ],
    max_model_len=32768,
)


def _staircase(steps: tuple[float, ...], mean_generation: float) -> Track:
    """Short bursts of 8 requests; after each the idle floor is a step higher, the last stays."""
    stretches = [Stretch(30, 0, 0, (0.0, 0.0), every=10)]
    for number, floor in enumerate(steps):
        last = number == len(steps) - 1
        stretches += [
            Stretch(40, 4, 0, (floor + 0.02, floor + 0.05), 0.2 * mean_generation, every=10),
            Stretch(1300 if last else 130, 0, 0, (floor, floor), every=10),
        ]
    return Track("m", stretches, 2000, mean_generation, before=50)


# C22, C23: idle with used blocks for longer than twice the connector's abort time-out (480 s).
PLANS["C22"] = Plan(
    Server((0, 23, 0), started_at=STARTED, blocks=20_001),
    [_staircase((0.04, 0.09, 0.14), 300)],
    ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'),
)
PLANS["C23"] = Plan(
    Server((0, 18, 0), started_at=STARTED, blocks=12_001),
    [_staircase((0.07, 0.15, 0.22), 1)],
    ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'),
)

# C24: blocks held with nothing running, and given back before the time-out (480 s) is over.
PLANS["C24"] = Plan(
    Server((0, 19, 1), started_at=STARTED, blocks=12_001),
    [
        Track(
            "m",
            [
                Stretch(30, 0, 0, (0.0, 0.0), every=10),
                Stretch(40, 6, 0, (0.07, 0.10), 1, 500, 0.25, every=10),
                Stretch(400, 0, 0, (0.06, 0.06), every=10),
                Stretch(60, 0, 0, (0.0, 0.0), every=10),
            ],
            mean_prompt=2000,
            mean_generation=4,
            before=50,
        )
    ],
    ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'),
)

# C52: engine 0 is full and preempts, engine 1 is nearly free; no figures in the report.
PLANS["C52"] = Plan(
    Server((0, 25, 0), blocks=4_001),
    [
        Track(
            "m",
            [
                Stretch(20, 48, 0, (0.80, 0.96), 1500),
                Stretch(60, (44, 42, 43), (8, 10, 9), (0.97, 0.985, 1.0), 1000, preempted=0.6),
            ],
            mean_prompt=500,
            mean_generation=800,
            before=600,
            resident=(24000, 26000),
        ),
        Track(
            "m",
            [
                Stretch(20, 3, 0, (0.04, 0.05, 0.045), 150),
                Stretch(60, (3, 2, 3), 0, (0.05, 0.04, 0.045), 150),
            ],
            mean_prompt=500,
            mean_generation=800,
            before=90,
            resident=(1500, 1200),
            index="1",
        ),
    ],
    ("--data-parallel-size", "2"),
)

# C53: four API servers each count every step, so step counts say four times the tokens.
PLANS["C53"] = Plan(
    Server((0, 9, 2), blocks=12_001, pids=(101, 102, 103, 104)),
    [
        Track(
            "m",
            [Stretch(40, (20, 22, 21), 0, (0.18, 0.20, 0.19), 800)],
            mean_prompt=800,
            mean_generation=400,
            before=300,
            resident=(17000, 4000),
            step_factor=4,
        )
    ],
    ("--api-server-count", "4"),
)


def _four_busy_gpus(_: float) -> list[dict[str, object]]:
    return [
        gpu(i, "NVIDIA H100 80GB HBM3", 81559, {400 + i: 73000}, busy_percent=85) for i in range(4)
    ]


# C54: TP4, every poll is answered with 500 while inference is fine. `/health` (200 there) has no
# place in a recording.
PLANS["C54"] = Plan(
    Server((0, 25, 0)),
    [Track("m", [Stretch(60, error="http_status")])],
    ("--tensor-parallel-size", "4"),
    gpus=_four_busy_gpus,
)

# C55: answers take seconds, every third one none within the time-out; serving goes on.
PLANS["C55"] = Plan(
    Server((0, 25, 0), started_at=STARTED, blocks=20_001),
    [
        Track(
            "m",
            [
                Stretch(
                    180,
                    (30, 31, 29),
                    0,
                    (0.54, 0.56, 0.55),
                    900,
                    every=10,
                    error="timeout",
                    error_each=3,
                    took=3.6,
                )
            ],
            mean_prompt=5000,
            mean_generation=500,
            before=2000,
            resident=(150000, 7500),
            hit_ratio=0.6,
            prefix_caching=True,
        )
    ],
    ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'),
)

# C78: blocks of 7,808 tokens that hold requests of 1,000-2,000: one block each, 16 of 160. Each
# prompt and each answer has 1,000 tokens; lengths and the pool are chosen.
PLANS["C78"] = Plan(
    Server(
        (0, 28, 0),
        started_at=STARTED,
        blocks=161,
        block_size=7808,
        max_model_len=131072,
        own_labels={"mamba_block_size": "7808", "user_specified_block_size": "False"},
    ),
    [
        Track(
            "a-hybrid-model",
            [
                Stretch(10, 0, 0, (0.0, 0.0)),
                Stretch(24, 16, 0, (0.1, 0.1), 320, 0, 0, arrived=16),
                Stretch(60, 16, 0, (0.1, 0.1), 320),
            ],
            mean_prompt=1000,
            mean_generation=1000,
            before=40,
        )
    ],
    max_model_len=131072,
)
