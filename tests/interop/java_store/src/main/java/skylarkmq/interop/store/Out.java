package skylarkmq.interop.store;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;

/** Standard output: one JSON object a line, "event" first. */
final class Out {
    private Out() {
    }

    static Map<String, Object> event(String name) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("event", name);
        return fields;
    }

    static void line(Map<String, Object> fields) {
        String text = JSON.toJSONString(fields, SerializerFeature.DisableCircularReferenceDetect);
        byte[] bytes = (text + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }

    /** A message as the store's own decoder understands it. */
    static void message(MessageExt message, Long tagsCode) {
        Map<String, Object> fields = event("message");
        if (message != null) {
            fields.put("topic", message.getTopic());
            fields.put("queue_id", message.getQueueId());
            fields.put("queue_offset", message.getQueueOffset());
            fields.put("physical_offset", message.getCommitLogOffset());
            fields.put("store_size", message.getStoreSize());
            byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
            fields.put("body", new String(body, StandardCharsets.UTF_8));
            fields.put("body_crc", message.getBodyCRC());
            fields.put("properties", message.getProperties());
            fields.put("flag", message.getFlag());
            fields.put("sys_flag", message.getSysFlag());
            fields.put("born_timestamp", message.getBornTimestamp());
            fields.put("store_timestamp", message.getStoreTimestamp());
            fields.put("born_host", host(message.getBornHost()));
            fields.put("store_host", host(message.getStoreHost()));
            fields.put("reconsume_times", message.getReconsumeTimes());
            fields.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
            fields.put("msg_id", message.getMsgId());
        }
        if (tagsCode != null) {
            fields.put("tags_code", tagsCode);
        }
        line(fields);
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host.getAddress().getHostAddress() + " " + host.getPort();
    }
}
