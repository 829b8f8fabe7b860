"""One call that may hang or crash, in a child: no scheduler, no pool to look after."""

import json
import re

from procsched import TaskTimeoutError, WorkerCrashedError, killable, run

print(run(json.loads, '{"answer": 42}', timeout=5))

try:
    run(re.match, r"(a+)+$", "a" * 40 + "!", timeout=0.5)
except TaskTimeoutError as error:
    print("timed out:", error)


@killable(timeout=2)
def divide(a, b):
    """What is raised in the child is raised here, with the child's traceback."""
    return a / b


print(divide(1, 4))
try:
    divide(1, 0)
except ZeroDivisionError as error:
    print("raised:", error)

try:
    run(lambda: __import__("os").abort(), timeout=5)
except WorkerCrashedError as error:
    print("crashed:", error.signal)
