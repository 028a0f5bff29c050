package skylarkmq.interop;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A lite pull consumer that polls until it has its messages.
 *
 * <pre>
 *   mode    subscribe (a member of a group) or assign (all queues, from the place asked)
 *   seek    mode assign: queue offset to begin at
 *   count   messages to wait for
 * </pre>
 */
public final class LitePull {
    private static final long POLL_MS = 500;
    private static final int POLLS_MAX = 60;

    private LitePull() {
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        String topic = args.text("topic");
        boolean assign = args.text("mode", "subscribe").equals("assign");
        if (!assign) {
            consumer.subscribe(topic, args.text("tags", "*"));
        }
        consumer.start();
        Out.line("started");
        if (assign) {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            consumer.assign(new ArrayList<>(queues));
            for (MessageQueue queue : queues) {
                consumer.seek(queue, args.number("seek", 0));
            }
        }
        int missing = args.number("count", 1);
        for (int polls = 0; missing > 0 && polls < POLLS_MAX; polls++) {
            List<MessageExt> messages = consumer.poll(POLL_MS);
            messages.forEach(Out::message);
            missing -= messages.size();
        }
        consumer.commitSync();
        consumer.shutdown();
        Out.line("done");
        System.exit(0);
    }
}
