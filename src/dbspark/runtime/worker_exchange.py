"""The exchange between resident workers: a barrier in which every worker sends one message to every other.

All workers make the same exchanges in the same order, because which come next follows from the plan, the transaction
and the notes of the exchanges before. So a message is identified by the number of its run and that of the exchange in
the run. A message of an earlier run is what a run that failed has left behind: it is dropped.

A worker whose level fails says so in its next message, and all others stop there. A worker that has gone ends its
streams, or the driver tells the others (`abort`); either wakes those that wait.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as fl

from dbspark.errors import DbsparkError
from dbspark.runtime.wire import WIRE_SCHEMA, WireMessage, call_options, write_message

Received = dict[str, list[Any]]


class RunAbortedError(DbsparkError):
    """A run that another worker, or the driver, has ended."""

    def __init__(self, why: str, peer: int | None = None) -> None:
        """`peer`: the worker that could not be reached, if that is why."""
        super().__init__(why)
        self.peer = peer


class PeerAddress(Protocol):
    """What a worker needs to know of itself to call others."""

    @property
    def attempt(self) -> str: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def secret(self) -> str: ...


class PeerExchange:
    """The streams of one worker to and from all others."""

    def __init__(self, shard: int, shards: int) -> None:
        self._shard = shard
        self._shards = shards
        self._writers: dict[int, Any] = {}
        self._readers: dict[int, Any] = {}
        """Kept but never read: a writer crashes when it is closed after the reader of its stream has been collected."""
        self._clients: dict[int, Any] = {}
        self._inbox: dict[int, queue.SimpleQueue[WireMessage | None]] = {
            peer: queue.SimpleQueue() for peer in range(shards) if peer != shard
        }
        self._incarnations: dict[int, int] = {}
        """By peer, the incarnation to which there is a stream; messages of older incarnations are dropped."""
        self._aborted = -1
        self._run = -1
        self._number = 0
        self.sent_bytes = 0
        """Payload bytes sent to other workers since the last `begin_run`."""
        self.messages = 0

    def connect(self, peers: Mapping[int, tuple[str, int]], caller: PeerAddress) -> None:
        """Open a stream to every other worker that is new; `peers`: endpoint and incarnation, by shard."""
        for peer, (endpoint, incarnation) in peers.items():
            if peer == self._shard or (peer in self._writers and self._incarnations[peer] == incarnation):
                continue
            self.close([peer])
            self._incarnations[peer] = incarnation
            client = self._clients[peer] = fl.connect(endpoint)
            path = "peer", caller.attempt, str(self._shard), str(caller.incarnation)
            descriptor = fl.FlightDescriptor.for_path(*path)
            writer, self._readers[peer] = client.do_exchange(descriptor, call_options(caller.secret))
            writer.begin(WIRE_SCHEMA)
            self._writers[peer] = writer

    def client(self, peer: int) -> Any:
        """The client of another worker, for calls beside the stream."""
        return self._clients[peer]

    def deliver(self, peer: int, incarnation: int, message: WireMessage | None) -> None:
        """Take a message that another worker has sent; None: its stream has ended."""
        if incarnation >= self._incarnations.get(peer, 0):
            self._inbox[peer].put(message)

    def abort(self, run: int, lost: Iterable[int] = ()) -> None:
        """End a run from another thread: wakes threads that wait for a message, or to send one to a lost worker."""
        self._aborted = max(self._aborted, run)
        for reader in [self._readers[peer] for peer in lost if peer in self._readers]:
            with contextlib.suppress(Exception):
                reader.cancel()
        for inbox in self._inbox.values():
            inbox.put(None)

    def begin_run(self, run: int) -> None:
        """The next exchange is the first of a run."""
        self._run, self._number = run, 0
        self.sent_bytes = self.messages = 0

    def fail(self) -> None:
        """Tell all others that this worker has failed in the present run."""
        for writer in self._writers.values():
            with contextlib.suppress(pa.ArrowException, OSError):
                write_message(writer, {"run": self._run, "number": self._number, "failed": True})

    def exchange(self, outgoing: Iterable[tuple[int, str, Any]], note: Any) -> tuple[Received, list[Any]]:
        """Send rows and a note to every worker; returns the rows for this one, by slot, and all notes by shard."""
        received: Received = {}
        rows: dict[int, list[tuple[str, Any]]] = {}
        for shard, slot, payload in outgoing:
            if shard == self._shard:
                received.setdefault(slot, []).append(payload)
            else:
                rows.setdefault(shard, []).append((slot, payload))
        header = {"run": self._run, "number": self._number, "note": note}
        for peer, writer in self._writers.items():
            try:
                self.sent_bytes += write_message(writer, header, rows.get(peer, ()))
            except (pa.ArrowException, OSError) as error:
                raise RunAbortedError(
                    f"worker {peer} cannot be reached from worker {self._shard}: {error}", peer
                ) from None
            self.messages += 1
        notes: list[Any] = [None] * self._shards
        notes[self._shard] = note
        for peer, inbox in self._inbox.items():
            message = self._next(peer, inbox)
            notes[peer] = message.header["note"]
            for slot, payload in message.rows:
                received.setdefault(slot, []).append(payload)
        self._number += 1
        return received, notes

    def _next(self, peer: int, inbox: queue.SimpleQueue[WireMessage | None]) -> WireMessage:
        while True:
            message = inbox.get()
            if message is None:
                if self._aborted >= self._run:
                    raise RunAbortedError("the driver has ended the run")
                if peer not in self._writers:
                    raise RunAbortedError(f"worker {peer} has gone")
                continue
            if message.header["run"] < self._run:
                continue
            if message.header.get("failed"):
                raise RunAbortedError(f"worker {peer} has failed")
            if message.header["number"] != self._number:
                raise DbsparkError(
                    f"worker {peer} is at exchange {message.header['number']} and this one at {self._number}"
                )
            return message

    def close(self, peers: Sequence[int] | None = None) -> None:
        """Close the streams to some peers, or all."""
        for peer in list(self._writers) if peers is None else peers:
            writer, client = self._writers.pop(peer, None), self._clients.pop(peer, None)
            reader = self._readers.pop(peer, None)
            if reader is not None and peers is not None:
                reader.cancel()  # the other side may hang, and closing waits for its answer
            for thing in (writer, client):
                if thing is not None:
                    with contextlib.suppress(Exception):  # the other side has gone; there is nothing left to release
                        thing.close()


__all__ = ["PeerExchange", "Received", "RunAbortedError"]
