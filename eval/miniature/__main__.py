"""Train the models of the miniature world from scratch, which takes some hours on two cores; an
interrupted build resumes.

python -m eval.miniature --out my-world
python -m eval.miniature --out try --scale 0.01
VLDEBIAS_MINIATURE=my-world vldebias quickstart
"""

import argparse
import os
from pathlib import Path


def main() -> None:
    # OpenMP reads this when torch is loaded. Threads that never spin are slower on idle cores;
    # threads that always spin are even slower next to other work.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    from eval.miniature.builder import STAGES, build

    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--out", type=Path, required=True, help="folder; an unfinished build in it is resumed"
    )
    options.add_argument(
        "--seed", type=int, default=0, help="of the weights and of all training images"
    )
    options.add_argument(
        "--stage", action="append", choices=STAGES, help="only these; clip and vae may run at once"
    )
    options.add_argument("--device", help="cpu or cuda; default: a GPU if there is one")
    options.add_argument(
        "--scale", type=float, default=1.0, help="factor on the number of steps, to try things out"
    )
    options.add_argument("--fresh", action="store_true", help="start over instead of going on")
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
