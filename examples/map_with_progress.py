"""Map over many items: each with its own limit, failures in their places, and how far it is."""

import itertools
import re

from procsched import ProcessExecutor, TaskTimeoutError


def count(text):
    return len(re.findall(r"(?:a+)+b", text))  # quick on most texts, and never done on some


def show(done, total):
    print(f"{done} of {total}")  # in this thread, while it waits for the next result


texts = ["ab" * 3, "b" * 10, "a" * 40, "ab" * 5]

with ProcessExecutor(max_workers=2) as executor:
    # `progress=True` draws a bar instead: pip install 'procsched[progress]'.
    view = executor.options(timeout=0.5)
    found = list(view.map(count, texts, chunksize=4, return_exceptions=True, progress=show))
    print([item if isinstance(item, int) else type(item).__name__ for item in found])
    assert isinstance(found[2], TaskTimeoutError)

    # An endless input: with `buffersize` it is read as results are taken.
    lengths = executor.map(len, map(str, itertools.count()), chunksize=100, buffersize=4)
    first = next(number for number, length in enumerate(lengths) if length == 5)
    print("the first number of five digits:", first)
