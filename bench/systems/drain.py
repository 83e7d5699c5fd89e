"""Fills a system's own tables with its own code, and drains them with its own code.

usage: drain.py SYSTEM POSTGRES_URL BROKER_URL COUNT

It prints "full" when the backlog is there, waits for a line on standard input, drains, and prints "empty". So the
caller sees when the work began and ended.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
import time

BATCH = 500


def full():
    print("full", flush=True)
    sys.stdin.readline()


def empty():
    print("empty", flush=True)
    os._exit(0)  # nothing of what follows is measured


async def faststream(postgres, _, count):
    """A table as a queue: eight workers, and the batches of its documentation for much work."""
    from faststream_outbox import OutboxBroker, make_outbox_table
    from sqlalchemy import MetaData
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    metadata = MetaData()
    table = make_outbox_table(metadata, "outbox")
    engine = create_async_engine(postgres.replace("postgres://", "postgresql+asyncpg://", 1), pool_size=20)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    broker = OutboxBroker(engine, outbox_table=table)
    done, handled = asyncio.Event(), 0

    @broker.subscriber("orders", max_workers=8, fetch_batch_size=100, terminal_flush_batch_size=100)
    async def handle(_: dict) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            done.set()

    sessions = async_sessionmaker(engine, expire_on_commit=False)
    for first in range(0, count, BATCH):
        async with sessions() as session, session.begin():
            bodies = ({"id": i, "note": "x" * 200} for i in range(first, min(first + BATCH, count)))
            await broker.publish_batch(*bodies, queue="orders", session=session)
    full()
    await broker.start()
    await done.wait()
    empty()


SCHEMA = """
CREATE TABLE outbox (
    id uuid PRIMARY KEY, outbox_route text NOT NULL, event_id uuid NOT NULL, event_type text NOT NULL,
    tenant_id uuid, execution_id uuid, correlation_id uuid, causation_id uuid, occurred_at timestamptz NOT NULL,
    payload jsonb NOT NULL, status text NOT NULL, created_at timestamptz NOT NULL, published_at timestamptz,
    processing_at timestamptz, last_error text, attempts int NOT NULL DEFAULT 0, available_at timestamptz,
    ordering_key text, hlc bigint, traceparent text, UNIQUE (outbox_route, event_id));
CREATE INDEX ON outbox (outbox_route, status, available_at, created_at);
"""


async def forze(postgres, broker, count):
    """A relay to a queue of RabbitMQ, pass after pass, over the table that its documentation shows."""
    import psycopg
    from forze.application.contracts.outbox import OutboxDestination, OutboxSpec
    from forze.application.contracts.queue import QueueSpec
    from forze.application.execution.assemble import build_runtime
    from forze.base.serialization import PydanticModelCodec
    from forze_kits.integrations.outbox.relay import OutboxRelay
    from forze_postgres import PostgresClient, PostgresDepsModule, postgres_lifecycle_step
    from forze_postgres.execution.deps.configs import PostgresOutboxConfig
    from forze_rabbitmq import RabbitMQClient, RabbitMQDepsModule, RabbitMQQueueConfig, rabbitmq_lifecycle_step
    from pydantic import BaseModel

    class Placed(BaseModel):
        order: str
        note: str

    with psycopg.connect(postgres) as connection:
        connection.execute(SCHEMA)
    codec = PydanticModelCodec(Placed)
    spec = OutboxSpec(name="orders", codec=codec, destination=OutboxDestination.queue(route="orders", channel="orders"))
    queue, rabbit = QueueSpec(name="orders", codec=codec), RabbitMQQueueConfig(namespace="shop")
    runtime = build_runtime(
        [
            PostgresDepsModule(
                client=PostgresClient(),
                tx={"postgres"},
                outboxes={"orders": PostgresOutboxConfig(relation=("public", "outbox"))},
            ),
            RabbitMQDepsModule(
                client=RabbitMQClient(), queue_readers={"orders": rabbit}, queue_writers={"orders": rabbit}
            ),
        ],
        lifecycle_steps=[postgres_lifecycle_step(dsn=postgres), rabbitmq_lifecycle_step(dsn=broker)],
    )
    async with runtime.scope():
        ctx = runtime.get_context()

        async def stage(first):
            async with ctx.tx_ctx.scope("postgres"):
                outbox = ctx.outbox.command(spec)
                for i in range(first, min(first + BATCH, count)):
                    await outbox.stage("order.placed", Placed(order=str(i), note="x" * 200))
                await outbox.flush()

        for first in range(0, count, BATCH):
            await asyncio.create_task(stage(first))  # a flush ends what its task may stage
        full()
        relay, published = OutboxRelay(outbox_spec=spec), 0
        while published < count:
            published += (await relay.to_queue(ctx, queue)).published
        empty()


SHOP = """
import os
from protean import Domain
from protean.fields import Identifier, String

shop = domain = Domain(name="shop")
domain.config["databases"]["default"] = {"provider": "postgresql", "database_uri": os.environ["SHOP_POSTGRES"]}
domain.config["brokers"]["default"] = {"provider": "redis", "URI": os.environ["SHOP_REDIS"]}
domain.config["server"]["default_subscription_type"] = "stream"
domain.config["event_processing"] = "async"
domain.config["command_processing"] = "async"
domain.config["outbox"]["messages_per_tick"] = 100
domain.config["outbox"]["tick_interval"] = 0

@domain.aggregate
class Order:
    note: String(required=True)
    def place(self):
        self.raise_(Placed(order=self.id, note=self.note))

@domain.event(part_of=Order, published=True)
class Placed:
    order: Identifier(required=True)
    note: String()
"""


async def protean(postgres, broker, count):
    """Its server, with the settings of its documentation for much work, to a stream of Redis."""
    import psycopg

    postgres = postgres.replace("postgres://", "postgresql://", 1)
    folder = tempfile.mkdtemp()
    os.environ.update(SHOP_POSTGRES=postgres, SHOP_REDIS=broker, PYTHONPATH=folder)
    with open(os.path.join(folder, "shop.py"), "w", encoding="utf-8") as file:
        file.write(textwrap.dedent(SHOP))
    command = [os.path.join(os.path.dirname(sys.executable), "protean")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([*command, "db", "setup", "--domain", "shop.py"], check=True, **quiet)
    sys.path.insert(0, folder)
    import shop

    shop.domain.init()
    with shop.domain.domain_context():
        orders = shop.domain.repository_for(shop.Order)
        for _ in range(count):
            order = shop.Order(note="x" * 200)
            order.place()
            orders.add(order)
    full()
    server = subprocess.Popen([*command, "server", "--domain", "shop.py"], **quiet)
    with psycopg.connect(postgres, autocommit=True) as connection:
        while connection.execute("SELECT count(*) FROM outbox WHERE status = 'published'").fetchone()[0] < count:
            if server.poll() is not None:
                sys.exit("the server ended")
            time.sleep(0.05)
    server.terminate()
    server.wait()
    empty()


asyncio.run({"faststream": faststream, "forze": forze, "protean": protean}[sys.argv[1]](*sys.argv[2:4], int(sys.argv[4])))
