'use strict';

// Takes commands from standard input and prints events, a JSON object a line: see programs.py.
// The certificate that signs the server's: environment GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

const readline = require('node:readline');
const {
  ConsumeResult,
  FilterExpression,
  Producer,
  PushConsumer,
  SimpleConsumer,
} = require('rocketmq-client-nodejs');
const {
  FilterType,
  TransactionResolution,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const clients = new Map();
const messages = new Map();
let numbers = 0;
const logger = { info() {}, debug() {}, warn: console.error, error: console.error, close() {} };

function line(fields) {
  process.stdout.write(JSON.stringify(fields) + '\n');
}

function shown(message) {
  const number = ++numbers;
  messages.set(number, message);
  return {
    number,
    topic: message.topic,
    body: message.body.toString(),
    tag: message.tag ?? '',
    keys: message.keys,
    properties: Object.fromEntries(message.properties),
    message_id: message.messageId,
    message_group: message.messageGroup ?? '',
    priority: message.priority,
    attempt: message.deliveryAttempt,
    now_ms: Date.now(),
    born_ms: Number(message.bornTimestamp),
  };
}

function options(command) {
  return {
    endpoints: command.endpoint,
    namespace: '',
    sslEnabled: command.tls,
    sessionCredentials: command.key
      ? { accessKey: command.key, accessSecret: command.secret }
      : undefined,
    logger,
  };
}

function subscriptions(command) {
  const filter = command.sql
    ? new FilterExpression(command.sql, FilterType.SQL)
    : new FilterExpression(command.tag);
  return new Map([[ command.topic, filter ]]);
}

const kinds = {
  producer(command) {
    const answers = {
      commit: TransactionResolution.COMMIT,
      rollback: TransactionResolution.ROLLBACK,
      unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
    };
    const checker = command.check && {
      async check(message) {
        line({ event: 'check', id: command.id, ...shown(message) });
        return answers[command.check];
      },
    };
    return new Producer({ ...options(command), topic: command.topic, checker: checker || undefined });
  },
  push(command) {
    const seen = new Map();
    return new PushConsumer({
      ...options(command),
      consumerGroup: command.group,
      subscriptions: subscriptions(command),
      messageListener: {
        async consume(message) {
          line({ event: 'message', id: command.id, ...shown(message) });
          if (command.slow_ms) await new Promise(done => setTimeout(done, command.slow_ms));
          line({ event: 'finished', id: command.id });
          const times = (seen.get(message.messageId) ?? 0) + 1;
          seen.set(message.messageId, times);
          return times <= command.fail
            ? ConsumeResult.FAILURE
            : ConsumeResult.SUCCESS;
        },
      },
    });
  },
  simple(command) {
    return new SimpleConsumer({
      ...options(command),
      consumerGroup: command.group,
      subscriptions: subscriptions(command),
      awaitDuration: command.await_ms,
    });
  },
};

async function send(command, producer) {
  const message = {
    topic: command.topic,
    body: Buffer.from(command.body),
    tag: command.tag || undefined,
    keys: command.key ? [ command.key ] : [],
    messageGroup: command.message_group || undefined,
    priority: command.priority >= 0 ? command.priority : undefined,
    deliveryTimestamp: command.delay_ms ? new Date(Date.now() + command.delay_ms) : undefined,
    properties: new Map(Object.entries(command.properties)),
  };
  let receipt;
  if (command.transaction) {
    const local = producer.beginTransaction();
    receipt = await producer.send(message, local);
    if (command.transaction === 'commit') await local.commit();
    else if (command.transaction === 'rollback') await local.rollback();
  } else {
    receipt = await producer.send(message);
  }
  return { message_id: receipt.messageId, recall_handle: receipt.recallHandle ?? '' };
}

async function perform(command) {
  const client = clients.get(command.id);
  switch (command.do) {
    case 'producer':
    case 'push':
    case 'simple': {
      const made = kinds[command.do](command);
      await made.startup();
      clients.set(command.id, made);
      return {};
    }
    case 'send':
      return await send(command, client);
    case 'recall':
      return { message_id: (await client.recallMessage(command.topic, command.handle)).messageId };
    case 'receive': {
      const found = await client.receive(command.count, command.invisible_ms);
      return { messages: found.map(shown) };
    }
    case 'ack':
      await client.ack(messages.get(command.number));
      return {};
    case 'change':
      await client.changeInvisibleDuration(messages.get(command.number), command.invisible_ms);
      return {};
    case 'close':
      clients.delete(command.id);
      await client.shutdown();
      return {};
    default:
      throw new Error(JSON.stringify(command));
  }
}

async function answer(command) {
  let fields;
  try {
    fields = { event: 'done', ...await perform(command) };
  } catch (error) {
    const cause = error.cause?.cause ?? error.cause ?? error;
    fields = { event: 'failed', error: `${error}: ${cause}`, code: cause.code ?? error.code };
  }
  line({ ...fields, seq: command.seq });
}

process.on('unhandledRejection', error => console.error('unhandled', error));
const input = readline.createInterface({ input: process.stdin });
input.on('line', text => answer(JSON.parse(text)));
input.on('close', () => process.exit(0));
