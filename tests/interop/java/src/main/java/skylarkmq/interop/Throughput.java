package skylarkmq.interop;

import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends from many threads, each waiting for its answer, while a push consumer takes it all: the
 * work of RocketMQ's own benchmark, which no registry has.
 *
 * <pre>
 *   topic, group, namesrv
 *   count    how many messages
 *   size     bytes of a body
 *   threads  how many senders
 * </pre>
 */
public final class Throughput {
    private static final int WAIT_S = 120;

    private Throughput() {
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        int count = args.number("count", 1);
        int threads = args.number("threads", 64);
        CountDownLatch taken = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> taken.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer(args.text("group"));
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.start();
        consumer.start();
        byte[] body = new byte[args.number("size", 1024)];
        long started = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            int share = count / threads + (thread < count % threads ? 1 : 0);
            Thread sender = new Thread(() -> send(producer, args.text("topic"), body, share));
            sender.setDaemon(true);
            sender.start();
        }
        boolean all = taken.await(WAIT_S, TimeUnit.SECONDS);
        Map<String, Object> fields = Out.event("done");
        fields.put("seconds", (System.nanoTime() - started) / 1e9);
        fields.put("left", taken.getCount());
        Out.line(fields);
        producer.shutdown();
        consumer.shutdown();
        System.exit(all ? 0 : 1);
    }

    private static void send(DefaultMQProducer producer, String topic, byte[] body, int count) {
        for (int number = 0; number < count; number++) {
            try {
                producer.send(new Message(topic, body));
            } catch (Exception fault) {
                Out.error(number, fault);
                return;
            }
        }
    }
}
