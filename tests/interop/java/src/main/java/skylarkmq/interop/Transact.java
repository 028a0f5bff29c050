package skylarkmq.interop;

import java.util.Map;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends transactional messages ({@link Messages} says which) and answers the broker's checks until
 * standard input ends.
 *
 * <pre>
 *   count   how many messages; 0 only answers checks, of halves that others of the group sent
 *   local   decisions right after the send, in turn: commit, rollback, unknown or throw
 *   check   decisions when the broker checks, in turn by the message's row
 *   trace   true: it keeps a trace of what it sends
 * </pre>
 */
public final class Transact implements TransactionListener {
    private final Args args;

    private Transact(Args args) {
        this.args = args;
    }

    public static void main(String[] arguments) throws Exception {
        Args args = new Args(arguments);
        TransactionMQProducer producer =
            new TransactionMQProducer(null, args.text("group"), args.hook(), args.flag("trace"), null);
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setTransactionListener(new Transact(args));
        producer.start();
        Out.line("started");
        Messages messages = new Messages(args);
        for (int index = 0; index < args.number("count", 0); index++) {
            try {
                TransactionSendResult result =
                    producer.sendMessageInTransaction(messages.message(index), index);
                Out.sent(index, result);
            } catch (Exception fault) {
                Out.error(index, fault);
            }
        }
        Out.line("done");
        while (System.in.read() >= 0) {
            // only its end matters
        }
        producer.shutdown();
        Out.line("stopped");
        System.exit(0);
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object index) {
        return decision(args.text("local", "commit"), (Integer) index);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        Map<String, Object> fields = Out.fields("check", message);
        fields.put("transaction_id", message.getTransactionId());
        Out.line(fields);
        return decision(args.text("check", "commit"), Integer.parseInt(message.getUserProperty("row")));
    }

    private static LocalTransactionState decision(String decisions, int index) {
        String[] each = decisions.split(",");
        switch (each[index % each.length]) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown":
                return LocalTransactionState.UNKNOW;
            default:
                throw new IllegalStateException("the local transaction failed");
        }
    }
}
