"""Await calls in child processes: each with a limit, none of them blocking a thread."""

import asyncio
import re

from procsched import ProcessExecutor, TaskTimeoutError


def count(text):
    return len(re.findall(r"(?:a+)+b", text))  # quick on most texts, and never done on some


async def main():
    async with ProcessExecutor(max_workers=2, timeout=5) as executor:
        found = await asyncio.gather(*(executor.run(count, "ab" * n) for n in range(5)))
        print("counted:", found)

        try:
            await executor.run(count, "a" * 40, timeout=0.5)
        except TaskTimeoutError as error:
            print("timed out:", str(error).splitlines()[0])

        # Cancelling the task that waits ends the process: asyncio.timeout, wait_for and task groups all do it so.
        task = asyncio.create_task(executor.run(count, "a" * 40, timeout=None))
        await asyncio.sleep(0.1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled")

        print("and the worker's place is free:", await executor.run(count, "abab"))


asyncio.run(main())
