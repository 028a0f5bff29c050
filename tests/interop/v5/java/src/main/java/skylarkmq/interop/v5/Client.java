package skylarkmq.interop.v5;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Takes commands from standard input and prints events, a JSON object a line: see programs.py. */
public final class Client {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Gson GSON = new Gson();
    private static final Map<String, Closeable> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<Integer, MessageView> MESSAGES = new ConcurrentHashMap<>();
    private static final AtomicInteger NUMBERS = new AtomicInteger();

    private Client() {
    }

    public static void main(String[] args) throws Exception {
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            workers.submit(() -> answer(command));
        }
        System.exit(0);
    }

    private static void answer(JsonObject command) {
        Map<String, Object> fields = new LinkedHashMap<>();
        try {
            fields.put("event", "done");
            perform(command, fields);
        } catch (Throwable fault) {
            fields.put("event", "failed");
            fields.put("error", String.valueOf(fault));
        }
        fields.put("seq", command.get("seq").getAsInt());
        print(fields);
    }

    private static void perform(JsonObject command, Map<String, Object> answer) throws Exception {
        String id = text(command, "id");
        switch (text(command, "do")) {
            case "producer":
                CLIENTS.put(id, producer(command, id));
                break;
            case "push":
                CLIENTS.put(id, push(command, id));
                break;
            case "simple":
                CLIENTS.put(id, PROVIDER.newSimpleConsumerBuilder()
                    .setClientConfiguration(configuration(command))
                    .setConsumerGroup(text(command, "group"))
                    .setAwaitDuration(Duration.ofMillis(command.get("await_ms").getAsLong()))
                    .setSubscriptionExpressions(subscription(command))
                    .build());
                break;
            case "send":
                send(command, (Producer) CLIENTS.get(id), answer);
                break;
            case "recall":
                answer.put("message_id", ((Producer) CLIENTS.get(id))
                    .recallMessage(text(command, "topic"), text(command, "handle"))
                    .getMessageId().toString());
                break;
            case "receive":
                List<Object> received = new ArrayList<>();
                for (MessageView message : ((SimpleConsumer) CLIENTS.get(id)).receive(
                    command.get("count").getAsInt(), millis(command, "invisible_ms"))) {
                    received.add(shown(message));
                }
                answer.put("messages", received);
                break;
            case "ack":
                ((SimpleConsumer) CLIENTS.get(id)).ack(message(command));
                break;
            case "change":
                ((SimpleConsumer) CLIENTS.get(id))
                    .changeInvisibleDuration(message(command), millis(command, "invisible_ms"));
                break;
            case "close":
                CLIENTS.remove(id).close();
                break;
            default:
                throw new IllegalArgumentException(command.toString());
        }
    }

    private static ClientConfiguration configuration(JsonObject command) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(text(command, "endpoint"))
            .enableSsl(command.get("tls").getAsBoolean());
        if (!text(command, "key").isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(
                text(command, "key"), text(command, "secret")));
        }
        return builder.build();
    }

    private static Map<String, FilterExpression> subscription(JsonObject command) {
        String sql = text(command, "sql");
        FilterExpression filter = sql.isEmpty()
            ? new FilterExpression(text(command, "tag"), FilterExpressionType.TAG)
            : new FilterExpression(sql, FilterExpressionType.SQL92);
        return Map.of(text(command, "topic"), filter);
    }

    private static Producer producer(JsonObject command, String id) throws ClientException {
        ProducerBuilder builder = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration(command))
            .setTopics(text(command, "topic"));
        String check = text(command, "check");
        if (!check.isEmpty()) {
            builder.setTransactionChecker(view -> {
                print(event("check", id, view));
                return resolution(check);
            });
        }
        return builder.build();
    }

    private static TransactionResolution resolution(String name) {
        return name.equals("unknown")
            ? TransactionResolution.UNKNOWN : TransactionResolution.valueOf(name.toUpperCase());
    }

    private static Closeable push(JsonObject command, String id) throws ClientException {
        int fail = command.get("fail").getAsInt();
        long slow = command.get("slow_ms").getAsLong();
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        return PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(command))
            .setConsumerGroup(text(command, "group"))
            .setSubscriptionExpressions(subscription(command))
            .setMessageListener(view -> {
                print(event("message", id, view));
                if (slow > 0) {
                    try {
                        Thread.sleep(slow);
                    } catch (InterruptedException stop) {
                        return ConsumeResult.FAILURE;
                    }
                }
                print(Map.of("event", "finished", "id", id));
                return seen.merge(view.getMessageId().toString(), 1, Integer::sum) <= fail
                    ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
    }

    private static void send(JsonObject command, Producer producer, Map<String, Object> answer)
        throws ClientException {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(text(command, "topic"))
            .setBody(text(command, "body").getBytes(StandardCharsets.UTF_8));
        if (!text(command, "tag").isEmpty()) {
            builder.setTag(text(command, "tag"));
        }
        if (!text(command, "key").isEmpty()) {
            builder.setKeys(text(command, "key"));
        }
        if (!text(command, "message_group").isEmpty()) {
            builder.setMessageGroup(text(command, "message_group"));
        }
        if (command.get("priority").getAsInt() >= 0) {
            builder.setPriority(command.get("priority").getAsInt());
        }
        long delay = command.get("delay_ms").getAsLong();
        if (delay > 0) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + delay);
        }
        for (Map.Entry<String, JsonElement> one :
            command.getAsJsonObject("properties").entrySet()) {
            builder.addProperty(one.getKey(), one.getValue().getAsString());
        }
        Message message = builder.build();
        String transaction = text(command, "transaction");
        SendReceipt receipt;
        if (transaction.isEmpty()) {
            receipt = producer.send(message);
        } else {
            Transaction local = producer.beginTransaction();
            receipt = producer.send(message, local);
            if (transaction.equals("commit")) {
                local.commit();
            } else if (transaction.equals("rollback")) {
                local.rollback();
            }
        }
        answer.put("message_id", receipt.getMessageId().toString());
        answer.put("recall_handle", receipt.getRecallHandle());
    }

    private static Map<String, Object> event(String name, String id, MessageView view) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("event", name);
        fields.put("id", id);
        fields.putAll(shown(view));
        return fields;
    }

    private static Map<String, Object> shown(MessageView view) {
        int number = NUMBERS.incrementAndGet();
        MESSAGES.put(number, view);
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("number", number);
        fields.put("topic", view.getTopic());
        fields.put("body", new String(bytes, StandardCharsets.UTF_8));
        fields.put("tag", view.getTag().orElse(""));
        fields.put("keys", new ArrayList<>(view.getKeys()));
        fields.put("properties", view.getProperties());
        fields.put("message_id", view.getMessageId().toString());
        fields.put("message_group", view.getMessageGroup().orElse(""));
        fields.put("priority", view.getPriority().orElse(null));
        fields.put("attempt", view.getDeliveryAttempt());
        fields.put("now_ms", System.currentTimeMillis());
        fields.put("born_ms", view.getBornTimestamp());
        return fields;
    }

    private static MessageView message(JsonObject command) {
        return MESSAGES.get(command.get("number").getAsInt());
    }

    private static Duration millis(JsonObject command, String name) {
        return Duration.ofMillis(command.get(name).getAsLong());
    }

    private static String text(JsonObject command, String name) {
        return command.has(name) ? command.get(name).getAsString() : "";
    }

    private static void print(Map<String, Object> fields) {
        byte[] line = (GSON.toJson(fields) + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (Client.class) {
            System.out.write(line, 0, line.length);
            System.out.flush();
        }
    }
}
