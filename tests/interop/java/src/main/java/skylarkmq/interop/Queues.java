package skylarkmq.interop;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Creates a topic, or asks about the queues of one.
 *
 * <pre>
 *   create   queue count of the topic to create; 0 only asks
 *   time     instant in milliseconds to search for
 * </pre>
 */
public final class Queues {
    private Queues() {
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        DefaultMQProducer producer = new DefaultMQProducer(args.text("group"));
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.start();
        Out.line("started");
        String topic = args.text("topic");
        int create = args.number("create", 0);
        if (create > 0) {
            producer.createTopic("TBW102", topic, create);
        }
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        queues.sort(Comparator.naturalOrder());
        long time = Long.parseLong(args.text("time", "0"));
        for (MessageQueue queue : queues) {
            Map<String, Object> fields = Out.event("queue");
            fields.put("queue_id", queue.getQueueId());
            fields.put("broker_name", queue.getBrokerName());
            fields.put("min_offset", producer.minOffset(queue));
            fields.put("max_offset", producer.maxOffset(queue));
            fields.put("earliest", producer.earliestMsgStoreTime(queue));
            fields.put("offset_by_time", producer.searchOffset(queue, time));
            Out.line(fields);
        }
        producer.shutdown();
        Out.line("done");
        System.exit(0);
    }
}
