"""What clients of the benches share: a request as kube-scheduler sends it, and the latencies."""

import socket
import time


def request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\n"
    head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Accept-Encoding: gzip\r\n\r\n" + body


def summary(samples: list[float], errors: int, seconds: float) -> dict[str, float]:
    ordered = sorted(samples) or [float("nan")]
    return {
        "n": len(samples),
        "errors": errors,
        "per_s": len(samples) / seconds,
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "max": ordered[-1],
    }


class Blocking:
    """One kept-alive connection, used by one thread: the scheduling cycle is serial."""

    def __init__(self, port: int, timeout: float) -> None:
        self._address, self._timeout = ("127.0.0.1", port), timeout
        self._sock: socket.socket | None = None

    def ask(self, message: bytes) -> float | None:
        """Milliseconds that the answer took, None when there was none."""
        start = time.perf_counter()
        try:
            if self._sock is None:
                self._sock = socket.create_connection(self._address, self._timeout)
            self._sock.sendall(message)
            answer = self._sock.recv(1 << 20)
            while (head := answer.find(b"\r\n\r\n")) < 0 and answer:
                answer += self._sock.recv(1 << 20)
            length = int(answer[:head].lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            missing = head + 4 + length - len(answer)
            while missing > 0:
                missing -= len(self._sock.recv(1 << 20)) or missing
        except (OSError, IndexError, ValueError):
            if self._sock is not None:
                self._sock.close()
            self._sock = None
            return None
        return (time.perf_counter() - start) * 1000 if answer[9:12] == b"200" else None
