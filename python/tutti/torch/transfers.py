"""Transfers: sends and receives between two ranks.

Between two ranks, messages arrive in the order in which they are sent. A message with tag 0 consists of the tensor
only. With any other tag, a header message that contains the tag is sent before the tensor. A receive with a tag other
than 0 compares the tag with its own; if they differ, the receive fails, because the receiver does not search for its
tag among later messages.
"""

from __future__ import annotations

import collections
import queue
import threading
from typing import Any, Deque, List, NamedTuple, Optional, Tuple

import torch

from ..errors import AbortedError, Error, MismatchError
from .base import Batch, Tensors
from .buffers import Finish, bytes_of, copy, to_receive, to_send
from .errors import invalid, unsupported
from .events import profiling, recorded
from .lists import Lists
from .tables import INT64, MOVED
from .work import HostWork

_MARK = 0x7475747469746167  # "tuttitag": identifies a header message
_SELF_OVER = "this group has been aborted or destroyed: this rank's message to itself was discarded"
_HEADER = 3  # number of values in a header: mark, tag, bytes of the tensor


class Message(NamedTuple):
    """The buffer of a send or receive. `tensor` is the caller's; `buffer` is the same tensor or, if it is not
    contiguous, a contiguous copy. `finish` copies a received buffer to the tensor; None: there is no copy."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    finish: Optional[Finish]
    sends: bool


class ManualOperation:
    """An operation that ends when set() is called, with an error if one is passed. Has wait() and test(), like
    _core.Work."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: Optional[Exception] = None

    def set(self, error: Optional[Exception] = None) -> None:
        self._error = error
        self._event.set()

    def wait(self) -> None:
        self._event.wait()
        if self._error is not None:
            raise self._error

    def test(self) -> bool:
        return self._event.is_set()


class AnySourceReceiver:
    """Carries out receives from any source, one after the other, in a thread of its own, because such a receive blocks
    until a message arrives. A group creates this object at its first receive from any source."""

    def __init__(self, group: "Transfers"):
        self._group = group
        self._asked: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tutti receives", daemon=True)
        self._thread.start()

    def add(self, message: Message, tag: int, waiting: ManualOperation, work: List[HostWork]) -> None:
        self._asked.put((message, tag, waiting, work))

    def stop(self) -> None:
        self._asked.put(None)

    def _run(self) -> None:
        while True:
            asked = self._asked.get()
            if asked is None:
                return
            message, tag, waiting, work = asked
            try:
                received, work[0].source = self._receive(message, tag)
                received.wait()
                waiting.set()
            except Exception as error:
                waiting.set(error)
            del asked, message, work

    def _receive(self, message: Message, tag: int) -> Tuple[Any, int]:
        """Waits for the next message, starts its receive, and returns the receive and the sender. If another receive
        may have taken the message before this one starts, waits for the next message instead."""
        group = self._group
        communicator = group._open()
        while True:
            before = dict(group._received)
            peer = communicator.next_sender(group._timeout_ms)
            with group._receiving:
                if group._received.get(peer, 0) == before.get(peer, 0):
                    return group._receive(message, peer, tag), peer


