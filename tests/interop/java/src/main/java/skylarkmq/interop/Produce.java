package skylarkmq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Sends messages ({@link Messages} says which), says what became of each, and stops when standard
 * input ends.
 *
 * <pre>
 *   mode    sync, async, oneway, batch (all in one), ordered (message i to queue i modulo orders),
 *           steady (sync, count a second, until standard input ends),
 *           asked (one for each line of standard input)
 *   count   how many messages; not with mode asked
 *   orders  how many sequences mode ordered keeps
 *   max     body size that the client itself lets pass
 *   first   ms that the first try of modes sync and batch may take; the same is sent again then
 *   trace   true: it keeps a trace of what it sends
 *   accessKey, secretKey   of the account that signs
 * </pre>
 */
public final class Produce {
    private static final int WAIT_S = 30;
    /** A sound call takes longer than Java's 3 s beside other work. */
    private static final int PATIENCE_MS = 60_000;

    private final Args args;
    private final DefaultMQProducer producer;
    private final Messages messages;
    private final int count;
    private volatile boolean sending = true;

    private Produce(Args args) {
        this.args = args;
        this.count = args.number("count", 1);
        this.messages = new Messages(args);
        this.producer = new DefaultMQProducer(args.text("group"), args.hook(), args.flag("trace"), null);
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setMaxMessageSize(args.number("max", producer.getMaxMessageSize()));
    }

    public static void main(String[] arguments) throws Exception {
        Produce produce = new Produce(new Args(arguments));
        produce.producer.start();
        Out.line("started");
        try {
            produce.send();
            Out.line("done");
            while (System.in.read() >= 0) {
                // only its end matters
            }
        } finally {
            produce.producer.shutdown();
        }
        System.exit(0);
    }

    private void send() throws Exception {
        String mode = args.text("mode", "sync");
        switch (mode) {
            case "sync":
                each((index, message) -> Out.sent(index, stubborn(
                    timeout -> producer.send(message, timeout))));
                break;
            case "async":
                async();
                break;
            case "oneway":
                each((index, message) -> producer.sendOneway(message));
                break;
            case "batch":
                List<Message> batch = new ArrayList<>();
                each((index, message) -> batch.add(message));
                attempt(0, () -> Out.sent(0, stubborn(timeout -> producer.send(batch, timeout))));
                break;
            case "ordered":
                ordered();
                break;
            case "steady":
                steady();
                break;
            case "asked":
                for (int index = 0; System.in.read() >= 0; index++) {
                    int number = index;
                    attempt(number, () ->
                        Out.sent(number, producer.send(messages.message(number))));
                }
                break;
            default:
                throw new IllegalArgumentException("mode " + mode);
        }
    }

    private interface Try {
        SendResult within(int timeoutMs) throws Exception;
    }

    /** Sends, and once more what had no answer in time, as a program does that must not lose it. */
    private SendResult stubborn(Try send) throws Exception {
        int first = args.number("first", 0);
        if (first > 0) {
            try {
                return send.within(first);
            } catch (RemotingException fault) {
                Out.line("again");
            }
        }
        return send.within(PATIENCE_MS);
    }

    private void async() throws Exception {
        CountDownLatch answers = new CountDownLatch(count);
        each((index, message) -> producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                Out.sent(index, result);
                answers.countDown();
            }

            @Override
            public void onException(Throwable fault) {
                Out.error(index, fault);
                answers.countDown();
            }
        }));
        if (!answers.await(WAIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(answers.getCount() + " answers are missing");
        }
    }

    private void ordered() {
        int orders = args.number("orders", 4);
        MessageQueueSelector selector =
            (queues, message, order) -> queues.get((Integer) order % queues.size());
        each((index, message) -> {
            int order = index % orders;
            message.putUserProperty("order", String.valueOf(order));
            Out.sent(index, producer.send(message, selector, order));
        });
    }

    private void steady() throws Exception {
        Thread sender = new Thread(() -> {
            for (int index = 0; sending; index++) {
                int number = index;
                attempt(number, () -> Out.sent(number, producer.send(messages.message(number))));
                try {
                    Thread.sleep(1000 / count);
                } catch (InterruptedException stopped) {
                    return;
                }
            }
        }, "steady");
        sender.start();
        while (System.in.read() >= 0) {
            // only its end matters
        }
        sending = false;
        sender.join();
    }

    private void each(Step step) {
        for (int index = 0; index < count; index++) {
            int number = index;
            attempt(number, () -> step.run(number, messages.message(number)));
        }
    }

    private static void attempt(int index, Attempt attempt) {
        try {
            attempt.run();
        } catch (Exception fault) {
            Out.error(index, fault);
        }
    }

    private interface Attempt {
        void run() throws Exception;
    }

    private interface Step {
        void run(int index, Message message) throws Exception;
    }
}
