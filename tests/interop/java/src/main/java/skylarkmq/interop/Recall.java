package skylarkmq.interop;

import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer of 5.x that sends timed messages and takes every other one back, and then one that
 * does not exist. It is compiled with the libraries of 4.9: what is new in 5.x is called by its
 * name.
 *
 * <pre>
 *   count  how many messages
 *   delay  ms until they are delivered
 * </pre>
 */
public final class Recall {
    private final String topic;
    private final DefaultMQProducer producer;

    private Recall(Args args) {
        this.topic = args.text("topic");
        this.producer = new DefaultMQProducer(args.text("group"));
        producer.setNamesrvAddr(args.text("namesrv"));
    }

    private void send(int number, long delayMs) throws Exception {
        Message message =
            new Message(topic, ("m-" + number).getBytes(StandardCharsets.UTF_8));
        Message.class.getMethod("setDelayTimeMs", long.class).invoke(message, delayMs);
        SendResult result = producer.send(message);
        String handle = (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
        Map<String, Object> fields = Out.event("timed");
        fields.put("msg_id", result.getMsgId());
        fields.put("handle", handle);
        Out.line(fields);
        if (number % 2 == 0) {
            recall(handle);
        }
    }

    private void recall(String handle) throws Exception {
        Map<String, Object> fields = Out.event("recalled");
        try {
            fields.put("msg_id", DefaultMQProducer.class
                .getMethod("recallMessage", String.class, String.class)
                .invoke(producer, topic, handle));
        } catch (InvocationTargetException refused) {
            fields.put("code", ((MQBrokerException) refused.getCause()).getResponseCode());
        }
        Out.line(fields);
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        Recall recall = new Recall(args);
        recall.producer.start();
        for (int number = 0; number < args.number("count", 2); number++) {
            recall.send(number, args.number("delay", 10_000));
        }
        recall.recall(args.text("wrong"));
        Out.line("done");
        while (System.in.read() >= 0) {
            // only its end matters
        }
        recall.producer.shutdown();
        System.exit(0);
    }
}
