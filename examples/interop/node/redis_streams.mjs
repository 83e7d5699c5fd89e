// Consumes and publishes Waybill's messages on Redis Streams, with @redis/client alone.
//
//   node redis_streams.mjs consume URL QUEUE COUNT      prints one JSON object for each message
//   node redis_streams.mjs publish URL QUEUE TOPIC      publishes one message for each line of standard input
//
// QUEUE is the key of the stream, such as {waybill}:queue:billing.
import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';
import { createClient } from '@redis/client';

const [command, url, queue, last] = process.argv.slice(2);
const client = createClient({ url });
await client.connect();
const redis = (...args) => client.sendCommand(args);

async function consume(count) {
  while (count > 0) {
    const reply = await redis('XREADGROUP', 'GROUP', 'waybill', 'node', 'COUNT', String(count), 'BLOCK', '5000', 'STREAMS', queue, '>');
    if (reply === null) throw new Error('nothing came within five seconds');
    for (const [id, list] of reply[0][1]) {
      const fields = {};
      for (let i = 0; i < list.length; i += 2) fields[list[i]] = list[i + 1];
      console.log(JSON.stringify({
        id: fields.ce_id,
        source: fields.ce_source,
        type: fields.ce_type,
        topic: fields.ce_topic,
        key: fields.ce_partitionkey ?? null,
        tenant: fields.ce_tenant ?? null,
        contentType: fields.ce_datacontenttype,
        region: fields.header_region ?? null,
        body: fields.data,
      }));
      // After the effect: at least once. What is acknowledged is deleted: a stream holds what is not done.
      await client.multi().addCommand(['XACK', queue, 'waybill', id]).addCommand(['XDEL', queue, id]).exec();
      count -= 1;
    }
  }
}

async function publish(topic) {
  for await (const line of createInterface({ input: process.stdin })) {
    await redis('XADD', queue, 'NOMKSTREAM', '*',
      'ce_specversion', '1.0', 'ce_id', randomUUID(), 'ce_source', '/node', 'ce_type', topic, 'ce_topic', topic,
      'ce_time', new Date().toISOString(), 'ce_datacontenttype', 'application/json', 'ce_partitionkey', 'node-key',
      'header_region', 'eu', 'data', line);
  }
}

await (command === 'consume' ? consume(Number(last)) : publish(last));
client.destroy();
