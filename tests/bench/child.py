"""The measured process: `python -m tests.bench.child GROUP CASE PEER quick|full` prints one line of JSON.

Pools that start their workers by `spawn` import this module again in each of them, so it imports nothing at its head.
"""


def main(group: str, name: str, peer: str, how: str) -> None:
    """Measure, and print the figures, what is missing, or the error."""
    import json
    import traceback

    from tests.bench.framework import load_case

    answer: dict[str, object]
    try:
        answer = {"figures": load_case(group, name).peers[peer](how == "quick")}
    except ImportError as error:
        inner = error.name or str(error)
        ours = inner.startswith(("procsched", "tests"))
        answer = {"error": traceback.format_exc()} if ours else {"missing": f"not installed: {inner}"}
    except Exception:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    import os
    import sys

    main(*sys.argv[1:])
    # A peer's threads that do not end are not our subject; the session is cleaned by who started us.
    os._exit(0)
