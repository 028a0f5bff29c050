package skylarkmq.interop.store;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;

/** Appends, each in a millisecond of its own: index files are named after the one they begin in. */
final class Puts {
    private static final long CLOCK_STEP_NS = 100_000;

    private final DefaultMessageStore store;

    Puts(DefaultMessageStore store) {
        this.store = store;
    }

    void put(JSONObject command) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, command);
        message.setPropertiesString(MessageDecoder.messageProperties2String(properties(command)));
        message.setBody(body(command));
        answer(store.putMessage(message));
    }

    void batch(JSONObject command) {
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, command);
        List<Message> messages = new ArrayList<>();
        JSONArray parts = command.getJSONArray("messages");
        for (int i = 0; i < parts.size(); i++) {
            JSONObject part = parts.getJSONObject(i);
            Message message = new Message(batch.getTopic(), body(part));
            message.setFlag(part.getIntValue("flag"));
            MessageAccessor.setProperties(message, properties(part));
            messages.add(message);
        }
        batch.setBody(MessageDecoder.encodeMessages(messages));
        answer(store.putMessages(batch));
    }

    private static void fill(MessageExt message, JSONObject command) {
        MessageAccessor.setProperties(message, properties(command));
        message.setTopic(command.getString("topic"));
        message.setQueueId(command.getIntValue("queue_id"));
        message.setFlag(command.getIntValue("flag"));
        message.setSysFlag(command.getIntValue("sys_flag"));
        message.setBornTimestamp(command.getLongValue("born_timestamp"));
        message.setBornHost(host(command.getString("born_host")));
        message.setStoreHost(host(command.getString("store_host")));
        message.setReconsumeTimes(command.getIntValue("reconsume_times"));
        message.setPreparedTransactionOffset(command.getLongValue("prepared_transaction_offset"));
    }

    private static byte[] body(JSONObject command) {
        return command.getString("body").getBytes(StandardCharsets.UTF_8);
    }

    private static Map<String, String> properties(JSONObject command) {
        Map<String, String> properties = new HashMap<>();
        JSONObject given = command.getJSONObject("properties");
        if (given != null) {
            given.forEach((name, value) -> properties.put(name, (String) value));
        }
        return properties;
    }

    private static InetSocketAddress host(String text) {
        String[] parts = text.split(" ");
        return new InetSocketAddress(parts[0], Integer.parseInt(parts[1]));
    }

    private static void answer(PutMessageResult result) {
        Map<String, Object> fields = Out.event("put");
        fields.put("status", result.getPutMessageStatus().name());
        AppendMessageResult appended = result.getAppendMessageResult();
        if (appended != null) {
            fields.put("queue_offset", appended.getLogicsOffset());
            fields.put("physical_offset", appended.getWroteOffset());
            fields.put("size", appended.getWroteBytes());
            fields.put("store_timestamp", appended.getStoreTimestamp());
            fields.put("msg_id", appended.getMsgId());
        }
        Out.line(fields);
        long now = System.currentTimeMillis();
        while (System.currentTimeMillis() <= now) {
            LockSupport.parkNanos(CLOCK_STEP_NS);
        }
    }
}
