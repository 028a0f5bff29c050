package skylarkmq.interop;

import com.alibaba.fastjson.JSON;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.impl.FindBrokerResult;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The pull consumer of old, which asks queue by queue and says with each request what it wants.
 *
 * <pre>
 *   sql      JSON list of SQL92 expressions; each reads the topic from its begin
 *   tags     JSON list of tag expressions, likewise
 *   back     true: each message found is sent back to the broker, for a retry
 *   commit   queue offset to keep for each queue at the end
 * </pre>
 *
 * Prints "matched" with the bodies for each expression, or an error, and "committed" for each queue.
 */
public final class Pull {
    private static final int MESSAGES_MAX = 32;
    private static final int LOOK_MS = 50;
    private static final int LOOKS_MAX = 400;

    private final Args args;
    private final DefaultMQPullConsumer consumer;

    private Pull(Args args) {
        this.args = args;
        consumer = new DefaultMQPullConsumer(args.text("group"));
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        new Pull(args).run();
        Out.line("done");
        System.exit(0);
    }

    private void run() throws Exception {
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.start();
        Out.line("started");
        TreeSet<MessageQueue> queues =
            new TreeSet<>(consumer.fetchSubscribeMessageQueues(args.text("topic")));
        awaitHeartbeat(queues.first());
        for (String sql : JSON.parseArray(args.text("sql", "[]"), String.class)) {
            read(queues, sql, MessageSelector.bySql(sql));
        }
        for (String tags : JSON.parseArray(args.text("tags", "[]"), String.class)) {
            read(queues, tags, MessageSelector.byTag(tags));
        }
        int offset = args.number("commit", -1);
        for (MessageQueue queue : queues) {
            if (offset >= 0) {
                consumer.getDefaultMQPullConsumerImpl().updateConsumeOffset(queue, offset);
                consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
            }
            Map<String, Object> fields = Out.event("committed");
            fields.put("queue_id", queue.getQueueId());
            fields.put("offset", consumer.fetchConsumeOffset(queue, true));
            Out.line(fields);
        }
        consumer.shutdown();
    }

    /** Only the answer to a heartbeat tells the client that the broker is new enough for SQL. */
    private void awaitHeartbeat(MessageQueue queue) throws InterruptedException {
        MQClientInstance client =
            consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        client.updateTopicRouteInfoFromNameServer(args.text("topic"));
        for (int looks = 0; looks < LOOKS_MAX; looks++) {
            FindBrokerResult found =
                client.findBrokerAddressInSubscribe(queue.getBrokerName(), MixAll.MASTER_ID, true);
            if (found != null && found.getBrokerVersion() > 0) {
                return;
            }
            Thread.sleep(LOOK_MS);
        }
        throw new IllegalStateException("no answer to a heartbeat");
    }

    private void read(TreeSet<MessageQueue> queues, String expression, MessageSelector selector) {
        Map<String, Object> fields = Out.event("matched");
        fields.put("expression", expression);
        List<String> bodies = new ArrayList<>();
        try {
            for (MessageQueue queue : queues) {
                read(queue, selector, bodies);
            }
            fields.put("bodies", bodies);
        } catch (Exception refused) {
            Out.describe(fields, refused);
        }
        Out.line(fields);
    }

    private void read(MessageQueue queue, MessageSelector selector, List<String> bodies)
            throws Exception {
        long offset = consumer.minOffset(queue);
        while (offset < consumer.maxOffset(queue)) {
            PullResult result = consumer.pull(queue, selector, offset, MESSAGES_MAX);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    bodies.add(new String(message.getBody()));
                    if (args.flag("back")) {
                        consumer.sendMessageBack(message, 1);
                    }
                }
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(offset + ": " + result);
            }
            offset = result.getNextBeginOffset();
        }
    }
}
