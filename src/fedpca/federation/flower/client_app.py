"""The ClientApp: replies to every request as its node does, or with the reason why it cannot."""

import logging
from typing import cast

from fedpca._util.extras import require
from fedpca.federation.flower.exchanges import Published
from fedpca.federation.flower.logs import show_in_flower
from fedpca.federation.flower.node import Node
from fedpca.federation.flower.region import Region
from fedpca.federation.flower.request import Request, public_reason
from fedpca.federation.flower.round import array_record
from fedpca.federation.flower.virtual import virtual_config

require("flwr", extra="flower", purpose="a Flower federation")
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

app = ClientApp()
_log = logging.getLogger(__name__)
_MAX_NAME = 1000  # as much of a name as travels with a reason


@app.query()
def reply(message: Message, context: Context) -> Message:
    """Reply to a request. No exception escapes: Flower would send its text, which may quote rows."""
    show_in_flower()
    node, client = None, context.node_config.get("client-id", "")
    try:
        node = _node(context)
        client = node.client
        content = _reply(node, message.content)
    except Exception as error:
        _log.exception("fedpca: no release")
        reason = public_reason(error) if node is None else node.public_message(error)
        failed = ConfigRecord({"client": str(client)[:_MAX_NAME], "reason": reason})
        return Message(RecordDict({"failed": failed}), reply_to=message)
    return Message(content, reply_to=message)


def _reply(node: Node | Region, content: RecordDict) -> RecordDict:
    request, board = cast("Request", dict(content["request"])), content.get("board")
    if isinstance(board, ArrayRecord):
        given = {name: array.data for name, array in board.items()}
        known = request.get("known")
        names = [str(name) for name in known] if isinstance(known, list) else []
        messages = node.secure_reply(request, given, names)
        member = ConfigRecord({"client": node.client})
        return RecordDict({"member": member, "messages": array_record(messages)})
    published = content.get("published")
    found = Published.decode(published["message"].data) if isinstance(published, ArrayRecord) else None
    kind, contents = node.reply(request, found)
    return RecordDict({kind: array_record({"message": contents})})


def _node(context: Context) -> Node | Region:
    config = context.node_config
    if "partition-id" in config:  # set by Flower's simulation only
        config = virtual_config(int(config["partition-id"]), context.run_config)
    return Region.from_config(config) if "region" in config else Node.from_config(config)
