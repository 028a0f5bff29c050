package skylarkmq.interop;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer of 5.x that leaves it to the broker what it receives from and how; it prints
 * messages until standard input ends. The group's mode was set before. It runs on the libraries of
 * 5.x, and is compiled with those of 4.9: what is new there is called by its name.
 *
 * <pre>
 *   tags       subscription expression, * for all
 *   fail       a message fails while it has been delivered again fewer times than this
 *   invisible  ms for which nobody else gets a message, 5000 or more
 *   hold       true: messages stay with their listener for ever
 *   listener   concurrently or orderly
 * </pre>
 */
public final class Pop {
    private final Args args;
    private final DefaultMQPushConsumer consumer;
    private final int fail;

    private Pop(Args args) throws Exception {
        this.args = args;
        this.fail = args.number("fail", 0);
        this.consumer = new DefaultMQPushConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        set("setClientRebalance", boolean.class, false);
        set("setPopInvisibleTime", long.class, (long) args.number("invisible", 60_000));
        consumer.subscribe(args.text("topic"), args.text("tags", "*"));
        if (args.text("listener", "concurrently").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(Out::message);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) this::consume);
        }
    }

    private void set(String name, Class<?> type, Object value) throws Exception {
        DefaultMQPushConsumer.class.getMethod(name, type).invoke(consumer, value);
    }

    private ConsumeConcurrentlyStatus consume(
            List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        ConsumeConcurrentlyStatus status = ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        for (MessageExt message : messages) {
            Out.message(message);
            if (message.getReconsumeTimes() < fail) {
                status = ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        }
        while (args.flag("hold")) {
            try {
                Thread.sleep(1000);
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
                break;
            }
        }
        return status;
    }

    public static void main(String[] arguments) throws Exception {
        Pop pop = new Pop(new Args(arguments));
        pop.consumer.start();
        Out.line("started");
        while (System.in.read() >= 0) {
            // only its end matters
        }
        pop.consumer.shutdown();
        Out.line("stopped");
        System.exit(0);
    }
}
