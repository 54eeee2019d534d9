"""Retrieval time, recall and memory of a large pool of experiences.

The ``when_to_use`` texts of the experiences are requests with a small vocabulary, as in a
benchmark; the queries are other requests. From 50,000 experiences on, the pool is searched by
hnswlib (extra ``embed``), and its results are compared with those of an exact search. The table has
the CPU time of a retrieval, including the embedding of the query; the recall of the 5 nearest,
where an experience as near as the fifth counts as found; the time to load the pool; and its memory
beyond the texts, as a multiple of n x dim x 4 bytes. The exit code is 1 if a limit is missed: 5 ms,
99% and 2.5.

Run: python bench/experiences.py [--n 100000] [--queries 200]     # some minutes
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
import time
from collections.abc import Sequence

import numpy as np

from coevo_gym.curricula.pool.embed import Embedder, HashingEmbedder, SentenceEmbedder, Vectors
from coevo_gym.methods.agentevolver.experience import UNMEASURED, Experience
from coevo_gym.methods.agentevolver.experience_pool import ExperiencePool

MAX_MS, MIN_RECALL, MAX_MEMORY = 5.0, 0.99, 2.5
K = 5
_VERBS = "find buy play send move clean heat cool book cancel list count rate follow delete share"
_THINGS = (
    "mug shelf song playlist message note alarm ticket order shirt shoes sofa lamp flight hotel "
    "payment friend file folder report apple bread knife towel soap phone charger camera bag coat "
    "table chair book watch ring bottle plate bowl pan pot fridge sink cabinet drawer desk bed"
)
_TAILS = (
    "that costs less than before|for a friend|in the kitchen|from last week|that I liked most|"
    "with the highest rating|before noon|and tell me how many there are|in a small size|in red|"
    "in blue|that is still unread|which nobody has answered|on the top floor|and then undo it"
)


def random_requests(n: int, seed: int) -> list[str]:
    """Return ``n`` different requests."""
    draw = random.Random(seed)
    verbs, things, tails = _VERBS.split(), _THINGS.split(), _TAILS.split("|")
    texts: dict[str, None] = {}
    while len(texts) < n:
        parts = [
            f"{draw.choice(verbs)} the {draw.choice(things)} {draw.choice(tails)}"
            for _ in range(draw.randint(1, 3))
        ]
        texts[f"{', then '.join(parts)} ({draw.choice(things)} {draw.choice(things)})"] = None
    return list(texts)


def memory_mb() -> float:
    """Return the resident memory of the process, in MiB."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def kth_cosines(embed: Embedder, texts: Sequence[str], asked: Vectors) -> Vectors:
    """Return the cosine of the K-th nearest text for each query, by an exact search."""
    best = np.full((len(asked), K), -1.0)
    for first in range(0, len(texts), 1000):
        cosines = asked @ embed(texts[first : first + 1000]).T
        best = -np.sort(-np.concatenate([best, cosines], axis=1), axis=1)[:, :K]
    return best[:, -1]


def main() -> None:
    """Fill a pool, measure it, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=100_000, help="number of experiences")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--embedder", choices=["words", "sentences"], default="words")
    arguments = parser.parse_args()
    embed: Embedder = HashingEmbedder() if arguments.embedder == "words" else SentenceEmbedder()
    dim = embed(["a mug"]).shape[1]
    texts = random_requests(arguments.n, seed=0)
    saved = [
        {
            "experience": {
                "when_to_use": text, "content": "Look twice.", "task_id": "", "source": "rule"
            },
            "use": [*UNMEASURED],
        }
        for text in texts
    ]  # fmt: skip
    pool = ExperiencePool(embed, capacity=arguments.n)
    state = {**pool.state_dict(), "experiences": saved}
    pool.load_state_dict({**state, "experiences": saved[:1]})  # loads the embedding model, if any
    # Equal objects, to measure the memory of the texts; kept so that it is not reused.
    before = memory_mb()
    alone = [Experience.model_validate(one["experience"]) for one in saved]
    after = memory_mb()
    started = time.process_time()
    pool.load_state_dict(state)
    pool.retrieve("find the mug", k=K, least=0.0)  # builds the graph
    loaded_s, texts_mb, grown_mb = (
        time.process_time() - started, after - before, memory_mb() - after
    )  # fmt: skip
    room = (grown_mb - texts_mb) * 2**20 / (len(alone) * dim * 4)

    asked = random_requests(arguments.queries, seed=1)
    started, results = time.process_time(), []
    for request in asked:
        results.append(pool.retrieve(request, k=K, least=-1.0))
    each_ms = 1000 * (time.process_time() - started) / len(asked)
    vectors = embed(asked)
    wanted = kth_cosines(embed, texts, vectors)
    hits = [
        int((embed([one.when_to_use for one in some]) @ vector >= least - 1e-6).sum())
        for some, vector, least in zip(results, vectors, wanted, strict=True)
    ]
    recall = sum(hits) / (K * len(asked))
    print("| experiences | dimension | CPU ms per retrieval | recall | memory | CPU s to load |")
    print("|---|---|---|---|---|---|")
    numbers = f"{each_ms:.2f} | {recall:.4f} | {room:.2f} | {loaded_s:.0f} |"
    print(f"| {arguments.n:,} | {dim} | {numbers}")
    sys.exit(each_ms > MAX_MS or recall < MIN_RECALL or room > MAX_MEMORY)


if __name__ == "__main__":
    main()
