package skylarkmq.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** Standard output: one JSON object a line, "event" first. */
final class Out {
    private static final int BODY_SHOWN_MAX = 4000;

    private Out() {
    }

    static Map<String, Object> event(String name) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("event", name);
        return fields;
    }

    static void line(Map<String, Object> fields) {
        // Tables whose keys are no texts, such as queues, have JSON texts as keys.
        String text = JSON.toJSONString(fields, SerializerFeature.WriteNonStringKeyAsString);
        synchronized (Out.class) {
            byte[] bytes = (text + "\n").getBytes(StandardCharsets.UTF_8);
            System.out.write(bytes, 0, bytes.length);
            System.out.flush();
        }
    }

    static void line(String event) {
        line(event(event));
    }

    static void sent(int index, SendResult result) {
        Map<String, Object> fields = event("sent");
        fields.put("index", index);
        fields.put("status", result.getSendStatus().name());
        fields.put("msg_id", result.getMsgId());
        fields.put("offset_msg_id", result.getOffsetMsgId());
        fields.put("broker_name", result.getMessageQueue().getBrokerName());
        fields.put("queue_id", result.getMessageQueue().getQueueId());
        fields.put("queue_offset", result.getQueueOffset());
        fields.put("region_id", result.getRegionId());
        fields.put("trace_on", result.isTraceOn());
        line(fields);
    }

    static void message(MessageExt message) {
        line(fields("message", message));
    }

    static Map<String, Object> fields(String event, MessageExt message) {
        byte[] body = message.getBody();
        CRC32 crc = new CRC32();
        crc.update(body);
        Map<String, Object> fields = event(event);
        fields.put("topic", message.getTopic());
        fields.put("tags", message.getTags());
        fields.put("keys", message.getKeys());
        fields.put("msg_id", message.getMsgId());
        fields.put("broker_name", message.getBrokerName());
        fields.put("queue_id", message.getQueueId());
        fields.put("queue_offset", message.getQueueOffset());
        fields.put("commit_log_offset", message.getCommitLogOffset());
        fields.put("offset_msg_id", offsetId(message));
        fields.put("prepared_offset", message.getPreparedTransactionOffset());
        fields.put("sys_flag", message.getSysFlag());
        fields.put("reconsume_times", message.getReconsumeTimes());
        fields.put("born_timestamp", message.getBornTimestamp());
        fields.put("store_timestamp", message.getStoreTimestamp());
        fields.put("born_host", String.valueOf(message.getBornHostString()));
        fields.put("flag", message.getFlag());
        fields.put("body_size", body.length);
        fields.put("body_crc", crc.getValue());
        if (body.length <= BODY_SHOWN_MAX) {
            fields.put("body", new String(body, StandardCharsets.UTF_8));
        }
        fields.put("properties", message.getProperties());
        return fields;
    }

    static void error(int index, Throwable fault) {
        Map<String, Object> fields = event("error");
        fields.put("index", index);
        describe(fields, fault);
        line(fields);
    }

    static void describe(Map<String, Object> fields, Throwable fault) {
        fields.put("type", fault.getClass().getSimpleName());
        fields.put("message", fault.getMessage());
        Throwable cause = fault.getCause() instanceof MQBrokerException ? fault.getCause() : fault;
        if (cause instanceof MQBrokerException) {
            fields.put("answer", ((MQBrokerException) cause).getErrorMessage());
            fields.put("code", ((MQBrokerException) cause).getResponseCode());
        } else if (cause instanceof MQClientException) {
            fields.put("code", ((MQClientException) cause).getResponseCode());
        }
    }

    private static String offsetId(MessageExt message) {
        boolean pulled = message instanceof MessageClientExt;
        return pulled ? ((MessageClientExt) message).getOffsetMsgId() : null;
    }
}
