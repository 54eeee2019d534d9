"""Experiments: tables of results, each produced by a single command.

```bash
coevo experiment controls --budget tiny --seeds 2
```

A table is defined by a TOML file (in ``tables/``, or your own). Its cells are runs in
``runs/EXPERIMENT/ROW-SEED``. Finished cells are skipped, and interrupted cells are resumed.
"""
