package skylarkmq.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** Starts clients that reach nobody: what is loaded so goes into an archive that others start from. */
public final class Warm {
    private static final String NOBODY = "127.0.0.1:1";

    private Warm() {
    }

    public static void main(String[] arguments) {
        try {
            start();
        } catch (Exception nobodyThere) {
            Out.error(0, nobodyThere);
        }
        System.exit(0); // the clients' threads would go on
    }

    private static void start() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("warm");
        producer.setNamesrvAddr(NOBODY);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("warm");
        consumer.setNamesrvAddr(NOBODY);
        consumer.subscribe("warm", "*");
        consumer.registerMessageListener((MessageListenerConcurrently)
            (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
    }
}
