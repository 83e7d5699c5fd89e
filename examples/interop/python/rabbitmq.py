"""Consumes and publishes Waybill's messages on RabbitMQ, with pika alone.

    rabbitmq.py consume URL QUEUE COUNT     prints one JSON object for each message
    rabbitmq.py publish URL EXCHANGE TOPIC  publishes one message for each line of standard input
"""
import json
import sys
import uuid
from datetime import datetime, timezone

import pika


def attribute(headers, name):
    """A CloudEvents attribute. Other producers may write the prefix with a colon."""
    return headers.get("cloudEvents_" + name) or headers.get("cloudEvents:" + name)


def consume(channel, queue, count):
    for method, properties, body in channel.consume(queue, auto_ack=False):
        headers = properties.headers or {}
        print(json.dumps({
            "id": properties.message_id or attribute(headers, "id"),
            "source": properties.app_id or attribute(headers, "source"),
            "type": properties.type or attribute(headers, "type"),
            "topic": attribute(headers, "topic") or method.routing_key,
            "key": attribute(headers, "partitionkey"),
            "tenant": attribute(headers, "tenant"),
            "contentType": properties.content_type,
            "region": headers.get("region"),
            "body": body.decode(),
        }), flush=True)
        channel.basic_ack(method.delivery_tag)  # after the effect: at least once
        count -= 1
        if count == 0:
            return


def publish(channel, exchange, topic):
    channel.confirm_delivery()  # and mandatory below: an error if it is not stored in a queue
    for line in sys.stdin:
        channel.basic_publish(exchange, topic, line.strip().encode(), pika.BasicProperties(
            message_id=str(uuid.uuid4()), app_id="/python", type=topic, content_type="application/json",
            delivery_mode=2, timestamp=int(datetime.now(timezone.utc).timestamp()),
            headers={"cloudEvents_specversion": "1.0", "cloudEvents_partitionkey": "python-key", "region": "eu"},
        ), mandatory=True)


def main():
    command, url, name, last = sys.argv[1:]
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    if command == "consume":
        consume(channel, name, int(last))
    else:
        publish(channel, name, last)
    connection.close()


main()
