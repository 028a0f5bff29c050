package skylarkmq.interop;

import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A consumer that replies to requests until standard input ends, each body with "re: " before it.
 *
 * <pre>
 *   size    replies are filled up to so many bytes
 *   silent  requests whose body ends with this get no reply
 *   hold    milliseconds between a request and its reply
 * </pre>
 */
public final class Reply {
    private final Args args;
    private final DefaultMQProducer producer;

    private Reply(Args args) throws Exception {
        this.args = args;
        producer = new DefaultMQProducer(args.text("group") + "_replies");
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.setPollNameServerInterval(1000);
        producer.start();
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        Reply reply = new Reply(args);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) reply::consume);
        consumer.start();
        Out.line("started");
        while (System.in.read() >= 0) {
            // only its end matters
        }
        consumer.shutdown();
        reply.producer.shutdown();
        Out.line("stopped");
        System.exit(0);
    }

    private ConsumeConcurrentlyStatus consume(
            List<MessageExt> requests, ConsumeConcurrentlyContext context) {
        for (MessageExt request : requests) {
            Out.message(request);
            String text = new String(request.getBody(), StandardCharsets.UTF_8);
            String silent = args.text("silent", "");
            if (!silent.isEmpty() && text.endsWith(silent)) {
                continue;
            }
            try {
                Thread.sleep(args.number("hold", 0));
                Out.sent(0, producer.send(reply(request, text)));
            } catch (Exception fault) {
                Out.error(0, fault);
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private Message reply(MessageExt request, String text) throws Exception {
        StringBuilder body = new StringBuilder("re: " + text);
        while (body.length() < args.number("size", 0)) {
            body.append((char) ('a' + body.length() % 26));
        }
        return MessageUtil.createReplyMessage(
            request, body.toString().getBytes(StandardCharsets.UTF_8));
    }
}
