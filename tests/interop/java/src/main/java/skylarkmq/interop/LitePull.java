package skylarkmq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageQueueListener;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A lite pull consumer that polls until it has its messages.
 *
 * <pre>
 *   mode    subscribe (a member of a group) or assign (all queues, from the place asked)
 *   tags    mode subscribe: subscription expression, * for all
 *   sql     mode subscribe: SQL92 expression instead
 *   seek    mode assign: queue offset to begin at, begin, end, or @ and an instant in milliseconds
 *   pause   mode assign: a queue that rests until the others have given `first` messages
 *   count   messages to wait for
 *   auto    true: it commits by itself, every second
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
        consumer.setAutoCommit(args.flag("auto"));
        consumer.setAutoCommitIntervalMillis(1000);
        String topic = args.text("topic");
        boolean assign = args.text("mode", "subscribe").equals("assign");
        if (!assign) {
            String sql = args.text("sql", "");
            consumer.subscribe(topic, sql.isEmpty()
                ? MessageSelector.byTag(args.text("tags", "*"))
                : MessageSelector.bySql(sql));
        }
        if (!assign) {
            tellOfQueues(consumer, topic);
        }
        consumer.start();
        Out.line("started");
        List<MessageQueue> queues = List.of();
        List<MessageQueue> resting = new ArrayList<>();
        if (assign) {
            queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
            consumer.assign(queues);
            resting.addAll(queues);
            resting.removeIf(queue -> queue.getQueueId() != args.number("pause", -1));
            consumer.pause(resting);
            for (MessageQueue queue : queues) {
                // This also drops what came before the pause.
                seek(consumer, queue, args.text("seek", "0"));
            }
        }
        Out.line("placed");
        poll(consumer, args.number("first", 0));
        consumer.resume(resting);
        poll(consumer, args.number("count", 1) - args.number("first", 0));
        if (args.flag("auto")) {
            Thread.sleep(1100);
            consumer.poll(0); // commits when a second has passed
        } else {
            consumer.commitSync();
        }
        for (MessageQueue queue : queues) {
            Map<String, Object> fields = Out.event("committed");
            fields.put("queue_id", queue.getQueueId());
            fields.put("offset", consumer.committed(queue));
            Out.line(fields);
        }
        consumer.shutdown();
        Out.line("done");
        System.exit(0);
    }

    private static void tellOfQueues(DefaultLitePullConsumer consumer, String topic) {
        MessageQueueListener client = consumer.getMessageQueueListener();
        consumer.setMessageQueueListener((changed, all, mine) -> {
            client.messageQueueChanged(changed, all, mine);
            if (changed.equals(topic)) {
                Map<String, Object> fields = Out.event("queues");
                fields.put("queues", mine.stream().map(MessageQueue::getQueueId).toArray());
                Out.line(fields);
            }
        });
    }

    private static void seek(DefaultLitePullConsumer consumer, MessageQueue queue, String place)
            throws Exception {
        if (place.equals("begin")) {
            consumer.seekToBegin(queue);
        } else if (place.equals("end")) {
            consumer.seekToEnd(queue);
        } else if (place.startsWith("@")) {
            long time = Long.parseLong(place.substring(1));
            consumer.seek(queue, consumer.offsetForTimestamp(queue, time));
        } else {
            consumer.seek(queue, Long.parseLong(place));
        }
    }

    private static void poll(DefaultLitePullConsumer consumer, int count) {
        int missing = count;
        for (int polls = 0; missing > 0 && polls < POLLS_MAX; polls++) {
            List<MessageExt> messages = consumer.poll(POLL_MS);
            messages.forEach(Out::message);
            missing -= messages.size();
        }
    }
}
