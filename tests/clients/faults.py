"""Clients that misbehave: python faults.py URL PID [SECONDS].

Puts them on a server of this host, whose process is PID, and checks what must hold afterwards: nothing runs, waits or holds
a block, each request is counted once, the memory is back and the server is well. All is done twice, since the first time takes
memory that stays: blocks of the KV pool that nobody had used before. The server is to have been started with
`--max-num-waiting 64 --write-timeout 5 --num-gpu-blocks-override 128` or so. Nothing but Python is needed.
"""

import http.client
import json
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

URL, PID = sys.argv[1].rstrip("/"), int(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 10
HOST, PORT = urlsplit(URL).hostname, urlsplit(URL).port
PATH = "/v1/completions"
# More than anything here takes: what is still open then hangs.
PATIENCE = 120


def connect(timeout=PATIENCE):
    return socket.create_connection((HOST, PORT), timeout=timeout)


def head(length, path=PATH):
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def exchange(data):
    """What comes back until the server closes. This end stays open meanwhile: who closes it has left, and gets nothing."""
    with connect() as stream:
        answer = b""
        try:
            stream.sendall(data)
        except OSError:
            pass
        try:
            while piece := stream.recv(65536):
                answer += piece
        except ConnectionError:
            pass
        return answer


def status(answer):
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else None


def ask(path, body=None):
    connection = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE)
    headers = {"Content-Type": "application/json"}
    connection.request("POST" if body is not None else "GET", path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


def metrics():
    sums = {}
    for line in ask("/metrics")[1].decode().splitlines():
        if line.startswith("quire:"):
            name = re.sub(r'model_name="[^"]*",?', "", line.rsplit(" ", 1)[0]).replace("{}", "")
            sums[name] = sums.get(name, 0) + float(line.rsplit(" ", 1)[1])
    return sums


def check_laws(now):
    finished = sum(value for name, value in now.items() if name.startswith("quire:request_success_total"))
    open_ = sum(now[f"quire:num_requests_{state}"] for state in ("running", "waiting", "swapped"))
    assert now["quire:requests_total"] == open_ + finished, now
    assert now["quire:time_to_first_token_seconds_count"] == now["quire:first_tokens_total"], now
    return open_, finished


def resident_mib():
    with open(f"/proc/{PID}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def becomes_idle(within=60):
    started = time.monotonic()
    while True:
        now = metrics()
        open_, _ = check_laws(now)
        if open_ == 0 and now['quire:kv_blocks{state="live"}'] == 0:
            return time.monotonic() - started
        assert time.monotonic() - started < within, {name: now[name] for name in now if "num_requests" in name}
        time.sleep(0.1)


def killed_clients():
    """Clients that leave at random moments, beside some that stay."""
    ended = time.monotonic() + SECONDS / 2
    counts = {"sent": 0, "left": 0, "answered": 0, "refused": 0}
    failures, lock = [], threading.Lock()

    def count(name):
        with lock:
            counts[name] += 1

    def client(seed):
        chance = random.Random(seed)
        while time.monotonic() < ended:
            body = json.dumps({
                "prompt": "x" * chance.randrange(1, 100), "max_tokens": chance.randrange(1, 60), "ignore_eos": True,
                "stream": chance.random() < 0.6, "n": chance.choice([1, 1, 1, 2]), "seed": chance.randrange(9),
            }).encode()
            count("sent")
            try:
                with connect() as stream:
                    data = head(len(body)) + body
                    if chance.random() < 0.1:
                        # Gone before all was sent.
                        stream.sendall(data[: chance.randrange(len(data))])
                        count("left")
                        continue
                    stream.sendall(data)
                    if chance.random() < 0.7:
                        if chance.random() < 0.4:
                            # A next request, which nobody reads while this one is answered.
                            stream.sendall(chance.choice([b"x", data]))
                        stream.settimeout(chance.random())
                        try:
                            stream.recv(chance.randrange(1, 4000))
                        except TimeoutError:
                            pass
                        if chance.random() < 0.5:
                            # With a reset in place of a farewell.
                            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        count("left")
                        continue
                    answer = b""
                    while piece := stream.recv(65536):
                        answer += piece
                    count({200: "answered", 429: "refused"}[status(answer)])
            except Exception as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(24)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        check_laws(metrics())
        assert time.monotonic() < ended + PATIENCE, "a client hangs"
        time.sleep(0.5)
    assert not failures, failures[:3]
    return counts


def torn_requests():
    """Requests that end at each of their bytes: with a farewell, a reset, or half a farewell."""
    body = json.dumps({"prompt": "a", "max_tokens": 4, "stream": True}).encode()
    data = head(len(body)) + body
    for length in range(len(data) + 1):
        for end in range(3):
            with connect() as stream:
                stream.sendall(data[:length])
                if end == 1:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                elif end == 2:
                    stream.shutdown(socket.SHUT_WR)
    return f"{3 * (len(data) + 1)} of them"


def slow_reader():
    """A client that reads, if slowly, is waited for."""
    body = json.dumps({
        "prompt": "x", "n": 4, "seed": 1, "logprobs": 5, "max_tokens": 60, "ignore_eos": True, "stream": True,
    }).encode()
    with connect() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.sendall(head(len(body)) + body)
        started, answer = time.monotonic(), b""
        while piece := stream.recv(500 if time.monotonic() - started < 7 else 65536):
            answer += piece
            time.sleep(0.02 if time.monotonic() - started < 7 else 0)
    assert b"data: [DONE]" in answer, answer[-300:]
    return f"{len(answer)} bytes in {time.monotonic() - started:.1f} s"


def stalled_readers():
    """Clients that read nothing of long streams: they are given up, or what they asked for fits on the way."""
    body = json.dumps({
        "prompt": ["x"] * 8, "n": 4, "seed": 1, "logprobs": 5, "max_tokens": 60, "ignore_eos": True, "stream": True,
    }).encode()
    streams = []
    for _ in range(2):
        stream = connect()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.sendall(head(len(body)) + body)
        streams.append(stream)
    while check_laws(metrics())[0] == 0:
        time.sleep(0.01)
    assert ask("/health")[0] == 200
    seconds = becomes_idle(PATIENCE)
    for stream in streams:
        stream.close()
    return f"idle after {seconds:.1f} s"


def large_bodies():
    before = resident_mib()
    answer = exchange(head(1 << 30) + b"x" * (1 << 20))
    assert status(answer) == 413, answer[:200]
    # A length that is a lie, as a stream of pieces.
    pieces = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect() as stream:
        stream.sendall(pieces.encode())
        sent = 0
        try:
            while sent < 1 << 30:
                stream.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
                sent += 1 << 20
        except OSError:
            pass
    assert sent < 1 << 28, "a gigabyte was taken"
    grown = resident_mib() - before
    assert grown < 100, f"{grown} MiB more"
    return f"{sent >> 20} MiB taken of 1024, {grown:.0f} MiB more in memory"


def odd_bodies():
    deep = b'{"prompt": "a", "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    bodies = [
        b'{"prompt": "\xff\xfe"}', b"\xff\xfe\x00", b"{", b"", b"null", deep, b'{"prompt": ' + b"[" * 3_000_000,
        b'{"prompt": "\\ud800"}', b'{"prompt": "a", "n": 1e400}', b'{"messages": ' + b'{"a":' * 100_000,
    ]
    for body in bodies:
        answer = exchange(head(len(body)) + body)
        assert status(answer) == 400, (body[:40], answer[:200])
    return f"{len(bodies)} refused"


def odd_heads():
    floods = {
        "many headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"\r\n",
        "a long header": b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (4 << 20) + b"\r\n\r\n",
        "a long path": b"GET /" + b"y" * (1 << 20) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
        "two lengths": head(5).replace(b"\r\n\r\n", b"\r\nContent-Length: 7\r\n\r\n") + b"{}   {}",
    }
    said = {name: status(exchange(data)) for name, data in floods.items()}
    assert all(code is None or 400 <= code < 500 for code in said.values()), said
    return said


def slow_clients():
    """Two hundred that send a byte now and then; others are answered meanwhile."""
    slow = [connect() for _ in range(200)]
    for stream in slow:
        stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
    worst = 0.0
    for _ in range(3):
        for stream in slow:
            try:
                stream.sendall(b"X")
            except OSError:
                pass
        started = time.monotonic()
        assert ask("/health")[0] == 200
        worst = max(worst, time.monotonic() - started)
        time.sleep(0.3)
    assert ask(PATH, {"prompt": "a", "max_tokens": 2})[0] == 200
    for stream in slow:
        stream.close()
    assert worst < 5, worst
    return f"/health in {1000 * worst:.0f} ms beside 200 slow heads"


def end_in_mid_load():
    """SIGTERM: what runs is answered, what comes is refused, and the process ends."""
    answers, lock = [], threading.Lock()

    def client():
        while True:
            try:
                code, data = ask(PATH, {"prompt": "x", "max_tokens": 20, "ignore_eos": True})
            except OSError:
                # The process has ended.
                return
            except http.client.HTTPException as error:
                code, data = None, repr(error)
            with lock:
                answers.append((code, data))
            if code != 200:
                return

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    os.kill(PID, signal.SIGTERM)
    started = time.monotonic()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a request hangs"
    seconds = time.monotonic() - started
    assert all(code in (200, 503) for code, _ in answers), answers
    complete = [json.loads(data)["usage"]["completion_tokens"] for code, data in answers if code == 200]
    assert all(number == 20 for number in complete), complete
    return f"{len(complete)} answered whole, {len(answers) - len(complete)} refused, all over {seconds:.1f} s after it"


CHECKS = [killed_clients, torn_requests, slow_reader, stalled_readers, large_bodies, odd_bodies, odd_heads, slow_clients]


def run(check, *then):
    """Whether a check has passed; it is told either way."""
    started = time.monotonic()
    try:
        said = check()
        for one in then:
            one()
        print(f"ok {check.__name__} ({time.monotonic() - started:.1f} s): {said}", flush=True)
        return True
    except Exception as error:
        print(f"FAILED {check.__name__}: {type(error).__name__}: {error}", flush=True)
        return False


def is_well():
    becomes_idle()
    assert ask("/health")[0] == 200 and ask("/health/ready")[0] == 200


def main():
    for _ in range(4):
        assert ask(PATH, {"prompt": "warm", "max_tokens": 8})[0] == 200
    passed, resident = [], [resident_mib()]
    for _ in range(2):
        passed += [run(check, is_well) for check in CHECKS]
        resident.append(resident_mib())
    print(f"memory: {', '.join(f'{mib:.0f}' for mib in resident)} MiB at first and after each round", flush=True)
    passed.append(resident[2] < resident[1] + 32)
    passed.append(run(end_in_mid_load))
    print(f"{sum(passed)} of {len(passed)} passed")
    sys.exit(0 if all(passed) else 1)


main()
