"""Closing connections whose client has stopped reading, which nothing else would ever end."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class StallLimit:
    """Aborts a transport that could not be written to for a time."""

    def __init__(self, transport: asyncio.Transport, send_timeout_s: float) -> None:
        # With no buffer of its own a transport says at once that the kernel takes nothing any more.
        transport.set_write_buffer_limits(0)
        self._transport = transport
        self._send_timeout_s = send_timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Note that nothing can be written."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._send_timeout_s, self._transport.abort)

    def end(self) -> None:
        """Note that all was written, or that the connection is gone."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def build_protocol(send_timeout_s: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a limit on how long a client may leave an answer unread."""

    class StallLimitedProtocol(H11Protocol):
        stall: StallLimit

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self.stall = StallLimit(transport, send_timeout_s)
            super().connection_made(transport)

        def pause_writing(self) -> None:
            self.stall.begin()
            super().pause_writing()

        def resume_writing(self) -> None:
            self.stall.end()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stall.end()
            super().connection_lost(exc)

    return StallLimitedProtocol
