"""Train the models of the miniature world from scratch, which takes a few hours on two cores.

An interrupted build continues after its last finished stage.

python -m eval.miniature --out my-world
python -m eval.miniature --out try --scale 0.01
VLDEBIAS_MINIATURE=my-world vldebias quickstart
"""

import argparse
import os
from pathlib import Path


def main() -> None:
    # OpenMP reads this when torch is loaded. Threads that never spin are slower on idle cores, and
    # threads that always spin are even slower if other programs are running.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    from eval.miniature.builder import STAGES, build

    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--out", type=Path, required=True, help="output folder, which may contain a partial build"
    )
    options.add_argument(
        "--seed", type=int, default=0, help="seed for the weights and all training images"
    )
    options.add_argument(
        "--stage", action="append", choices=STAGES, help="only these stages (repeat for several)"
    )
    options.add_argument("--device", help="cpu or cuda (default: a GPU if available)")
    options.add_argument(
        "--scale", type=float, default=1.0, help="factor for the number of steps, for quick tests"
    )
    options.add_argument("--fresh", action="store_true", help="train finished stages again")
    args = options.parse_args()
    made = build(
        args.out,
        seed=args.seed,
        stages=args.stage,
        device=args.device,
        resume=not args.fresh,
        scale=args.scale,
    )
    print(f"built {made}; set VLDEBIAS_MINIATURE={made} to use it")


if __name__ == "__main__":
    main()
