"""The least that Flower does: bytes to every node and bytes back, by its own loop. `benchmarks/relay.py` submits it."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message, context):
    return Message(content(context.run_config["back"]), reply_to=message)


@server.main()
def ask_all(grid, context):
    seconds = []
    for _ in range(context.run_config["n_rounds"]):
        started = time.perf_counter()
        asked = [Message(content(context.run_config["there"]), node, "query") for node in grid.get_node_ids()]
        answers = list(grid.send_and_receive(asked))
        assert len(answers) == len(asked)
        assert not any(reply.has_error() for reply in answers)
        seconds.append(time.perf_counter() - started)
    Path(context.run_config["out"]).write_text(json.dumps(seconds))


def content(size):
    return RecordDict({"bare": ConfigRecord({"bytes": bytes(size)})})
