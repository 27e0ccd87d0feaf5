"""A node's context in this process, whose state need not be records."""

from __future__ import annotations

from flwr.app import Context, RecordDict

from fedtrellis.wire.arrays import contents
from fedtrellis.wire.protocol import MEMORY_RECORDS, ClientMemory

__all__ = ["NodeContext"]


class NodeContext(Context):
    """Flower's ``Context`` that can hold a client's memory as it is worked with.

    Records are made of it where somebody looks at :attr:`state`, and from then on count
    alone: whoever looks may change them.
    """

    _records: RecordDict | None = None
    _memory: ClientMemory | None = None
    _keeps_model, _empty = True, False

    @property
    def state(self) -> RecordDict:
        """What Flower keeps of a node from message to message."""
        if self._records is None:
            self._records = RecordDict()
            if self._memory is not None:
                self._memory.save(self._records, self._keeps_model)
        self._memory = None
        return self._records

    @state.setter
    def state(self, records: RecordDict) -> None:
        self._records, self._memory = records, None

    def memory(self, session: str) -> ClientMemory | None:
        """The client's memory in a session, not to be changed.

        None where there is something else: another session's, or records of a client's
        own.
        """
        memory = self._memory
        if memory is None:
            records = self.state
            if not contents(records).keys() <= MEMORY_RECORDS:
                return None
            self._empty = not records
            if not self._empty and ClientMemory.session_of(records) != session:
                return None
            memory = self._memory = ClientMemory.load(records, session)
        return memory if memory.session == session else None

    @property
    def looked_at(self) -> bool:
        """Whether the state was, since :meth:`memory` or :meth:`keep` was called."""
        return self._memory is None

    def keep(self, memory: ClientMemory, keeps_model: bool) -> None:
        """Replace the memory that :meth:`memory` gave.

        Parameters
        ----------
        memory : ClientMemory
        keeps_model : bool
            Whether the model is part of the state.
        """
        if self.looked_at:
            # what else somebody has put there stays
            memory.save(self.state, keeps_model)
            return
        self._records, self._memory = None, memory
        self._keeps_model, self._empty = keeps_model, False

    def put_back(self, memory: ClientMemory) -> None:
        """Undo what was done to the state since :meth:`memory` gave this one."""
        if self.looked_at:
            self._records = RecordDict()
            if not self._empty:
                memory.save(self._records, memory.model is not None)
