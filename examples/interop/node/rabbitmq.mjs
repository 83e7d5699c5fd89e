// Consumes and publishes Waybill's messages on RabbitMQ, with amqplib alone.
//
//   node rabbitmq.mjs consume URL QUEUE COUNT     prints one JSON object for each message
//   node rabbitmq.mjs publish URL EXCHANGE TOPIC  publishes one message for each line of standard input
import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';
import amqp from 'amqplib';

const [command, url, name, last] = process.argv.slice(2);

// A CloudEvents attribute. Other producers may write the prefix with a colon.
const attribute = (headers, attr) => headers[`cloudEvents_${attr}`] ?? headers[`cloudEvents:${attr}`];

async function consume(connection, queue, count) {
  const channel = await connection.createChannel();
  await channel.prefetch(10);
  await new Promise((resolve) => {
    channel.consume(queue, (message) => {
      if (message === null || count === 0) return;
      const { headers = {}, messageId, appId, type, contentType } = message.properties;
      console.log(JSON.stringify({
        id: messageId ?? attribute(headers, 'id'),
        source: appId ?? attribute(headers, 'source'),
        type: type ?? attribute(headers, 'type'),
        topic: attribute(headers, 'topic') ?? message.fields.routingKey,
        key: attribute(headers, 'partitionkey') ?? null,
        tenant: attribute(headers, 'tenant') ?? null,
        contentType,
        region: headers.region ?? null,
        body: message.content.toString(),
      }));
      channel.ack(message); // after the effect: at least once
      if (--count === 0) resolve();
    });
  });
  await channel.close();
}

async function publish(connection, exchange, topic) {
  const channel = await connection.createConfirmChannel();
  channel.on('return', (message) => {
    throw new Error(`no queue is bound for ${message.fields.routingKey}`);
  });
  for await (const line of createInterface({ input: process.stdin })) {
    channel.publish(exchange, topic, Buffer.from(line), {
      messageId: randomUUID(), appId: '/node', type: topic, contentType: 'application/json',
      persistent: true, mandatory: true, timestamp: Math.floor(Date.now() / 1000),
      headers: { cloudEvents_specversion: '1.0', cloudEvents_partitionkey: 'node-key', region: 'eu' },
    });
  }
  await channel.waitForConfirms();
  await channel.close();
}

const connection = await amqp.connect(url);
await (command === 'consume' ? consume(connection, name, Number(last)) : publish(connection, name, last));
await connection.close();
