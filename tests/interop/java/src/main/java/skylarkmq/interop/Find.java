package skylarkmq.interop;

import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Looks messages up. Each message found is printed, "looked" says that a look-up is over.
 *
 * <pre>
 *   topic    where they were sent to
 *   key      of messages to query
 *   max      how many messages at most
 *   begin    store time of the oldest, milliseconds
 *   end      store time of the newest, milliseconds
 *   place    offset message id to view
 *   unique   unique message id to view
 * </pre>
 */
public final class Find {
    private Find() {
    }

    private interface Look {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        DefaultMQProducer producer = new DefaultMQProducer(args.text("group"), args.hook());
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.start();
        String topic = args.text("topic");
        producer.fetchPublishMessageQueues(topic);
        Out.line("started");
        look("key", args, () -> {
            long begin = Long.parseLong(args.text("begin", "0"));
            long end = Long.parseLong(args.text("end", String.valueOf(Long.MAX_VALUE)));
            String key = args.text("key");
            QueryResult found = producer.queryMessage(topic, key, args.number("max", 32), begin, end);
            found.getMessageList().forEach(Out::message);
            Map<String, Object> fields = Out.event("index");
            fields.put("last_update", found.getIndexLastUpdateTimestamp());
            Out.line(fields);
        });
        look("place", args, () -> show(producer.viewMessage(args.text("place"))));
        look("unique", args, () -> show(producer.viewMessage(topic, args.text("unique"))));
        producer.shutdown();
        Out.line("done");
        System.exit(0);
    }

    private static void show(MessageExt message) {
        if (message != null) {
            Out.message(message);
        }
    }

    private static void look(String name, Args args, Look look) {
        if (args.text(name, "").isEmpty()) {
            return;
        }
        try {
            look.run();
        } catch (Exception fault) {
            Out.error(0, fault);
        }
        Map<String, Object> fields = Out.event("looked");
        fields.put("by", name);
        Out.line(fields);
    }
}
