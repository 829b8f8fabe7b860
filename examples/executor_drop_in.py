"""ProcessExecutor where ProcessPoolExecutor was: the same calls, and a limit that holds."""

import re
import time
from concurrent.futures import as_completed

from procsched import ProcessExecutor, TaskTimeoutError


def count(text):
    return len(re.findall(r"(?:a+)+b", text))  # quick on most texts, and never done on some


texts = ["aab" * 3, "b" * 10, "a" * 40, "ab" * 5]

with ProcessExecutor(max_workers=2, timeout=0.5) as executor:
    futures = {executor.submit(count, text): text for text in texts}
    for future in as_completed(futures):
        text = futures[future]
        try:
            print(f"{text[:12]:<12} {future.result()}")
        except TaskTimeoutError as error:
            print(f"{text[:12]:<12} {str(error).splitlines()[0]}")

    # A running call can be cancelled: its process dies.
    hung = executor.options(timeout=None).submit(count, "a" * 40)
    while not hung.running():
        time.sleep(0.001)
    assert hung.cancel()
    print("cancelled:", hung.wait_record().outcome)

    # In `map`, what failed may come as an exception in its place.
    for text, found in zip(texts, executor.map(count, texts, return_exceptions=True), strict=True):
        print(f"{text[:12]:<12} {found if isinstance(found, int) else type(found).__name__}")
