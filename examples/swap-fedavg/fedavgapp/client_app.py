"""The ClientApp: what a node does with its own data."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedavgapp import task

app = ClientApp()


@app.train()
def train(msg, context):
    """Train the model on this node's loss."""
    loss = task.Loss(context.node_config["partition-id"])
    x = task.train(loss, msg.content["arrays"].to_numpy_ndarrays()[0])
    metrics = MetricRecord({"loss": loss.value(x), "num-examples": task.ROWS})
    content = RecordDict({"arrays": ArrayRecord([x]), "metrics": metrics})
    return Message(content=content, reply_to=msg)
