'use strict';

// A program around ali-ons that prints one JSON object a line.
//
//   node client.js create  NAMESRV KEY SECRET TOPIC QUEUES       it does not send to unknown topics
//   node client.js send    NAMESRV KEY SECRET TOPIC COUNT PREFIX LEVEL
//   node client.js consume NAMESRV KEY SECRET TOPIC GROUP TAGS FAIL MODEL   until standard input ends
//
// KEY, SECRET: of the account that signs; without access control a broker ignores them. Empty: none.
// LEVEL: delay level, 0 for none. MODEL: CLUSTERING or BROADCASTING.
// FAIL: a message is asked for again while it has come again fewer times than this.

const { Consumer, Message, Producer } = require('ali-ons');

const [mode, nameSrv, accessKeyId, accessKeySecret, topic, ...rest] = process.argv.slice(2);
const options = {
  nameSrv,
  httpclient: {}, // asked only where name servers are looked up over HTTP
  accessKeyId,
  accessKeySecret,
  pollNameServerInteval: 1000,
  heartbeatBrokerInterval: 1000,
  persistConsumerOffsetInterval: 1000,
  rebalanceInterval: 1000,
  logger: { info() {}, debug() {}, warn: console.error, error: console.error },
};

function line(event, fields = {}) {
  process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');
}

async function create(queues) {
  const producer = new Producer({ ...options, producerGroup: 'P_node' });
  await producer.ready();
  const client = producer._mqClient; // createTopic is built, but only in here
  const route = await client.getTopicRouteInfoFromNameServer('TBW102', 3000);
  const config = {
    topicName: topic,
    readQueueNums: Number(queues),
    writeQueueNums: Number(queues),
    perm: 6,
    topicFilterType: 'SINGLE_TAG',
    topicSysFlag: 0,
    order: false,
  };
  for (const broker of route.brokerDatas) {
    await client.createTopic(broker.brokerAddrs[0], 'TBW102', config, 3000);
  }
  line('done');
  await producer.close();
}

async function send(count, prefix, level) {
  const producer = new Producer({ ...options, producerGroup: 'P_node' });
  producer.on('error', error => console.error(error));
  await producer.ready();
  for (let index = 0; index < Number(count); index++) {
    const message = new Message(topic, 'ABC'[index % 3], `${prefix}-${index}`);
    message.keys = [`${prefix}-key-${index}`];
    message.properties.stadt = 'Zürich';
    if (Number(level)) message.delayTimeLevel = Number(level);
    let result;
    try {
      result = await producer.send(message);
    } catch (error) {
      line('error', { index, code: error.code, message: error.message });
      continue;
    }
    line('sent', {
      index,
      status: result.sendStatus,
      msg_id: result.msgId,
      queue_id: result.messageQueue.queueId,
      queue_offset: Number(result.queueOffset),
    });
  }
  line('done');
  await producer.close();
}

async function consume(group, tags, fail, model) {
  const consumer = new Consumer({
    ...options,
    consumerGroup: group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    isBroadcast: model === 'BROADCASTING',
  });
  consumer.on('error', error => console.error(error));
  consumer.subscribe(topic, tags, async message => {
    line('message', {
      topic: message.topic,
      body: message.body.toString(),
      tags: message.tags,
      keys: message.keys,
      reconsume_times: message.reconsumeTimes,
      queue_id: message.queueId,
      born_timestamp: Number(message.bornTimestamp),
      store_timestamp: Number(message.storeTimestamp),
      properties: message.properties,
    });
    return message.reconsumeTimes < Number(fail) ? Consumer.ACTION_RETRY : undefined;
  });
  await consumer.ready();
  line('started');
  for await (const _ of process.stdin); // only its end matters
  await consumer.close();
  line('stopped');
}

const run = { create, send, consume }[mode];
run(...rest).then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
