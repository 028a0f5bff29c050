package skylarkmq.interop;

import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * A push consumer that prints messages, and its queues whenever they change, until standard input
 * ends.
 *
 * <pre>
 *   tags       subscription expression, * for all
 *   sql        SQL92 expression instead
 *   from       CONSUME_FROM_FIRST_OFFSET, or where else a new group begins
 *   since      instant where it begins with CONSUME_FROM_TIMESTAMP, yyyyMMddHHmmss
 *   listener   concurrently or orderly (then queues count only while their lock is held)
 *   model      CLUSTERING or BROADCASTING
 *   fail       a message fails while it has been delivered again fewer times than this
 *   max        maxReconsumeTimes
 *   level      delay level asked for a failed message; 0 leaves it to the broker
 *   threads    consuming threads
 *   trace      true: it keeps a trace of what it consumes
 *   strategy   how queues are shared: average, circle or consistent_hash
 * </pre>
 */
public final class Consume {
    private static final int LOOK_MS = 50;
    private static final int END_MS = 10_000;

    private final Args args;
    private final DefaultMQPushConsumer consumer;
    private final int fail;
    private final boolean orderly;

    private Consume(Args args) throws Exception {
        this.args = args;
        this.fail = args.number("fail", 0);
        this.orderly = args.text("listener", "concurrently").equals("orderly");
        this.consumer = new DefaultMQPushConsumer(
            args.text("group"), args.hook(), new AllocateMessageQueueAveragely(),
            args.flag("trace"), null);
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setConsumeFromWhere(
            ConsumeFromWhere.valueOf(args.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        consumer.setConsumeTimestamp(args.text("since", consumer.getConsumeTimestamp()));
        consumer.setMessageModel(MessageModel.valueOf(args.text("model", "CLUSTERING")));
        consumer.setMaxReconsumeTimes(args.number("max", -1));
        consumer.setAllocateMessageQueueStrategy(strategy(args.text("strategy", "average")));
        // Else a message that was just printed is not yet counted in the offset kept at the end.
        consumer.setAwaitTerminationMillisWhenShutdown(END_MS);
        int threads = args.number("threads", 4);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        String sql = args.text("sql", "");
        consumer.subscribe(args.text("topic"), sql.isEmpty()
            ? MessageSelector.byTag(args.text("tags", "*"))
            : MessageSelector.bySql(sql));
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) this::inOrder);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) this::atOnce);
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "average":
                return new AllocateMessageQueueAveragely();
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash();
            default:
                throw new IllegalArgumentException("strategy " + name);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Consume consume = new Consume(new Args(arguments));
        try {
            consume.consumer.start();
        } catch (MQClientException refused) {
            Out.error(0, refused);
            System.exit(0);
        }
        Out.line("started");
        Thread watch = new Thread(consume::watchQueues, "watch-queues");
        watch.setDaemon(true);
        watch.start();
        while (System.in.read() >= 0) {
            // only its end matters
        }
        consume.consumer.shutdown();
        Out.line("stopped");
        System.exit(0);
    }

    private ConsumeConcurrentlyStatus atOnce(
            List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        for (MessageExt message : messages) {
            Out.message(message);
            if (message.getReconsumeTimes() < fail) {
                context.setDelayLevelWhenNextConsume(args.number("level", 0));
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private ConsumeOrderlyStatus inOrder(
            List<MessageExt> messages, ConsumeOrderlyContext context) {
        for (MessageExt message : messages) {
            Out.message(message);
            if (message.getReconsumeTimes() < fail) {
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
        }
        return ConsumeOrderlyStatus.SUCCESS;
    }

    private void watchQueues() {
        String topic = args.text("topic");
        RebalanceImpl rebalance = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
        TreeSet<Integer> shown = new TreeSet<>();
        while (!Thread.currentThread().isInterrupted()) {
            TreeSet<Integer> queues = new TreeSet<>();
            for (Map.Entry<MessageQueue, ProcessQueue> entry
                    : rebalance.getProcessQueueTable().entrySet()) {
                ProcessQueue queue = entry.getValue();
                if (entry.getKey().getTopic().equals(topic) && !queue.isDropped()
                        && (!orderly || queue.isLocked())) {
                    queues.add(entry.getKey().getQueueId());
                }
            }
            if (!queues.equals(shown)) {
                Map<String, Object> fields = Out.event("queues");
                fields.put("queues", queues);
                Out.line(fields);
                shown = queues;
            }
            try {
                Thread.sleep(LOOK_MS);
            } catch (InterruptedException stopped) {
                return;
            }
        }
    }
}
