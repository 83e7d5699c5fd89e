"""Consumes and publishes Waybill's messages on Redis Streams, with redis-py alone.

    redis_streams.py consume URL QUEUE COUNT    prints one JSON object for each message
    redis_streams.py publish URL QUEUE TOPIC    publishes one message for each line of standard input

QUEUE is the key of the stream, such as {waybill}:queue:billing.
"""
import json
import sys
import uuid
from datetime import datetime, timezone

import redis


def consume(client, queue, count):
    while count > 0:
        reply = client.xreadgroup("waybill", "python", {queue: ">"}, count=count, block=5000)
        if not reply:
            sys.exit("nothing came within five seconds")
        for entry, fields in reply[0][1]:
            print(json.dumps({
                "id": fields["ce_id"],
                "source": fields["ce_source"],
                "type": fields["ce_type"],
                "topic": fields["ce_topic"],
                "key": fields.get("ce_partitionkey"),
                "tenant": fields.get("ce_tenant"),
                "contentType": fields["ce_datacontenttype"],
                "region": fields.get("header_region"),
                "body": fields["data"],
            }), flush=True)
            # After the effect: at least once. What is acknowledged is deleted: a stream holds what is not done.
            client.pipeline(transaction=True).xack(queue, "waybill", entry).xdel(queue, entry).execute()
            count -= 1


def publish(client, queue, topic):
    for line in sys.stdin:
        client.xadd(queue, {
            "ce_specversion": "1.0", "ce_id": str(uuid.uuid4()), "ce_source": "/python", "ce_type": topic,
            "ce_topic": topic, "ce_time": datetime.now(timezone.utc).isoformat(),
            "ce_datacontenttype": "application/json", "ce_partitionkey": "python-key", "header_region": "eu",
            "data": line.strip(),
        }, nomkstream=True)


def main():
    command, url, queue, last = sys.argv[1:]
    client = redis.Redis.from_url(url, decode_responses=True)
    if command == "consume":
        consume(client, queue, int(last))
    else:
        publish(client, queue, last)


main()