class Transfers(Lists):
    _any_source: Optional[AnySourceReceiver] = None
    _to_self: Deque[Tuple[Message, int, ManualOperation]]
    _from_self: Deque[Tuple[Message, int, ManualOperation]]

    def _prepare_transfers(self) -> None:
        self._to_self = collections.deque()  # sends of this rank to itself for which no receive was called yet
        self._from_self = collections.deque()  # receives of this rank from itself for which no send was called yet
        self._self_lock = threading.Lock()
        self._self_over = False  # True after abort() or the end of the group: messages to itself are refused
        self._any_source_lock = threading.Lock()

    def _end_self_messages(self) -> None:
        with self._self_lock:
            self._self_over = True
            left = [*self._to_self, *self._from_self]
            self._to_self.clear()
            self._from_self.clear()
        for _, _, waiting in left:
            waiting.set(self._convert_error(AbortedError(_SELF_OVER, code="aborted", scope="communicator")))

    def _one(self, tensors: Any, peer: int, call: str) -> torch.Tensor:
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if len(tensors) != 1:
            raise invalid(f"{call} takes one tensor, not {len(tensors)}")
        if not 0 <= peer < self._size:
            raise invalid(f"{call}: rank {peer} is outside 0..{self._size - 1}")
        return tensors[0]

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Any:
        tensor = self._one(tensors, dst, "send")
        return self._transfer(Message(tensor, to_send(tensor, "send"), None, True), dst, tag)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Any:
        tensor = self._one(tensors, src, "recv")
        return self._transfer(Message(tensor, *to_receive(tensor, "recv"), False), src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        tensor = self._one(tensors, self._rank, "recv")
        message = Message(tensor, *to_receive(tensor, "recv"), False)
        if not hasattr(self._open(), "next_sender"):
            raise unsupported("this build of tutti cannot receive from any source")
        if self._open_batch() is not None or not tensor.is_cpu:
            raise invalid("a receive from any source is for host memory, and not for a batch: name the source")
        waiting = ManualOperation()
        work: List[HostWork] = []
        # _receive() runs message.finish.
        made = self._track(waiting, tensor, [tensor], None, message, True, True)
        work.append(made)
        with self._any_source_lock:
            if self._any_source is None:
                self._any_source = AnySourceReceiver(self)
        self._any_source.add(message, tag, waiting, work)
        return made

    def _transfer(self, message: Message, peer: int, tag: int) -> Any:
        if profiling() and self._open_batch() is None:
            return recorded("send" if message.sends else "recv", lambda: self._begin_transfer(message, peer, tag))
        return self._begin_transfer(message, peer, tag)

    def _begin_transfer(self, message: Message, peer: int, tag: int) -> Any:
        if peer == self._rank and self._open_batch() is None:
            return self._with_self(message, tag)
        tensor, buffer, finish, sends = message
        try:
            if tag == 0 and buffer.is_cpu and self._open_batch() is None:
                dtype, multiplier = MOVED[buffer.dtype]
                communicator = self._open()
                arguments = (buffer.data_ptr(), buffer.numel() * multiplier, dtype, peer, self._timeout_ms)
                if sends:
                    started = communicator.start_send(*arguments)
                else:
                    started = self._calling((peer,), communicator.start_receive, *arguments)
                work = self._track(started, buffer, [tensor], finish, None, True, not sends)
                work.source = peer
                return work
            return self._send(message, peer, tag) if sends else self._receive(message, peer, tag)
        except Error as error:
            raise self._convert_error(error) from None

    def _send(self, message: Message, peer: int, tag: int) -> Any:
        header = torch.tensor([_MARK, tag, bytes_of(message.buffer)], dtype=torch.int64) if tag != 0 else None
        return self._with_header(message, peer, header, None)

    def _receive(self, message: Message, peer: int, tag: int) -> Any:
        if tag == 0:
            return self._with_header(message, peer, None, message.finish)
        header = torch.zeros(_HEADER, dtype=torch.int64)

        def finish() -> None:
            mark, got, size = header.tolist()
            if mark != _MARK or got != tag:
                what = f"tag {got}" if mark == _MARK else "no tag"
                raise self._convert_error(
                    MismatchError(
                        f"a receive from rank {peer} with tag {tag} met a message with {what}: messages between two "
                        "ranks arrive in the order in which they are sent, so receive them in that order",
                        code="mismatch between ranks",
                        rank=peer,
                    )
                )
            if message.finish is not None:
                message.finish()

        return self._with_header(message, peer, header, finish)

    def _with_header(self, message: Message, peer: int, header: Any, finish: Optional[Finish]) -> Any:
        """Sends or receives `header` (None: there is none) and the message as one batch, or adds them to this thread's
        open batch. `finish` runs after the call, if the call has succeeded."""
        tensor, buffer, _, sends = message
        opened = self._open_batch()
        batch = opened or Batch()
        try:
            batch.add_buffers(buffer, [tensor], (tensor, buffer, header), finish)
            batch.transfers = True
            if not sends:
                batch.sources.append(peer)
            if header is not None:
                self._check_header(buffer)
                add = batch.group.send if sends else batch.group.receive
                add(self._open(), header.data_ptr(), _HEADER, INT64, peer, self._timeout_ms)
            self._add_transfer(batch, buffer, peer, sends)
        except Exception:
            self._discard(batch)
            raise
        if opened is not None:
            return self._done
        work = self._launch(batch, False)
        if isinstance(work, HostWork):
            work.source = peer
        return work

    def _add_transfer(self, batch: Batch, buffer: torch.Tensor, peer: int, sends: bool) -> None:
        dtype, multiplier = MOVED[buffer.dtype]
        add = batch.group.send if sends else batch.group.receive
        stream = None if buffer.is_cpu else self._side_stream(buffer.device).cuda_stream
        add(self._open(), buffer.data_ptr(), buffer.numel() * multiplier, dtype, peer, self._timeout_ms, stream)

    def _check_header(self, tensor: torch.Tensor) -> None:
        if not tensor.is_cpu:
            raise invalid("tags are for host memory: send tensors of CUDA memory with tag 0")

    def _with_self(self, message: Message, tag: int) -> Any:
        """A message of this rank to itself: the send and the receive that belong together are two calls of this
        function. The second of the two calls copies the tensor and ends both works."""
        self._open()
        tensor, sends = message.tensor, message.sends
        mine, others = (self._to_self, self._from_self) if sends else (self._from_self, self._to_self)
        waiting = ManualOperation()
        with self._self_lock:
            if self._self_over:
                raise self._convert_error(AbortedError(_SELF_OVER, code="aborted", scope="communicator"))
            work = self._track(waiting, tensor, [tensor], None, message, True, True)
            work.source = self._rank
            if not others:
                mine.append((message, tag, waiting))
                return work
            other, other_tag, other_waiting = others.popleft()
        target, source = (other.tensor, message.buffer) if sends else (tensor, other.buffer)
        error: Optional[Exception] = None
        if tag != other_tag or target.dtype is not source.dtype or target.numel() != source.numel():
            error = self._convert_error(
                MismatchError(
                    f"rank {self._rank} sends itself {source.numel()} {source.dtype} and receives {target.numel()} "
                    f"{target.dtype}; tags {other_tag} and {tag}",
                    code="mismatch between ranks",
                    rank=self._rank,
                )
            )
        else:
            copy(target, source)
        waiting.set(error)
        other_waiting.set(error)
        return work
