"""The ClientApp: every ask is answered with the node's release, or with why there is none."""

import logging

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
except ImportError as error:
    raise ImportError("a federation on Flower needs flwr: pip install 'fedpca[flower]'.") from error

from fedpca.errors import NodeError
from fedpca.federation.flower.node import Node
from fedpca.federation.flower.region import Region
from fedpca.federation.flower.virtual import virtual_config

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Reply to an ask. No exception gets out: Flower would send its text, whatever it quotes."""
    node = None
    try:
        node = _node(context)
        contents = node.release(dict(message.content["ask"]))
    except Exception as error:
        logging.getLogger("flwr").exception("fedpca: no release")
        if node is not None:
            reason = node.told(error)
        else:
            reason = str(error) if isinstance(error, NodeError) else type(error).__name__
        failed = ConfigRecord({"client": "" if node is None else node.client, "reason": reason})
        return Message(RecordDict({"failed": failed}), reply_to=message)
    file = Array("uint8", (len(contents),), "fedpca model file", contents)
    return Message(RecordDict({"release": ArrayRecord({"file": file})}), reply_to=message)


def _node(context: Context) -> Node | Region:
    config = context.node_config
    if "partition-id" in config:  # only Flower's simulation says so
        config = virtual_config(int(config["partition-id"]), context.run_config)
    return Region.from_config(config) if "region" in config else Node.from_config(config)
