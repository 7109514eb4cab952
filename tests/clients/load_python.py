"""An open load of streamed completions: python load_python.py URL TRACE RATE NUM_REQUESTS [PID [VOCAB_SIZE]].

One asyncio process with aiohttp, as most load generators are. Request k of TRACE (JSON lines with `prompt_tokens`,
`output_tokens`, `arrival_unit`) is sent at arrival_unit / RATE; prompts are token ids, outputs as long as the trace says. TTFT is
from just before the POST to the first event with a choice, TPOT (last - first event) / (tokens - 1); PID is the server's process,
whose processor time is told per token (- for none); ids lie below VOCAB_SIZE (150000). Ends with one line of JSON, and with
status 1 where a request failed or had another number of tokens. Needs `pip install aiohttp`.
"""

import asyncio
import json
import os
import statistics
import sys
import time

import aiohttp

URL, TRACE, RATE, NUM_REQUESTS = sys.argv[1].rstrip("/"), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
PID = int(sys.argv[5]) if sys.argv[5:] and sys.argv[5] != "-" else None
VOCAB_SIZE = int(sys.argv[6]) if sys.argv[6:] else 150_000
WARM_UPS = [1, 64, 64]


def body(place, model, request):
    prompt = [(place * 7919 + j * 104_729) % VOCAB_SIZE for j in range(request["prompt_tokens"])]
    return json.dumps({
        "model": model, "prompt": prompt, "max_tokens": request["output_tokens"], "ignore_eos": True, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    })


async def answer(session, data):
    """TTFT and TPOT in milliseconds, and the number of tokens."""
    start, first, last, usage = time.perf_counter(), None, None, None
    headers = {"Content-Type": "application/json"}
    async with session.post(URL + "/v1/completions", data=data, headers=headers) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if event.get("choices"):
                last = time.perf_counter()
                first = first or last
            usage = event.get("usage") or usage
    num_tokens = usage["completion_tokens"]
    tpot = 1e3 * (last - first) / (num_tokens - 1) if num_tokens > 1 else None
    return 1e3 * (first - start), tpot, num_tokens


async def load(session, model, requests, times):
    """The answers, or what went wrong, of requests that are sent at those times."""
    bodies = [body(place, model, request) for place, request in enumerate(requests)]
    start, tasks, late = time.perf_counter(), [], 0.0
    for data, at in zip(bodies, times):
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        late = max(late, time.perf_counter() - start - at)
        tasks.append(asyncio.create_task(answer(session, data)))
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    return answers, time.perf_counter() - start, late


def cpu_time():
    """Processor time of the server, in seconds."""
    with open(f"/proc/{PID}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentiles(values):
    values = sorted(values)
    at = lambda share: round(values[min(len(values) - 1, int(share * len(values)))], 3)
    return {"mean": round(statistics.mean(values), 3), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99)}


async def main():
    with open(TRACE) as file:
        requests = [json.loads(line) for line in file][:NUM_REQUESTS]
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        async with session.get(URL + "/v1/models") as response:
            model = (await response.json())["data"][0]["id"]
        for num in WARM_UPS:
            await load(session, model, requests[:num], [0.0] * num)
        before = cpu_time() if PID else None
        times = [request["arrival_unit"] / RATE for request in requests]
        answers, elapsed, late = await load(session, model, requests, times)
        cpu = cpu_time() - before if PID else None
    good = [one for one in answers if not isinstance(one, BaseException)]
    wrong = [repr(one) for one in answers if isinstance(one, BaseException)]
    wrong += [
        f"request {place} has {one[2]} tokens" for place, (one, request) in enumerate(zip(answers, requests))
        if not isinstance(one, BaseException) and one[2] != request["output_tokens"]
    ]
    num_tokens = sum(one[2] for one in good)
    print(json.dumps({
        "request_rate": RATE, "num_requests": len(requests), "num_wrong": len(wrong), "first_wrong": wrong[:1],
        "requests_per_s": round(len(good) / elapsed, 2), "output_tokens_per_s": round(num_tokens / elapsed, 1),
        "ttft_ms": percentiles([one[0] for one in good]), "tpot_ms": percentiles([one[1] for one in good if one[1] is not None]),
        "max_late_ms": round(1e3 * late, 2),
        "server_cpu_us_per_token": None if cpu is None else round(1e6 * cpu / num_tokens, 1),
    }))
    sys.exit(1 if wrong else 0)


asyncio.run(main())
