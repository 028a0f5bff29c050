package skylarkmq.interop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends requests ({@link Messages} says which) and prints a reply, or an error, for each.
 *
 * <pre>
 *   mode     sync or async
 *   count    how many requests
 *   wait     milliseconds to wait for a reply
 * </pre>
 */
public final class Request {
    private Request() {
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        DefaultMQProducer producer = new DefaultMQProducer(args.text("group"));
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.start();
        Out.line("started");
        Messages messages = new Messages(args);
        int count = args.number("count", 1);
        int wait = args.number("wait", 20_000);
        boolean async = args.text("mode", "sync").equals("async");
        CountDownLatch answers = new CountDownLatch(async ? count : 0);
        for (int index = 0; index < count; index++) {
            Message message = messages.message(index);
            int number = index;
            try {
                if (async) {
                    producer.request(message, callback(number, answers), wait);
                } else {
                    reply(number, producer.request(message, wait));
                }
            } catch (Exception fault) {
                Out.error(number, fault);
                answers.countDown();
            }
        }
        answers.await(2L * wait, TimeUnit.MILLISECONDS);
        producer.shutdown();
        Out.line("done");
        System.exit(0);
    }

    private static RequestCallback callback(int index, CountDownLatch answers) {
        return new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                reply(index, message);
                answers.countDown();
            }

            @Override
            public void onException(Throwable fault) {
                Out.error(index, fault);
                answers.countDown();
            }
        };
    }

    private static void reply(int index, Message message) {
        var fields = Out.fields("reply", (MessageExt) message);
        fields.put("index", index);
        Out.line(fields);
    }
}
